"""Lookup tables of operators, stored in files that all workers map into memory, so that no worker needs a copy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from cedar.core.arrow import numbers
from cedar.core.errors import SourceError
from cedar.store.folder import open_entry


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

    def numbers(self, name: str) -> Any:
        """Return a numeric column as a read-only array."""
        column = self.table.column(name)
        return numbers(column.chunk(0) if column.num_chunks else pa.nulls(0, column.type))


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
