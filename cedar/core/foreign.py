"""Names that users know from other libraries, and the cedar equivalents that error messages suggest."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from cedar.core.errors import CedarError, UsageError, shortened, user_site

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def _answers(names: dict[str, str]) -> dict[str, str]:
    """Invert a dict of suggestion -> space-separated names to name -> suggestion."""
    return {name: answer for answer, some in names.items() for name in some.split()}


_NOTHING = "nothing: the loader reads ahead as far as memory allows"
_RANKS = "p.loader(rank=, world=); under torchrun or SLURM nothing: each rank gets its share"
_TORCH = "p.batch(n).loader(format='torch')"
_DECODE = "map(cedar.operators.image.decode(), 'bytes', into='image')"
_IMAGES = f"cedar.read_files(paths), then {_DECODE}"
_ORDER = (
    "shuffle(by='column') to keep rows of one value together; to sort or aggregate, p.to_arrow() and polars, or "
    "from_polars(frame.sort(...)) for rows that fit in memory"
)

METHODS = _answers({
    "nothing: files are read at once; cedar.mix([(a, 0.5), (b, 0.5)]) mixes sources": "interleave", "fn(p)": "pipe",
    "cedar.zip(p, cedar.from_numpy({'index': numpy.arange(n)}))": "with_row_index with_row_count", _NOTHING: "prefetch",
    _RANKS: "sharding_filter shard split_by_node streaming_split split_dataset_by_node", "p.count(), p.schema": "shape",
    "p.write(folder, format='jsonl')": "write_json to_json write_ndjson write_jsonl", "list(p.schema)": "column_names",
    "bucket_by_length('x', boundaries, batch_sizes)": "bucket_by_sequence_length", "for row in p": "iter_rows iterrows",
    "for batch in p.batch(n)": "iter_batches iter_tf_batches to_tf_dataset", "drop('x')": "remove_columns drop_columns",
    _TORCH: "to_torch to_tensor iter_torch_batches set_format with_format", "map(fn, ..., random=True)": "random_map",
    "p.to_arrow(), then pyarrow.csv.write_csv": "write_csv to_csv", "list(p)": "to_list to_dicts rows take_all to_dict",
    "nothing: files are split where they are read": "repartition", "p.unique(subset=['x'])": "drop_duplicates distinct",
    "with_columns(y=col('x') + 1)": "assign with_column mutate", "next(iter(p.batch(n))), a dict of arrays": "to_numpy",
    "with_columns(y=...), map(fn, 'x', into='y')": "add_column", "filter(col('x').is_not_null())": "drop_nulls dropna",
    "with_columns(col('x').cast(polars.Int32))": "cast astype", "flat_map(fn)": "flatten", "p.to_arrow()": "compute",
    "p.split({'train': 0.9, 'test': 0.1})": "train_test_split", "p.split({'train': 0.9, 'val': 0.1})": "random_split",
    "with_columns(col('x').fill_null(0))": "fill_null fillna", "rename({'old': 'new'})": "rename_columns rename_column",
    "cedar.mix([(a, 0.5), (b, 0.5)])": "sample_from_datasets", "p.write_parquet(path)": "to_parquet sink_parquet",
    "loader.load_state_dict(state)": "load_state_dict", "p.skip(offset).take(length)": "slice", _DECODE: "decode",
    _ORDER: "sort_values order_by groupby map_groups", "p.write(folder)": "save save_to_disk", "p.head(n)": "show",
    "next(iter(p.batch(n)))": "take_batch", "filter(col('x') > 0)": "where query", "select('x', 'y')": "select_columns",
    "loader.state_dict()": "state_dict", "batch(n).pad('x')": "padded_batch", "shuffle(seed=1)": "random_shuffle",
    "with_columns(y=...)": "withColumn", "list(p), p.to_arrow()": "collect", "p.join(other, on='key')": "merge",
    "p.cache()": "materialize persist", "p.skip(p.count() - n)": "tail", "cedar.zip(a, b)": "hstack zip",
    "map(fn, 'x')": "map_elements", "p.schema": "dtypes features", "nothing: pipelines are lazy": "lazy",
    "p.describe(), p.to_polars() and polars": "sum mean min max std var median agg aggregate value_counts null_count",
    "cedar.from_polars(p.to_polars().with_columns(...))": "shift diff rolling cum_sum cumsum ffill interpolate",
    "select(a=col('s').struct.field('a'))": "unnest", "with_columns(col('x').fill_nan(0))": "fill_nan",
    "p.unique('x').count()": "n_unique nunique", "map_batches(fn)": "map_partitions", "p.count()": "cardinality",
    "cedar.concat(a, b)": "vstack append concat concatenate union", "p.batch(n, collate=fn)": "collate",
    "loader(steps=n)": "with_epoch with_length", "p.select('x', 'y').loader(format='tuple')": "to_tuple",
    "map(fn, ...), which runs in every epoch": "with_transform set_transform", "p.count(), len(loader)": "num_rows",
    "p.balance_classes('label'), or p.sample(weights='w')": "rejection_resample",
    "the pipeline before batch(n); p.explode('x') makes a row of each item of a list": "unbatch",
})  # fmt: skip

FUNCTIONS = _answers({
    "cedar.from_iterable(make_iterator)": "from_generator from_tf read_tfrecords IterableDataset",
    "cedar.mix([(a, 0.5), (b, 0.5)])": "interleave interleave_datasets sample_from_datasets", "polars.when": "when",
    "cedar.concat(a, b)": "concatenate concatenate_datasets ConcatDataset ChainDataset",
    "cedar.from_huggingface(datasets.load_dataset(...))": "load_dataset", _IMAGES: "read_images ImageFolder read_image",
    "cedar.read_* or from_*, which make a cedar.Pipeline": "Dataset", "cedar.from_items(rows)": "from_list from_dicts",
    "cedar.from_numpy(columns)": "from_dict from_tensor_slices", "cedar.read_tar(paths)": "read_webdataset WebDataset",
    "cedar.read_files(paths)": "read_binary_files list_files", "cedar.read_parquet(paths)": "from_parquet scan_parquet",
    "p.split({'train': 0.9, 'val': 0.1})": "random_split", "cedar.read_delta(uri)": "scan_delta",
    "cedar.from_polars(polars.read_database(...)), or cedar.from_source(source) for more": "read_sql read_database",
    "cedar.from_polars(polars.read_excel(...))": "read_excel", "cedar.read_csv(paths)": "scan_csv from_csv",
    "cedar.read_jsonl(paths)": "read_json read_ndjson scan_ndjson", "cedar.read_iceberg(table)": "scan_iceberg",
    "p.sample(weights='w')": "WeightedRandomSampler", "polars.lit, or the value itself": "lit",
    "cedar.read_arrow(paths)": "read_ipc scan_ipc read_feather", "p.shuffle(seed=1)": "RandomSampler",
    "cedar.from_items(dataset).batch(n).loader(format='torch')": "DataLoader StatefulDataLoader",
    "cedar.from_huggingface(datasets.load_from_disk(folder))": "load_from_disk",
    "cedar.read_tar(paths), cedar.read_parquet(paths), ...": "StreamingDataset",
})  # fmt: skip

_WORKERS = 'loader(workers=n), or nothing: it is measured; executor="inline" runs everything in this thread'
LOADER = _answers({
    "loader.state_dict(), loader.load_state_dict(state)": "get_state set_state", "n of p.batch(n)": "batch_size",
    "the pipeline, such as p.count() or p.schema": "dataset", _WORKERS: "num_workers",
})  # fmt: skip

_BATCHES = "batch(n) before loader()"
KEYWORDS = _answers({
    "a class given to map(), of which each worker makes an instance": "worker_init_fn", "batch(n)": "batch.batch_size",
    'batch(n, last="drop"), or last="keep" for drop_last=False': "loader.drop_last", "size=n": "map_batches.batch_size",
    "nothing: workers stay until the loader is closed": "persistent_workers", "shuffle() before batch()": "shuffle",
    _WORKERS: "num_workers num_parallel_calls concurrency num_proc n_jobs", "rename({'old': 'new'})": "rename.columns",
    "nothing: every epoch has its own order": "reshuffle_each_iteration", "mix([(a, 0.7), (b, 0.3)])": "mix.weights",
    'last="drop", or last="keep" for False': "drop_last drop_remainder", "world=": "num_replicas world_size num_shards",
    "read_parquet(paths).filter(col('x') > 0)": "read_parquet.filters", "delimiter=": "read_csv.sep read_csv.separator",
    "format=": "map_batches.batch_format return_tensors batch_format", "bucket_by_length() or batch()": "batch_sampler",
    "shuffle(window=n)": "buffer_size local_shuffle_buffer_size", "dtypes=": "read_csv.dtype read_csv.schema_overrides",
    "read_csv(paths).take(n)": "read_csv.nrows read_csv.n_rows", "concat(a, b) for rows, zip(a, b) for columns": "how",
    "replace=": "sample.with_replacement sample.replacement", "map_batches(fn, size=n)": "map.batched map.batch_size",
    "shuffle() or sample() before batch()": "sampler", "seed=": "generator rng random_state random_seed",
    'executor="processes"': "multiprocessing_context", 'loader(order="any") for False': "deterministic",
    "batch(n, collate=fn)": "collate_fn", _NOTHING: "prefetch_factor prefetch", "window=n": "shuffle.buffer_size",
    'device="cuda"': "pin_memory", "dtype=": "map.return_dtype", "drop('x')": "drop.columns", "take(n)": "take.count",
    "fraction=": "sample.frac", _BATCHES: "batch_size", "rank=": "shard_index",
    "column_names=": "read_csv.names read_csv.new_columns",
    "dtypes={'day': datetime.date}": "read_csv.parse_dates read_csv.try_parse_dates",
    "a new folder per job, such as write('out/2024-02'); read_parquet('out') reads all": "write.mode",
    "drop('x') after it": "remove_columns", "pairs: mix([(a, 0.7), (b, 0.3)])": "mix.probabilities",
    'stop="first" or "all"': "mix.stopping_strategy", "on_error=cedar.Skip(max_rate=0.01)": "handler",
    "nothing: loader.state_dict() is cheap after any batch": "snapshot_every_n_steps",
})  # fmt: skip
CALLS = {
    "shuffle": "shuffle(window=1000) to shuffle within windows of 1,000 rows, shuffle(seed=1000) for a seed",
    "rename": "rename({'old': 'new'})", "filter": "filter(col('x') == 1, ...), or filter(fn, 'x')",
    "split": "split({'train': 0.9, 'val': 0.1})",
}  # fmt: skip


def unknown_method(pipeline: object, name: str) -> AttributeError:
    """Return the error for an attribute that pipelines do not have."""
    return _unknown("'Pipeline' object", name, METHODS, [n for n in dir(pipeline) if n[0] != "_"])


def unknown_loader_attribute(loader: object, name: str) -> AttributeError:
    """Return the error for an attribute that loaders do not have."""
    return _unknown("'Loader' object", name, LOADER, [n for n in dir(loader) if n[0] != "_"])


def unknown_function(name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for a name that the package does not have."""
    return _unknown("module 'cedar'", name, FUNCTIONS, known)


