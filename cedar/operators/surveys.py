"""Surveys: passes over all rows that an operator needs before its first row, for example to find duplicates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Generic, TypeVar

import pyarrow as pa

from cedar.core.arrow import numbers
from cedar.core.errors import SourceError
from cedar.core.forks import Lock
from cedar.core.skip import Skip
from cedar.store.folder import open_entry

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Survey(Generic[T]):
    """A pass over all rows, which the coordinator runs once per policy; workers receive only its result.

    Args:
        make: a function of the policy for rows that fail, which runs the pass and returns its result.
        on_error: the policy of the current run.

    Examples:
        >>> Survey(lambda on_error: 3).under(None).value
        3
    """

    make: Callable[[Skip | None], T] = field(repr=False)
    on_error: Skip | None = None
    _results: dict[Skip | None, T] = field(default_factory=dict, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def under(self, on_error: Skip | None) -> Survey[T]:
        """Return the survey with the policy of one run."""
        return replace(self, on_error=on_error)

    @property
    def value(self) -> T:
        """The result of the pass."""
        with self._lock:
            if self.on_error not in self._results:
                self._results[self.on_error] = self.make(self.on_error)
            return self._results[self.on_error]

    def __reduce__(self) -> tuple[Any, ...]:
        return known, (self.value,)


class Surveyed:
    """An operator whose kernel needs to know something about all rows, which a survey collects when a run begins."""

    survey: Survey[Any]


def known(value: T) -> Survey[T]:
    """Return a survey with a known result, for which no pass runs."""
    return Survey[T](lambda _: value)


@dataclass(frozen=True)
class StoredTable:
    """A table in an Arrow file on this machine; each column has at most one chunk.

    Raises:
        SourceError: the file cannot be read, for example by a worker on another machine.
    """

    path: str

    @property
    def table(self) -> Any:
        """The ``pyarrow.Table``, backed by the mapped file."""
        return _opened(self.path)

    def column(self, name: str) -> pa.Array:
        """Return a column as one array."""
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)

    def numbers(self, name: str) -> Any:
        """Return a numeric column as a read-only array."""
        return numbers(self.column(name))


@lru_cache(maxsize=64)
def _opened(path: str) -> Any:
    try:
        with pa.ipc.open_stream(pa.py_buffer(open_entry(path).body)) as reader:
            return reader.read_all()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(
            f"the stored lookup table cannot be read: {path}: {error}",
            done="it was written by the process that runs the pipeline, on its machine",
            fix="let workers on other machines see that folder: set XDG_CACHE_HOME to one that all share",
        ) from error
