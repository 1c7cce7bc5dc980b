"""Surveys: passes over all rows that an operator needs before its first row, for example to find duplicates.

A result that is a table is an entry of the user's store, which workers, ranks and later runs share. Its name is a
digest of everything that the table depends on. If that cannot be identified, the table is saved in a temporary folder
until the process ends.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, Generic, TypeVar

import pyarrow as pa

from cedar.core.columns import numbers
from cedar.core.errors import Skip, SourceError, WorkerError
from cedar.core.process import Lock
from cedar.store.entry import opened, table_body, table_of
from cedar.store.files import remove_tree, temporary_folder
from cedar.store.folder import Folder
from cedar.store.keep import load, save, user_place
from cedar.store.place import SUFFIX, name_of

T = TypeVar("T")
_KIND = "tables"


@dataclass(frozen=True, eq=False)
class Survey(Generic[T]):
    """A pass over all rows, which the coordinator runs once per policy; workers receive only its result.

    Args:
        make: a function of the policy for rows that fail, which runs the pass and returns its result.
        on_error: the policy of the current run.
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
        with pa.memory_map(path) as source:  # processes that map the same file share its memory
            name = os.path.basename(path).removesuffix(SUFFIX)
            body = opened(source.read_buffer(), name, {}, checked=True).body
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            return reader.read_all()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(
            f"the stored lookup table cannot be read: {path}: {error}",
            done="it was written by the process that runs the pipeline, on its machine",
            fix="let workers on other machines see that folder: set XDG_CACHE_HOME to one that all share",
        ) from error


def kept_table(key: str | None, make: Callable[[], pa.Table]) -> StoredTable:
    """Return the table of this key. If it does not exist, one process computes it and others on the machine wait."""
    name, table = name_of(_KIND, key or os.urandom(16).hex()), None
    for place in (None if key is None else user_place(), _temporary_store(os.getpid())):
        if place is None:
            continue
        with place.alone(name):
            if load(place, name, table_of) is not None:
                return StoredTable(place.path(name))
            table = make() if table is None else table
            if save(place, name, table_body(table), expected=table.nbytes):
                return StoredTable(place.path(name))
    raise WorkerError(
        "a table for lookups cannot be written to the temporary folder", fix="make room there, or set TMPDIR to another"
    )


@cache
def _temporary_store(pid: int) -> Folder:
    folder = temporary_folder(_KIND)
    atexit.register(_remove, folder, pid)
    return Folder(folder)


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child must not remove the parent's folder
        remove_tree(folder, _KIND)