def _unknown(what: str, name: str, answers: dict[str, str], known: Iterable[str]) -> AttributeError:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), 3, 0.75)
    if name in answers:
        says = f"here that is {answers[name]}"
    elif near:
        says = f"did you mean {' or '.join(near)}?"
    else:
        says = "dir(...) lists the names that exist, and help(...) describes each"
    return AttributeError(f"{what} has no attribute {name!r}: {says}")


def with_suggestions(function: F) -> F:
    """Make a public function, or a class's constructor, suggest fixes for wrong arguments, and shorten tracebacks.

    Raises:
        PipelineError: from the function; also replaces the TypeError for invalid arguments.
    """
    if isinstance(function, type):
        constructor: Any = vars(function).get("__init__")
        if inspect.isfunction(constructor) and not hasattr(constructor, "__wrapped__"):
            cast("Any", function).__init__ = with_suggestions(constructor)
        return cast("F", function)

    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except CedarError as error:
            raise shortened(error)  # noqa: B904 - the same error
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # raised inside the function: the arguments were valid
            raise _wrong_arguments(function, options, error) from None

    return cast("F", called)


def suggest_in_module(names: dict[str, Any]) -> None:
    """Wrap all public functions and classes of a module, given as ``globals()``, in ``with_suggestions``."""
    for name in names["__all__"]:
        names[name] = with_suggestions(names[name])


