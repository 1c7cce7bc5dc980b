"""Functions that create a pipeline: from sources, or by combining several pipelines."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from cedar.core.errors import CedarError, PipelineError, invalid_call, user_site
from cedar.core.foreign import with_suggestions
from cedar.core.remote import as_options
from cedar.datasets.base import Read
from cedar.operators.base import Operator
from cedar.operators.concat import Concat
from cedar.operators.expressions import flattened
from cedar.operators.mix import Mix
from cedar.pipeline.core import Pipeline
from cedar.plan.graph import Node

if TYPE_CHECKING:
    import pyarrow as pa

StorageOptions = Mapping[str, Any] | None
Paths = Any  # str | Path | a list of them


def start(make: Callable[[], Any], storage_options: StorageOptions = None) -> Pipeline:
    site = user_site()
    try:
        source, stored = make(), as_options(storage_options)
        return Pipeline(Node(Read(dataclasses.replace(source, storage_options=stored) if stored else source), (), site))
    except CedarError as error:
        error.site = error.site or site
        raise


def read_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    schema: Mapping[str, Any] | pa.Schema | None = None,
    verify: bool = False,
    manifest: str | os.PathLike[str] | None = None,
    storage_options: StorageOptions = None,
) -> Pipeline:
    """Read the rows of Parquet files. ``paths`` is any fsspec URL, glob or directory, or a list of them. All readers
    expand ``{a,b}`` and ``{000..127}`` in a path to several paths.

    Folders such as ``day=2024-01-31/`` become columns. They have integers, dates or booleans if all values parse as
    such, else strings. ``schema``, a dict of names and types or an Arrow schema, overrides the types of columns from
    folders and files. Files may then differ in these columns: a file without a column, or with only nulls in it, yields
    nulls. A value that does not fit the type is an error.

    ``verify`` checks page checksums in files that have them. Without it, a flipped bit may go unnoticed.

    ``manifest`` is the path or URL of a file that stores the file listing and the footers. The first start creates it;
    later starts on all ranks read it instead of the files. New files are ignored until ``cedar data manifest`` updates
    the manifest; reading a file that changed since then is an error.

    Raises:
        SourceError: no file matches, or the files' schemas differ, which may only be found while reading.
        PipelineError: ``manifest`` is not a manifest, or was written for other paths.

    Examples:
        >>> import cedar, tempfile, pyarrow as pa, pyarrow.parquet as pq
        >>> path = tempfile.mkdtemp() + "/a.parquet"
        >>> pq.write_table(pa.table({"x": [1, 2]}), path)
        >>> cedar.read_parquet(path).count()
        2
    """
    from cedar.datasets import parquet

    return start(
        lambda: parquet.read_parquet(paths, columns=columns, schema=schema, verify=verify, manifest=manifest),
        storage_options,
    )


def read_files(paths: Paths, *, storage_options: StorageOptions = None) -> Pipeline:
    """Read files as rows with columns path and bytes, sorted by path, also if ``paths`` is a list in another order.

    So do not zip it with labels. To read the files that a table lists, map over the column of paths:
    ``cedar.read_csv("labels.csv").map(lambda path: Path(path).read_bytes(), "path", into="bytes")``.

    Examples:
        >>> import cedar, tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.bin").write_bytes(b"hi")
        >>> [row["bytes"] for row in cedar.read_files(str(folder / "*.bin"))]
        [b'hi']
    """
    from cedar.datasets import files

    return start(lambda: files.read_files(paths), storage_options)


def read_text(
    paths: Paths, *, errors: Literal["strict", "replace"] = "strict", storage_options: StorageOptions = None
) -> Pipeline:
    r"""Read one row per line: path, line (0-based), text (without its newline).

    ``errors`` sets how to treat bytes that are not UTF-8: "strict" raises, "replace" substitutes U+FFFD.

    Examples:
        >>> import cedar, tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
        >>> _ = path.write_text("one\ntwo")
        >>> [row["text"] for row in cedar.read_text(str(path))]
        ['one', 'two']
    """
    from cedar.datasets import text

    return start(lambda: text.read_text(paths, errors=errors), storage_options)


def read_csv(
    paths: Paths,
    *,
    delimiter: str = ",",
    header: bool = True,
    column_names: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    null_values: Sequence[str] | None = None,
    quoting: bool = True,
    columns: Sequence[str] | None = None,
    storage_options: StorageOptions = None,
) -> Pipeline:
    r"""Read the rows of CSV files. Types come from the first 4 MiB of the first file with rows, or from ``dtypes``.

    Args:
        paths: any fsspec URL or glob, or a list of them; compressed files are decompressed.
        delimiter: the character between fields.
        header: whether the first line has the column names.
        column_names: names of the columns for ``header=False``; by default "column_1" and so on.
        dtypes: types of some columns. Others are numeric or boolean if their first 4 MiB of values are, else strings.
        null_values: further strings that mean null; an empty field always does.
        quoting: whether fields may be quoted and contain line breaks. If True, one task reads each file from its start.
            If False, several workers can read ranges of an uncompressed file.
        columns: names of the columns to read; by default all.
        storage_options: options of the filesystem; see docs/storage.md.

    Examples:
        >>> import cedar, tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
        >>> _ = path.write_text("x,y\n1,a\n")
        >>> list(cedar.read_csv(str(path)))
        [{'x': 1, 'y': 'a'}]
    """
    from cedar.datasets import csv

    return start(
        lambda: csv.read_csv(
            paths, delimiter=delimiter, header=header, column_names=column_names, dtypes=dtypes,
            null_values=null_values, quoting=quoting, columns=columns,
        ),
        storage_options,
    )  # fmt: skip


def read_jsonl(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    storage_options: StorageOptions = None,
) -> Pipeline:
    r"""Read the rows of JSON Lines files. Types come from the first 64 rows, or from ``dtypes``.

    Args:
        paths: any fsspec URL or glob, or a list of them; compressed files are decompressed.
        columns: names of the columns to read; by default all. The values of other keys are not checked.
        dtypes: types of some columns. In a column of type ``str``, values that are not strings become JSON text.
        storage_options: options of the filesystem; see docs/storage.md.

    Examples:
        >>> import cedar, tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.jsonl"
        >>> _ = path.write_text('{"x": 1}\n{"x": {"y": 2}}\n')
        >>> list(cedar.read_jsonl(str(path), dtypes={"x": str}))
        [{'x': '1'}, {'x': '{"y": 2}'}]
    """
    from cedar.datasets import jsonl

    return start(lambda: jsonl.read_jsonl(paths, columns=columns, dtypes=dtypes), storage_options)


def read_arrow(
    paths: Paths, *, columns: Sequence[str] | None = None, storage_options: StorageOptions = None
) -> Pipeline:
    """Read the rows of Arrow IPC files (.arrow, .feather).

    Examples:
        >>> import cedar, tempfile, pyarrow as pa, pyarrow.feather as feather
        >>> path = tempfile.mkdtemp() + "/a.feather"
        >>> feather.write_feather(pa.table({"x": [1]}), path)
        >>> cedar.read_arrow(path).count()
        1
    """
    from cedar.datasets import arrow

    return start(lambda: arrow.read_arrow(paths, columns=columns), storage_options)


def read_tar(
    paths: Paths,
    *,
    missing: Literal["error", "null"] = "error",
    dot: Literal["first", "last"] = "first",
    storage_options: StorageOptions = None,
) -> Pipeline:
    """Read webdataset shards as rows: key, and a bytes column per file extension.

    Args:
        paths: any fsspec URL or glob, or a list of them; ``{000..127}`` expands to a range of numbers.
        missing: "error" raises if the extensions of a sample differ from those of the first sample. "null" yields nulls
            for extensions that a sample lacks; the columns are the extensions of the first 256 samples.
        dot: which dot of a file name starts the extension. With "last", ``a.b.jpg`` has the key ``a.b``.
        storage_options: options of the filesystem; see docs/storage.md.

    Raises:
        SourceError: while reading, if a shard is damaged, or the extensions of a sample differ from those of the first
            sample (with missing="null": a sample has an extension that the first 256 samples lack).

    Examples:
        >>> import cedar, io, tarfile, tempfile
        >>> path = tempfile.mkdtemp() + "/a.tar"
        >>> with tarfile.open(path, "w") as tar:
        ...     info = tarfile.TarInfo("0001.txt"); info.size = 2
        ...     tar.addfile(info, io.BytesIO(b"hi"))
        >>> list(cedar.read_tar(path))
        [{'key': '0001', 'txt': b'hi'}]
    """
    from cedar.datasets import tar

    return start(lambda: tar.read_tar(paths, missing=missing, dot=dot), storage_options)


def from_items(rows: Any, *, names: Sequence[str] | None = None, dtypes: Mapping[str, Any] | None = None) -> Pipeline:
    """Create rows from a list of dicts or a map-style dataset (``__len__`` with ``__getitem__`` or ``__getitems__``).

    Types come from the first 64 rows, or from ``dtypes``.

    Args:
        rows: the items. By default the elements of a tuple become columns "0", "1", ..., and an item that is neither
            dict nor tuple becomes the column "item".
        names: column names for items that are tuples, lists or single values.
        dtypes: types of columns that cannot be inferred from the first 64 rows.

    Raises:
        PipelineError: ``rows`` has another type; the error suggests a function for it.

    Examples:
        >>> import cedar
        >>> list(cedar.from_items([{"x": 1}]))
        [{'x': 1}]
        >>> list(cedar.from_items([(0.5, 1)], names=("x", "label")))
        [{'x': 0.5, 'label': 1}]
    """
    from cedar.datasets import items

    return start(lambda: items.from_items(rows, names=names, dtypes=dtypes))


def from_iterable(make_iterator: Callable[[], Iterator[Any]], *, dtypes: Mapping[str, Any] | None = None) -> Pipeline:
    """Create rows from the iterator that ``make_iterator()`` returns, as one split. A resume reads and skips old rows.

    Examples:
        >>> import cedar
        >>> cedar.from_iterable(lambda: iter([{"x": 1}, {"x": 2}])).count()
        2
    """
    from cedar.datasets import items

    return start(lambda: items.from_iterable(make_iterator, dtypes=dtypes))


def from_arrow(table: Any) -> Pipeline:
    """Create a pipeline from an Arrow table.

    Examples:
        >>> import cedar, pyarrow as pa
        >>> cedar.from_arrow(pa.table({"x": [1, 2]})).count()
        2
    """
    from cedar.datasets import table as tables

    return start(lambda: tables.from_arrow(table))


def from_polars(frame: Any) -> Pipeline:
    """Create a pipeline from a polars DataFrame.

    Examples:
        >>> import cedar, polars as pl
        >>> cedar.from_polars(pl.DataFrame({"x": [1, 2]})).count()
        2
    """
    from cedar.datasets import table

    return start(lambda: table.from_polars(frame))


def from_pandas(frame: Any) -> Pipeline:
    """Create a pipeline from a pandas DataFrame. Named index levels become columns; NaN and None become null.

    Examples:
        >>> import cedar, pandas as pd
        >>> cedar.from_pandas(pd.DataFrame({"x": [1, 2]})).count()
        2
    """
    from cedar.datasets import table

    return start(lambda: table.from_pandas(frame))


def from_numpy(arrays: Mapping[str, Any]) -> Pipeline:
    """Create rows from a dict of arrays by column, each of shape (rows, ...), or from ``numpy.load`` of an .npz file.

    Examples:
        >>> import cedar, numpy as np
        >>> p = cedar.from_numpy({"image": np.zeros((4, 28, 28), np.uint8), "label": np.arange(4)})
        >>> next(iter(p.batch(4)))["image"].shape
        (4, 28, 28)
    """
    from cedar.datasets import table

    return start(lambda: table.from_numpy(arrays))


def from_huggingface(dataset: Any) -> Pipeline:
    """Create a pipeline from a Hugging Face ``datasets.Dataset``, with its transform and format applied.

    Images and audio become structs of bytes and path, whether the dataset stores the files or only their paths.

    Examples:
        >>> import cedar
        >>> cedar.from_huggingface([1])
        Traceback (most recent call last):
        ...
        cedar.PipelineError: ...
    """
    from cedar.datasets import table

    source = table.from_huggingface(dataset)
    pipeline = start(lambda: source)
    for name, kind in table.columns_without_bytes(dataset, source).items():
        pipeline = pipeline.map(table.with_bytes, name, dtype=kind)
    return pipeline


def from_source(source: Any) -> Pipeline:
    """Create a pipeline from your own source: an object with ``splits()`` and ``read(split)``.

    Examples:
        >>> import cedar
        >>> class Numbers:
        ...     def splits(self): return [0, 10]
        ...     def read(self, split): return [[{"x": split}, {"x": split + 1}]]
        >>> [row["x"] for row in cedar.from_source(Numbers())]
        [0, 1, 10, 11]
    """
    from cedar.datasets import custom

    return start(lambda: custom.adapt(source))


def _join(operator: Callable[[], Operator], pipelines: Sequence[Any], function: str) -> Pipeline:
    site = user_site()
    for pipeline in pipelines:
        if not isinstance(pipeline, Pipeline):
            what = f"{function} takes pipelines, not {type(pipeline).__name__}"
            raise PipelineError(what, site=site, fix="read it first, such as cedar.from_arrow(table)")
    if not pipelines:
        raise PipelineError(f"{function} needs at least one pipeline", site=site)
    try:
        return Pipeline(Node(operator(), tuple(p.given for p in pipelines), site))
    except CedarError as error:
        error.site = error.site or site
        raise


def mix(
    parts: Sequence[tuple[Pipeline, float | Callable[[int], float]]]
    | Mapping[str, tuple[Pipeline, float | Callable[[int], float]]],
    *,
    seed: int = 0,
    stop: Literal["first", "all"] = "first",
    local: bool = False,
) -> Pipeline:
    """Interleave several pipelines by weight. The position in the mixed stream decides which pipeline supplies a row.

    A weight may be a function of the loader's step, counted over all epochs. ``loader.update_mix`` changes weights.

    Args:
        parts: pairs of a pipeline and its weight, or a dict of such pairs by name.

    Examples:
        >>> import cedar
        >>> a, b = (cedar.from_items([{"x": v}] * 5) for v in (0, 1))
        >>> cedar.mix([(a, 0.5), (b, 0.5)], stop="all").count()
        10
    """
    names = tuple(map(str, parts)) if isinstance(parts, Mapping) else ()
    given: Any = parts.values() if isinstance(parts, Mapping) else parts
    pairs = [given] if isinstance(given, Pipeline) or not isinstance(given, Iterable) else list(given)
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):  # a pipeline runs if unpacked
        raise invalid_call("mix takes a list of pairs (pipeline, weight)", fix="mix([(a, 0.5), (b, 0.5)])")
    weights = tuple(weight for _, weight in pairs)
    return _join(lambda: Mix(weights, seed, stop, local, names), [pipeline for pipeline, _ in pairs], "mix")


def zip(*pipelines: Pipeline | Iterable[Pipeline], local: bool = False) -> Pipeline:
    """Combine the columns of several pipelines, or of a list of them, row by row, until the shortest ends.

    Examples:
        >>> import cedar
        >>> list(cedar.zip(cedar.from_items([{"x": 1}]), cedar.from_items([{"y": 2}])))
        [{'x': 1, 'y': 2}]
    """
    from cedar.operators.zip import Zip

    return _join(lambda: Zip(local), list(flattened(pipelines)), "zip")


def concat(*pipelines: Pipeline | Iterable[Pipeline]) -> Pipeline:
    """Concatenate several pipelines, or a list of them.

    Examples:
        >>> import cedar
        >>> cedar.concat(cedar.from_items([{"x": 1}]), cedar.from_items([{"x": 2}])).count()
        2
    """
    return _join(Concat, list(flattened(pipelines)), "concat")


for _name, _function in list(globals().items()):
    if inspect.isfunction(_function) and _function.__module__ == __name__ and _name[0] != "_":
        globals()[_name] = with_suggestions(_function)
