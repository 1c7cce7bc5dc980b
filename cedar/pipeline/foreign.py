"""What users of other libraries type first, and what to write here instead."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, TypeVar, cast

from cedar.core.errors import CedarError, UsageError, user_site
from cedar.core.tracebacks import shortened

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

_NOTHING = "nothing: the loader reads ahead as far as memory allows"
_RANKS = "p.loader(rank=, world=); under torchrun or SLURM nothing: each rank gets its share"
_TORCH = "p.batch(n).loader(format='torch')"
_IMAGES = "cedar.read_files(paths), then map(cedar.operators.image.Decode(), 'bytes')"
_ORDER = (
    "shuffle(by='column') to keep rows of one value together; to sort or aggregate, p.to_arrow() and polars, or "
    "from_polars(frame.sort(...)) for rows that fit in memory"
)

METHODS = {
    # polars, pandas
    "collect": "list(p), p.to_arrow(), or iterate p", "lazy": "nothing: every pipeline is lazy", "to_list": "list(p)",
    "to_dicts": "list(p)", "to_dict": "list(p), or p.to_arrow().to_pydict()", "rows": "list(p)",
    "iter_rows": "for row in p", "iterrows": "for row in p", "itertuples": "for row in p", "show": "p.head(n)",
    "to_numpy": "next(iter(p.batch(n))), a dict of arrays", "to_torch": _TORCH, "to_tensor": _TORCH,
    "tail": "p.skip(p.count() - n)", "slice": "p.skip(offset).take(length)", "sort_values": _ORDER, "order_by": _ORDER,
    "groupby": _ORDER, "agg": _ORDER, "value_counts": "p.describe()",
    "cast": "with_columns(col('x').cast(polars.Int32))", "astype": "with_columns(col('x').cast(polars.Int32))",
    "assign": "with_columns(y=col('x') + 1)", "with_column": "with_columns(y=col('x') + 1)",
    "mutate": "with_columns(y=col('x') + 1)", "drop_nulls": "filter(col('x').is_not_null())",
    "dropna": "filter(col('x').is_not_null())", "fill_null": "with_columns(col('x').fill_null(0))",
    "fillna": "with_columns(col('x').fill_null(0))", "where": "filter(col('x') > 0)", "query": "filter(col('x') > 0)",
    "remove": "filter(~(col('x') > 0))", "pipe": "fn(p)", "merge": "p.join(other, on='key')",
    "vstack": "cedar.concat(a, b)", "hstack": "cedar.zip(a, b)", "extend": "cedar.concat(a, b)",
    "append": "cedar.concat(a, b)",
    "with_row_index": "from_items(list(p)) and a number in each row, or read_text, which has the column 'line'",
    "with_row_count": "a number in each row of the source", "drop_duplicates": "p.unique(subset=['x'])",
    "distinct": "p.unique(subset=['x'])", "shape": "p.count(), p.schema", "height": "p.count()",
    "width": "len(p.schema)", "dtypes": "p.schema", "collect_schema": "p.schema", "info": "p.schema, p.describe()",
    "is_empty": "p.take(1).count() == 0", "map_elements": "map(fn, 'x')", "map_rows": "map(fn)",
    "iloc": "p.skip(i).take(n)", "loc": "filter(col('x') == value)",
    "write_csv": "p.to_arrow(), then pyarrow.csv.write_csv", "to_csv": "p.to_arrow(), then pyarrow.csv.write_csv",
    "write_json": "p.write(folder, format='jsonl')", "to_json": "p.write(folder, format='jsonl')",
    "write_ndjson": "p.write(folder, format='jsonl')", "write_jsonl": "p.write(folder, format='jsonl')",
    "to_parquet": "p.write_parquet(path)", "sink_parquet": "p.write_parquet(path)", "save": "p.write(folder)",
    "save_to_disk": "p.write(folder)", "write_tar": "p.write(folder, format='tar')",
    "write_arrow": "p.write(folder, format='arrow')", "write_ipc": "p.write(folder, format='arrow')",
    # PyTorch, torchdata
    "random_split": "p.split({'train': 0.9, 'val': 0.1})", "train_test_split": "p.split({'train': 0.9, 'test': 0.1})",
    "to_dataloader": "p.batch(n).loader()", "collate": "p.batch(n, collate=fn)", "pin_memory": "loader(device='cuda')",
    "to": "loader(device='cuda')", "cuda": "loader(device='cuda')", "sharding_filter": _RANKS,
    "set_epoch": "loader.set_epoch(e)", "state_dict": "loader.state_dict()",
    "load_state_dict": "loader.load_state_dict(state)", "prefetcher": _NOTHING, "flatmap": "flat_map(fn)",
    # tf.data, Grain, webdataset
    "prefetch": _NOTHING, "mp_prefetch": _NOTHING, "to_iter_dataset": "p.loader()",
    "interleave": "nothing: files are read at once; cedar.mix([(a, 0.5), (b, 0.5)]) mixes sources", "shard": _RANKS,
    "split_by_node": _RANKS, "padded_batch": "batch(n).pad('x')",
    "ragged_batch": "batch(n): lists become JaggedTensors",
    "bucket_by_sequence_length": "bucket_by_length('x', boundaries, batch_sizes)",
    "unbatch": "flat_map(fn), or leave out batch()", "flatten": "flat_map(fn)",
    "rebatch": "one batch(n), where the size is known", "batched": "batch(n)",
    "window": "map_batches(fn, size=n), or pack(length)", "enumerate": "for i, batch in enumerate(loader)",
    "as_numpy_iterator": "for batch in p.loader()", "cardinality": "p.count()", "concatenate": "cedar.concat(a, b)",
    "sample_from_datasets": "cedar.mix([(a, 0.5), (b, 0.5)])", "mix": "cedar.mix", "zip": "cedar.zip(a, b)",
    "reduce": "for row in p", "random_map": "map(fn, ..., random=True)",
    "map_with_index": "a number in each row of the source", "ignore_errors": "on_error=cedar.Skip(max_rate=0.01)",
    "decode": _IMAGES, "to_tuple": "select('x', 'y').loader(format='tuple')", "with_epoch": "loader(steps=n)",
    "rejection_resample": "p.sample(weights='w')", "snapshot": "p.cache(folder)", "cache_to_disk": "p.cache(folder)",
    # Hugging Face datasets, Ray Data, Spark, Dask
    "materialize": "p.cache()", "persist": "p.cache()", "compute": "p.to_arrow()", "execute": "list(p)",
    "iter_batches": "for batch in p.batch(n)", "iter_torch_batches": _TORCH,
    "iter_tf_batches": "for batch in p.batch(n)", "to_tf_dataset": "for batch in p.batch(n)",
    "take_batch": "next(iter(p.batch(n)))", "take_all": "list(p)", "streaming_split": _RANKS,
    "split_dataset_by_node": _RANKS, "random_shuffle": "shuffle(seed=1)",
    "repartition": "nothing: files are split where they are read", "randomize_block_order": "shuffle(seed=1)",
    "add_column": "with_columns(y=...), map(fn, 'x', into='y')", "rename_columns": "rename({'old': 'new'})",
    "rename_column": "rename({'old': 'new'})", "remove_columns": "drop('x')", "drop_columns": "drop('x')",
    "select_columns": "select('x', 'y')", "withColumn": "with_columns(y=...)",
    "withColumnRenamed": "rename({'old': 'new'})", "dropDuplicates": "p.unique(...)", "union": "cedar.concat(a, b)",
    "unionByName": "cedar.concat(a, b)", "cast_column": "with_columns(col('x').cast(...))",
    "column_names": "list(p.schema)", "features": "p.schema", "num_rows": "p.count()", "set_format": _TORCH,
    "with_format": _TORCH, "set_transform": "map(fn)", "with_transform": "map(fn)",
    "class_encode_column": "map(fn, 'x')", "shuffle_batches": "batch(n).shuffle()",
    "stats": "loader.report(), p.profile()", "mapPartitions": "map_batches(fn)", "map_groups": _ORDER,
}  # fmt: skip

FUNCTIONS = {
    "from_generator": "cedar.from_iterable(make_iterator)", "from_dict": "cedar.from_arrow(pyarrow.table(columns))",
    "from_pydict": "cedar.from_arrow(pyarrow.table(columns))", "from_list": "cedar.from_items(rows)",
    "from_dicts": "cedar.from_items(rows)", "from_dataset": "cedar.from_items(dataset)",
    "from_torch": "cedar.from_items(dataset)", "from_tensors": "cedar.from_items(rows)",
    "from_tensor_slices": "cedar.from_items(rows), or from_arrow(pyarrow.table(columns))",
    "from_records": "cedar.from_items(rows)", "from_tf": "cedar.from_iterable(make_iterator)",
    "from_hf": "cedar.from_huggingface(dataset)", "range": "cedar.from_items(rows)",
    "from_parquet": "cedar.read_parquet(paths)", "scan_parquet": "cedar.read_parquet(paths)",
    "scan_csv": "cedar.read_csv(paths)", "read_json": "cedar.read_jsonl(paths)",
    "read_ndjson": "cedar.read_jsonl(paths)", "scan_ndjson": "cedar.read_jsonl(paths)",
    "read_ipc": "cedar.read_arrow(paths)", "read_feather": "cedar.read_arrow(paths)",
    "read_webdataset": "cedar.read_tar(paths)", "WebDataset": "cedar.read_tar(paths)", "read_images": _IMAGES,
    "ImageFolder": _IMAGES, "read_image": _IMAGES, "read_binary_files": "cedar.read_files(paths)",
    "read_numpy": "cedar.read_files(paths)", "list_files": "cedar.read_files(paths)",
    "read_tfrecords": "cedar.from_iterable(make_iterator)", "TFRecordDataset": "cedar.from_iterable(make_iterator)",
    "TextLineDataset": "cedar.read_text(paths)", "load_dataset": "cedar.from_huggingface(datasets.load_dataset(...))",
    "lit": "polars.lit, or the value itself", "when": "polars.when", "struct": "polars.struct",
    "element": "polars.element", "concatenate": "cedar.concat(a, b)", "concatenate_datasets": "cedar.concat(a, b)",
    "ConcatDataset": "cedar.concat(a, b)", "ChainDataset": "cedar.concat(a, b)",
    "interleave": "cedar.mix([(a, 0.5), (b, 0.5)])", "choose_from_datasets": "cedar.mix(...)",
    "interleave_datasets": "cedar.mix([(a, 0.5), (b, 0.5)])", "sample_from_datasets": "cedar.mix([(a, 0.5), (b, 0.5)])",
    "Dataset": "cedar.read_* or from_*, which make a cedar.Pipeline", "DataFrame": "cedar.from_polars(frame)",
    "IterableDataset": "cedar.from_iterable(make_iterator)", "random_split": "p.split({'train': 0.9, 'val': 0.1})",
    "AUTOTUNE": "nothing: plans are measured", "DistributedSampler": _RANKS,
    "WeightedRandomSampler": "p.sample(weights='w')", "RandomSampler": "p.shuffle(seed=1)",
    "default_collate": "p.batch(n).loader(format='torch')",
}  # fmt: skip

_BATCHES = "batch(n) before loader()"
_WORKERS = "loader(workers=n), or nothing: it is measured"
KEYWORDS = {
    # of one method
    "batch.batch_size": "batch(n)", "batch.n": "batch(n)", "map_batches.batch_size": "size=n",
    "shuffle.size": "window=n", "map_batches.batch_format": "format=", "shuffle.buffer_size": "window=n",
    "shuffle.n": "window=n", "map_batches.zero_copy_batch": "format='numpy'", "map.batched": "map_batches(fn, size=n)",
    "map.batch_size": "map_batches(fn, size=n)", "map.return_dtype": "dtype=",
    "map.fn_kwargs": "functools.partial(fn, ...)", "map.with_indices": "a number in each row of the source",
    "map.input_columns": "map(fn, 'x', 'y')", "map.remove_columns": "map(fn, ...).drop('x')",
    "filter.input_columns": "filter(fn, 'x', 'y')", "rename.columns": "rename({'old': 'new'})",
    "drop.columns": "drop('x')", "write_parquet.compression": "write(folder, layout='small')",
    "cache.path": "cache(folder)", "cache.filename": "cache(folder)", "sample.frac": "fraction=",
    "sample.with_replacement": "replace=", "sample.replacement": "replace=", "sample.num_samples": "n=",
    "repeat.count": "repeat(n)", "take.count": "take(n)", "skip.count": "skip(n)", "take.limit": "take(n)",
    "read_csv.sep": "delimiter=", "read_csv.separator": "delimiter=", "read_csv.names": "column_names=",
    "read_csv.has_header": "header=", "read_csv.usecols": "columns=", "read_csv.na_values": "null_values=",
    "read_csv.dtype": "dtypes=", "read_csv.schema_overrides": "dtypes=", "read_csv.nrows": "read_csv(paths).take(n)",
    "read_csv.n_rows": "read_csv(paths).take(n)", "read_parquet.filters": "read_parquet(paths).filter(col('x') > 0)",
    "read_parquet.hive_partitioning": "nothing: folders such as day=1 become columns",
    "read_parquet.filesystem": "a URL with its scheme, and storage_options=",
    "loader.drop_last": 'batch(n, last="drop"), or last="keep" for drop_last=False', "pad.padding_value": "value=",
    "pad.length": "to=", "pack.seq_len": "pack(length)", "pack.max_length": "pack(length)",
    "mix.weights": "mix([(a, 0.7), (b, 0.3)])", "mix.probabilities": "mix([(a, 0.7), (b, 0.3)])",
    # of any
    "num_workers": _WORKERS, "num_parallel_calls": _WORKERS, "concurrency": _WORKERS, "num_proc": _WORKERS,
    "max_workers": _WORKERS, "n_jobs": _WORKERS, "num_threads": _WORKERS, "num_cpus": _WORKERS,
    "num_gpus": "a class given to map(), and loader(workers=n)",
    "compute": "a class given to map(), and loader(workers=n)", "batch_size": _BATCHES,
    "drop_last": 'last="drop", or last="keep" for False', "drop_last_batch": 'last="drop"',
    "drop_remainder": 'last="drop", or last="keep" for False', "partial": 'last="keep"',
    "shuffle": "shuffle() before batch()", "buffer_size": "shuffle(window=n)", "bufsize": "shuffle(window=n)",
    "local_shuffle_buffer_size": "shuffle(window=n)",
    "reshuffle_each_iteration": "nothing: every epoch has its own order",
    "sampler": "shuffle() or sample() before batch()", "batch_sampler": "bucket_by_length() or batch()",
    "collate_fn": "batch(n, collate=fn)", "pin_memory": 'device="cuda"', "pin_memory_device": 'device="cuda"',
    "generator": "seed=", "rng": "seed=", "random_state": "seed=", "random_seed": "seed=",
    "multiprocessing_context": 'executor="processes"', "deterministic": 'loader(order="any") for False',
    "worker_init_fn": "a class given to map(), of which each worker makes an instance", "prefetch_factor": _NOTHING,
    "prefetch": _NOTHING, "prefetch_batches": _NOTHING, "cycle_length": _NOTHING,
    "persistent_workers": "nothing: workers stay until the loader is closed",
    "in_order": 'loader(order="any") for False', "num_replicas": "world=", "world_size": "world=",
    "num_shards": "world=", "shard_index": "rank=", "streaming": "nothing: every pipeline streams",
    "keep_in_memory": 'cache("memory")', "load_from_cache_file": "cache(folder)", "return_tensors": "format=",
    "batch_format": "format=", "output_signature": "dtype=", "axis": "nothing: rows are rows",
    "inplace": "p = p.drop('x'), as every method gives another pipeline", "ignore_index": "nothing: rows have no index",
    "how": "concat(a, b) for rows, zip(a, b) for columns", "handler": "on_error=", "timeout_s": "timeout=",
    "verbose": "progress=True",
}  # fmt: skip
CALLS = {
    "shuffle": "shuffle(window=1000) to shuffle within windows of 1,000 rows, shuffle(seed=1000) for a seed",
    "rename": "rename({'old': 'new'})",
}


def unknown_method(pipeline: object, name: str) -> AttributeError:
    """The error for an attribute that pipelines do not have."""
    return _unknown("'Pipeline' object", name, METHODS, [n for n in dir(pipeline) if n[0] != "_"])


def unknown_function(name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that the package does not have."""
    return _unknown("module 'cedar'", name, FUNCTIONS, known)


