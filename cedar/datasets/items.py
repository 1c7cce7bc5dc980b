"""Read Python objects as rows: a list, a map-style dataset, or the iterator that a function creates for each pass.

A map-style dataset has ``__len__``, and ``__getitem__`` or ``__getitems__``.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from cedar.core.columns import UNKNOWN, nbytes
from cedar.core.errors import CedarError, PipelineError, RowError, invalid_call, raised
from cedar.datasets.base import BaseSource, Chunk, Split, numbered_rows, once
from cedar.datasets.rows import SAMPLE, Origin, RowTypes, build_rows, copied_if_dict, fix_types, names_of
from cedar.datasets.split_table import SplitTable
from cedar.operators.base import Schema
from cedar.operators.marks import BlockKilled, making

_CHUNK_ROWS = 1024
_LIST_SPLIT = 1024
_DATASET_SPLIT = 32  # an item may be a decoded image, or take seconds to load
_LARGEST_SPLIT = 256  # maximum rows per split, for small items in a large dataset
_FEW_SPLITS = 64  # splits grow only as long as a dataset has at least this many
_SPLIT_BYTES = 1 << 20
_SUGGESTIONS = {  # package and class of an unsupported argument -> what to use instead
    ("polars", "DataFrame"): "cedar.from_polars(frame)",
    ("polars", "LazyFrame"): "cedar.from_polars(frame.collect())",
    ("pyarrow", "Table"): "cedar.from_arrow(table)",
    ("pyarrow", "RecordBatch"): "cedar.from_arrow(batch)",
    ("pandas", "DataFrame"): "cedar.from_pandas(frame)",
    ("datasets", "DatasetDict"): 'one of its parts, cedar.from_huggingface(dataset["train"])',
    ("builtins", "dict"): "a list of rows; for a dict of columns, cedar.from_numpy(columns)",
    ("builtins", "set"): "a list, whose order is fixed",
    ("builtins", "str"): "a list of rows, or cedar.read_text(path)",
    ("builtins", "bytes"): "a list of rows",
    ("cedar", "Pipeline"): "the pipeline itself, which already has rows",
    ("cedar", "Loader"): "the pipeline from which the loader was created",
    ("builtins", "generator"): "cedar.from_iterable(function), with the function that makes the generator",
}


@dataclass(frozen=True, repr=False, eq=False)
class ItemsSource(BaseSource):
    """Rows from a list, or rows that a dataset creates one by one in Python."""

    items: Any
    dtypes: Mapping[str, Any] | None = None
    names: tuple[str, ...] | None = None
    uses_getitems: bool = True  # whether to call ``__getitems__`` if the dataset has it
    cuts_splits: ClassVar[bool] = True
    holds_objects: ClassVar[bool] = True
    reports_bad_rows: ClassVar[bool] = True

    @property
    def _in_memory(self) -> bool:
        """Return whether the rows are in memory: a list or tuple whose class does not override ``__getitem__``."""
        own = getattr(type(self.items), "__getitem__", None)
        return own in (list.__getitem__, tuple.__getitem__)

    @property
    def own_code(self) -> bool:
        return not self._in_memory

    @once
    def _length(self) -> int:
        return len(self.items)

    @once
    def _types(self) -> RowTypes:
        return fix_types(self._sample, self._origin, 0, self.dtypes)

    @property
    def _sample(self) -> list[Any]:
        """Return the first items, except items that fail; failures are handled when the split is read."""
        stop = min(SAMPLE, self._length)
        try:
            return self._fetch(0, stop)
        except RowError:
            return [self._first, *self._fetch_valid_items(1, stop)]

    def _fetch_valid_items(self, start: int, stop: int) -> Iterator[Any]:
        """Yield items in order; skip items that fail."""
        for number in range(start, stop):
            with suppress(RowError):
                yield self._fetch(number, number + 1)[0]

    @once
    def _origin(self) -> Origin:
        return Origin(self.describe())

    def splits(self) -> SplitTable:
        width = self.row_bytes or 0
        most = max(1, int(_SPLIT_BYTES / max(width, 1)))
        size = min(_LIST_SPLIT, most) if self._in_memory else _split_size(self._length, width)
        return SplitTable.from_runs(self._length, size, width)

    row_keys = staticmethod(numbered_rows)

    def read(self, split: Split) -> Iterator[Chunk]:
        types = self._types
        assert split.stop is not None
        items = self._fetch(split.start, split.stop)
        yield Chunk(build_rows(items, types, self._origin, split.start), length=len(items))

    def read_valid_rows(self, split: Split) -> Iterator[tuple[Chunk, dict[int, RowError]]]:
        assert split.stop is not None
        items: dict[int, Any] = {}
        failed: dict[int, RowError] = {}
        for number in range(split.start, split.stop):
            try:
                (items[number],) = self._fetch(number, number + 1)
            except RowError as error:
                failed[number] = error
        try:
            columns = build_rows(list(items.values()), self._types, self._origin, 0)
        except RowError:  # build rows one by one to find the rows that do not fit the column types
            for number, item in list(items.items()):
                try:
                    build_rows([item], self._types, self._origin, number)
                except RowError as error:
                    del items[number]
                    failed[number] = error
            columns = build_rows(list(items.values()), self._types, self._origin, 0)
        yield Chunk(columns, np.array(list(items), dtype=np.int64), len(items)), failed

    def _fetch(self, start: int, stop: int) -> list[Any]:
        items = self._load(start, stop)
        if self.names is None:
            return items
        return [self._named(item, start + i) for i, item in enumerate(items)]

    def _named(self, item: Any, index: int) -> dict[str, Any]:
        assert self.names is not None
        parts = item if isinstance(item, (tuple, list)) else (item,)
        if isinstance(item, Mapping) or len(parts) != len(self.names):
            shape = "a dict" if isinstance(item, Mapping) else f"{len(parts)} value(s)"
            raise self._origin.error(f"item {index} is {shape}, not {len(self.names)} values for {self.names}", index)
        return dict(zip(self.names, parts, strict=True))

    def _load(self, start: int, stop: int) -> list[Any]:
        if self._in_memory:
            return list(self.items[start:stop])
        getitems = getattr(self.items, "__getitems__", None) if self.uses_getitems else None
        if getitems is not None:
            try:
                if stop - start == 1:
                    making(start)
                items = list(getitems(list(range(start, stop))))
            except raised() as error:  # user code
                if not hasattr(self.items, "__getitem__"):
                    raise self._failed(start, error) from error
            else:
                if len(items) != stop - start:
                    raise self._origin.error(f"__getitems__ returned {len(items)} of {stop - start} items", start)
                return items
        return [self._item(i) for i in range(start, stop)]

    def _item(self, index: int) -> Any:
        try:
            making(index)
            return copied_if_dict(self.items[index])
        except raised() as error:  # user code
            raise self._failed(index, error) from error

    def _failed(self, index: int, error: BaseException) -> Exception:
        name = type(self.items).__name__
        policy = "Skip(blocks=True)" if isinstance(error, BlockKilled) else "Skip(...)"
        fix = f"fix the dataset, or give the loader on_error=cedar.{policy} to drop such items and continue"
        return self._origin.error(f"{name}[{index}] raised {type(error).__name__}: {error}", index, fix)

    def schema(self) -> Schema:
        """Return names and types for a list; for a dataset, only the names in item 0, since loading may be slow."""
        if self._length == 0 and self.dtypes is None:
            return None
        if self._length == 0 or self._in_memory:
            return dict(self._types.kinds)
        return dict.fromkeys(names_of(self._first), UNKNOWN)

    @once
    def _first(self) -> Any:
        """Return the first item that loads without an error; if the first 64 all fail, raise the error of item 0."""
        for item in self._fetch_valid_items(0, min(SAMPLE, self._length)):
            return item
        return self._fetch(0, 1)[0]

    @once
    def row_bytes(self) -> float | None:
        """Return the size of the first item in bytes, rounded up to a power of two; None without items."""
        if not self._length:
            return None
        first = [self._first]
        columns = build_rows(first, fix_types(first, self._origin, 0, self.dtypes), self._origin, 0)
        size = sum(map(nbytes, columns.values()))
        return float(1 << max(3, (size - 1).bit_length()))

    @property
    def per_row(self) -> bool:
        return not self._in_memory

    def digest(self) -> str:
        return f"{self._length} items"

    def describe(self) -> str:
        return f"from_items({type(self.items).__name__} of {self._length})"


def _split_size(length: int, width: float) -> int:
    """Return the rows per split of a dataset: more for many small items, since each split becomes a task.

    Splits of large items are small, so that a window of a shuffle mixes items from many parts of the dataset.
    """
    size = max(1, min(_DATASET_SPLIT, int(_SPLIT_BYTES / max(width, 1))))
    while size < _LARGEST_SPLIT and 2 * size * max(width, 1) <= _SPLIT_BYTES and 2 * size * _FEW_SPLITS <= length:
        size *= 2
    return size


def from_items(
    rows: Any, *, names: Sequence[str] | None = None, dtypes: Mapping[str, Any] | None = None
) -> ItemsSource:
    """Return the source that ``cedar.from_items`` uses."""
    if names is not None:
        good = not isinstance(names, str) and len(names) and all(isinstance(name, str) for name in names)
        if not good or len(set(names)) < len(names):
            raise invalid_call(f"names={names!r}: give one name per part of an item", fix='names=("x", "y")')
        names = tuple(names)
    suggestion = _suggestion(rows)
    if suggestion is not None:
        raise invalid_call(
            f"from_items takes a list or a dataset with __len__ and __getitem__, not {type(rows).__name__}",
            fix=f"use {suggestion}",
        )
    return ItemsSource(rows, None if dtypes is None else dict(dtypes), names)


def _suggestion(rows: Any) -> str | None:
    """Return what to use instead of ``rows``; None if it is a list or a map-style dataset."""
    kind = type(rows)
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__}
    if other := _SUGGESTIONS.get((kind.__module__.partition(".")[0], kind.__name__)):
        return other
    if bases & {("torch", "IterableDataset"), ("datasets", "IterableDataset")}:
        return "cedar.from_iterable(lambda: iter(dataset)), or better the files that it reads"
    if bases & {("torch", "DataLoader"), ("torchdata", "StatefulDataLoader")}:
        return "its dataset, cedar.from_items(loader.dataset), and batch() and shuffle() of the pipeline"
    if hasattr(rows, "__len__") and (hasattr(rows, "__getitem__") or hasattr(rows, "__getitems__")):
        return None
    if hasattr(rows, "__getitem__") and not hasattr(rows, "__iter__"):
        return "a dataset that has __len__ as well: it says how many items there are"
    return "cedar.from_iterable(make_iterator) for what can only be iterated"


@dataclass(frozen=True, repr=False, eq=False)
class IterableSource(BaseSource):
    """A source with a single split. Every read starts at the beginning, so resuming reads and skips earlier rows."""

    make_iterator: Callable[[], Iterable[Any]]
    dtypes: Mapping[str, Any] | None = None
    one_pass: ClassVar[bool] = True

    def splits(self) -> list[Split]:
        return [Split(streaming=True)]

    def read(self, split: Split) -> Iterator[Chunk]:
        origin = Origin(self.describe())
        row, size = 0, SAMPLE
        ahead = self.__dict__.pop("_ahead", None)
        iterator, items = ahead[1:] if ahead and ahead[0] == os.getpid() else (self._start(origin), [])
        try:
            items = items or self._next(iterator, size, origin, row)
            while items:
                types = self._types(items, origin)
                yield Chunk(build_rows(items, types, origin, row), length=len(items))
                row += len(items)
                size = min(2 * size, _CHUNK_ROWS)  # small chunks first, so that the first batch arrives soon
                items = self._next(iterator, size, origin, row)
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    def schema(self) -> Schema:
        """Return the schema of the first rows, which the next pass reuses; None without ``dtypes``."""
        if self.dtypes is None:
            return None
        if "_fixed" not in self.__dict__:
            try:
                self._look_ahead()
            except CedarError:  # the run will report the error
                return None
        return dict(self.__dict__["_fixed"].kinds)

    def first(self) -> Chunk:
        """Return up to 64 of the first rows; the next pass starts with these rows and does not read them again."""
        items, origin = self._look_ahead(), Origin(self.describe())
        return Chunk(build_rows(items, self._types(items, origin), origin, 0), length=len(items))

    def _look_ahead(self) -> list[Any]:
        here, origin = os.getpid(), Origin(self.describe())
        ahead = self.__dict__.get("_ahead")
        if ahead and ahead[0] == here:
            return list(ahead[2])
        iterator = self._start(origin)
        items = self._next(iterator, SAMPLE, origin, 0)
        self._types(items, origin)
        self.__dict__["_ahead"] = here, iterator, items  # check the pid, as forks inherit this
        return items

    def _start(self, origin: Origin) -> Iterator[Any]:
        try:
            iterator = iter(self.make_iterator())
        except raised() as error:  # user code
            fault = f"make_iterator raised {type(error).__name__}: {error}"
            raise origin.error(fault, 0, "fix the function given to from_iterable") from error
        self._reject_repeated(iterator)
        return iterator

    def _reject_repeated(self, iterator: Iterator[Any]) -> None:
        """Reject an iterator that a previous pass used: it continues where it stopped, so this pass would lose rows."""
        last = self.__dict__.get("_last")
        if last is not None and last() is iterator:
            raise PipelineError(
                f"{self.describe()} returned the same iterator twice",
                fix="create a new iterator in each call, since each pass reads the data from its beginning",
            )
        try:
            self.__dict__["_last"] = weakref.ref(iterator)
        except TypeError:  # list iterators and map objects do not support weak references
            self.__dict__["_last"] = lambda: iterator

    def _next(self, iterator: Iterator[Any], size: int, origin: Origin, row: int) -> list[Any]:
        items: list[Any] = []
        try:
            items.extend(map(copied_if_dict, islice(iterator, size)))
        except CedarError:
            raise
        except raised() as error:  # user code
            fault = f"the iterator raised {type(error).__name__}: {error}"
            raise origin.error(fault, row + len(items), "fix the iterator, or let it skip such items") from error
        return items

    def _types(self, items: list[Any], origin: Origin) -> RowTypes:
        known: RowTypes | None = self.__dict__.get("_fixed")
        if known is None:
            known = fix_types(items[:SAMPLE], origin, 0, self.dtypes)
            self.__dict__["_fixed"] = known
        return known

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_ahead", "_last")}

    def describe(self) -> str:
        name = getattr(self.make_iterator, "__qualname__", type(self.make_iterator).__name__)
        return f"from_iterable({name.rpartition('.')[2] if '<lambda>' not in name else '<lambda>'})"


def from_iterable(
    make_iterator: Callable[[], Iterable[Any]], *, dtypes: Mapping[str, Any] | None = None
) -> IterableSource:
    """Return the source that ``cedar.from_iterable`` uses."""
    if not callable(make_iterator):
        kind = type(make_iterator).__name__
        if isinstance(make_iterator, Iterator):
            problem = f"from_iterable got {kind}, an iterator, which can be read once only"
            fix = "give the function that makes it: from_iterable(make), not from_iterable(make())"
        else:
            problem = f"from_iterable takes a function that returns an iterator, not {kind}"
            iterable = isinstance(make_iterator, Iterable)
            fix = "use from_iterable(lambda: iter(data)), or from_items for a list" if iterable else "give a function"
        raise invalid_call(problem, fix=fix)
    return IterableSource(make_iterator, None if dtypes is None else dict(dtypes))