def suggest_in_methods(kind: C) -> C:
    """Wrap all public methods and properties of a class, including inherited ones, in ``with_suggestions``."""
    for name in dir(kind):
        method = inspect.getattr_static(kind, name)
        if name[0] != "_" and inspect.isfunction(method):
            setattr(kind, name, with_suggestions(method))
        elif name[0] != "_" and isinstance(method, property) and method.fget is not None:
            setattr(kind, name, property(with_suggestions(method.fget)))
    return kind


def _wrong_arguments(function: Any, options: dict[str, Any], error: TypeError) -> CedarError:
    """Return the error for a call whose arguments Python rejected."""
    from difflib import get_close_matches

    name = _name(function)
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.name != "self" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    usage = CALLS.get(name) or f"write {_usage(function)}"
    strange = next((key for key in options if key not in known), None)
    if strange is None:
        what = str(error).partition("() ")[2]
        return UsageError(f"{name}() {what}", site=user_site(), fix=usage)
    answer = KEYWORDS.get(f"{name}.{strange}") or KEYWORDS.get(strange)
    near = get_close_matches(strange, known, 1)
    fix = f"here that is {answer}" if answer else f"did you mean {near[0]}=?" if near else usage
    return UsageError(f"{name}() has no option {strange!r}", site=user_site(), fix=fix)


def _usage(function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for name, p in signature.parameters.items() if name != "self"]
    usage = f"{_name(function)}{signature.replace(parameters=parameters, return_annotation=signature.empty)}"
    names = ", ".join(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)
    return usage if len(usage) <= 160 else f"{_name(function)}(name=value, ...): its options are given by name: {names}"


def _name(function: Any) -> str:
    """Return the name by which users call a function; for a constructor, that of its class."""
    names = function.__qualname__.split(".")
    return str(names[-2 if names[-1] == "__init__" else -1])