def _unknown(what: str, name: str, answers: dict[str, str], known: Iterable[str]) -> AttributeError:
    near = get_close_matches(name, list(known), 3, 0.75)
    if name in answers:
        says = f"here that is {answers[name]}"
    elif near:
        says = f"did you mean {' or '.join(near)}?"
    else:
        says = "dir(...) lists those there are, docs/migrate.md translates those of other libraries"
    return AttributeError(f"{what} has no attribute {name!r}: {says}")


def answering(function: F) -> F:
    """Let a function of the public surface answer for arguments that it does not take, and shorten tracebacks.

    Raises:
        PipelineError: from the function, also a TypeError, where it cannot be called so.
    """

    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except CedarError as error:
            raise shortened(error)  # noqa: B904 - the same error
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from inside: the call itself was right
            raise _not_callable_so(function, options, error) from None

    return cast("F", called)


def answering_methods(kind: C) -> C:
    """Make all public methods and properties of a class, inherited ones too, ``answering``."""
    for name in dir(kind):
        method = inspect.getattr_static(kind, name)
        if name[0] != "_" and inspect.isfunction(method):
            setattr(kind, name, answering(method))
        elif name[0] != "_" and isinstance(method, property) and method.fget is not None:
            setattr(kind, name, property(answering(method.fget)))
    return kind


def _not_callable_so(function: Any, options: dict[str, Any], error: TypeError) -> CedarError:
    """The error for a call that Python refused."""
    name = function.__name__
    known = [key for key in inspect.signature(function).parameters if key != "self"]
    strange = next((key for key in options if key not in known), None)
    if strange is None:
        what = str(error).partition("() ")[2]
        return UsageError(f"{name}() {what}", site=user_site(), fix=CALLS.get(name, f"write {_usage(function)}"))
    answer = KEYWORDS.get(f"{name}.{strange}") or KEYWORDS.get(strange)
    near = get_close_matches(strange, known, 1)
    fix = f"here that is {answer}" if answer else f"did you mean {near[0]}=?" if near else f"write {_usage(function)}"
    return UsageError(f"{name}() has no option {strange!r}", site=user_site(), fix=fix)


def _usage(function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for name, p in signature.parameters.items() if name != "self"]
    usage = f"{function.__name__}{signature.replace(parameters=parameters, return_annotation=signature.empty)}"
    return usage if len(usage) <= 160 else f"{function.__name__}(name=value, ...): its options are given by name"
