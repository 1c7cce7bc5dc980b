"""Read rows from an iterator that a user's function creates for each pass over the data."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from cedar.core.errors import CedarError, PipelineError, raised, user_site
from cedar.datasets.base import BaseSource, Chunk, Split
from cedar.datasets.rows import SAMPLE, Origin, RowTypes, build_rows, copied_if_dict, fix_types
from cedar.operators.base import Schema

_CHUNK_ROWS = 1024


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
        ahead = self.__dict__.pop("_ahead", _LastIterator(_no_iterator)).ref()
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
        ahead = self.__dict__.get("_ahead", _LastIterator(_no_iterator)).ref()
        if ahead and ahead[0] == here:
            return list(ahead[2])
        iterator = self._start(origin)
        items = self._next(iterator, SAMPLE, origin, 0)
        self._types(items, origin)
        self.__dict__["_ahead"] = _LastIterator(lambda: (here, iterator, items))  # check the pid, as forks inherit this
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
        if last is not None and last.ref() is iterator:
            raise PipelineError(
                f"{self.describe()} returned the same iterator twice",
                fix="create a new iterator in each call, since each pass reads the data from its beginning",
            )
        try:
            self.__dict__["_last"] = _LastIterator(weakref.ref(iterator))
        except TypeError:  # list iterators and map objects do not support weak references
            self.__dict__["_last"] = _LastIterator(lambda: iterator)

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

    def describe(self) -> str:
        name = getattr(self.make_iterator, "__qualname__", type(self.make_iterator).__name__)
        return f"from_iterable({name.rpartition('.')[2] if '<lambda>' not in name else '<lambda>'})"

    def __repr__(self) -> str:
        return self.describe()


class _LastIterator:
    """A reference to the iterator of the last pass; pickling drops the iterator."""

    def __init__(self, ref: Callable[[], Any]) -> None:
        self.ref = ref

    def __reduce__(self) -> tuple[Any, ...]:
        return _LastIterator, (_no_iterator,)


def _no_iterator() -> None:
    return None


def from_iterable(
    make_iterator: Callable[[], Iterable[Any]], *, dtypes: Mapping[str, Any] | None = None
) -> IterableSource:
    """Return the source that ``cedar.from_iterable`` uses.

    Args:
        make_iterator: called once per pass; returns an iterator over the rows, which must be the same in each pass.
            Rows are dicts, or tuples and single values as in ``from_items``.
        dtypes: types of columns that the first 64 rows do not determine.

    Raises:
        PipelineError: ``make_iterator`` is an iterator instead of a function that returns one.

    Examples:
        >>> def count():
        ...     for i in range(3):
        ...         yield {"x": i}
        >>> source = from_iterable(count)
        >>> [chunk.columns["x"].to_pylist() for split in source.splits() for chunk in source.read(split)]
        [[0, 1, 2]]
    """
    if not callable(make_iterator):
        kind = type(make_iterator).__name__
        if isinstance(make_iterator, Iterator):
            problem = f"from_iterable got {kind}, an iterator, which can be read once only"
            fix = "give the function that makes it: from_iterable(make), not from_iterable(make())"
        else:
            problem = f"from_iterable takes a function that returns an iterator, not {kind}"
            iterable = isinstance(make_iterator, Iterable)
            fix = "use from_iterable(lambda: iter(data)), or from_items for a list" if iterable else "give a function"
        raise PipelineError(problem, site=user_site(), fix=fix)
    return IterableSource(make_iterator, None if dtypes is None else dict(dtypes))
