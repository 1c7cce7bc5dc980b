"""Tables in two tiers: the most frequent rows in memory or on the device, all others in a memory-mapped file.

Results are bitwise those of ``TorchTables``, whichever rows are in memory: the distinct rows of a batch are gathered
from both tiers before they are summed.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from cedar.core.errors import CedarError
from cedar.trainers.dlrm.tables import Table, TorchTables, copy_error


class TieredTables(TorchTables):
    """Tables in two tiers; see ``TorchTables``. The file has space for all rows. When the state is requested, rows in
    memory are written to the file, and read again later, so that the state is in row order and can be modified.

    Args:
        hot: for each table, the rows that are in memory, int64 without duplicates.
        folder: folder of the file, which has no name and is deleted when the process ends.

    Raises:
        CedarError: the disk has too little space.
    """

    def __init__(
        self, tables: Sequence[Table], width: int, hot: Mapping[str, torch.Tensor], folder: str, **settings: Any
    ) -> None:
        self.folder, self._file = folder, False
        self._fast: dict[str, torch.Tensor] = {}
        super().__init__(tables, width, **settings)
        none = torch.zeros(0, dtype=torch.int64)
        self.hot = torch.cat([none, *(hot[table.name] + self.starts[table.name] for table in tables)])
        slots = torch.full((len(self.weight),), -1, dtype=torch.int32)
        slots[self.hot] = torch.arange(len(self.hot), dtype=torch.int32)
        self.slots = slots.to(self.device)
        self._last_split: tuple[Any, ...] = (None,)
        self._file = True

    def _keep(self, weight: torch.Tensor) -> None:
        """Store the weights, and register an empty parameter for ``to`` and ``requires_grad`` to act on."""
        self._block = weight
        self.held[self._key] = nn.Parameter(torch.zeros(0, dtype=weight.dtype, device=self.device))

    @property
    def weight(self) -> torch.Tensor:
        return self._block

    def __deepcopy__(self, memo: object) -> TieredTables:
        raise copy_error("tables whose rows are in a file")

    def check(self, dtype: torch.dtype) -> None:
        if self._file and dtype != self.weight.dtype:
            raise CedarError(
                f"tables in a file stay {str(self.weight.dtype).removeprefix('torch.')}",
                done="nothing was moved", fix="pass dtype= to DedupEmbeddings instead",
            )  # fmt: skip
        super().check(dtype)

    def moved(self, device: torch.device) -> None:
        self.device, self._ends, self.slots = device, self._ends.to(device), self.slots.to(device)
        self._last_split = (None,)

    def state(self) -> dict[str, torch.Tensor]:
        for kind, values in self._fast.items():
            self._all(kind).index_copy_(0, self.hot, values.cpu())
        self._fast = {}
        return super().state()

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return mapped(shape, dtype, self.folder)

    def _compact(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, where = torch.unique(ids, return_inverse=True)
        return where, self._read("weight", rows)

    def _read(self, kind: str, rows: torch.Tensor) -> torch.Tensor:
        hot, slots, cold = self._split(rows)
        fast = self._tier(kind)
        values = torch.empty((len(rows), *fast.shape[1:]), dtype=fast.dtype, device=fast.device)
        values[hot] = fast.index_select(0, slots)
        if len(cold):
            values[~hot] = self._from_slow(kind, cold).to(fast.device)
        return values

    def _write(self, kind: str, rows: torch.Tensor, values: torch.Tensor) -> None:
        hot, slots, cold = self._split(rows)
        self._tier(kind).index_copy_(0, slots, values[hot])
        if len(cold):
            self._to_slow(kind, cold, values[~hot].cpu())

    def _add(self, rows: torch.Tensor, change: torch.Tensor) -> None:
        self._write("weight", rows, self._read("weight", rows).add_(change))

    def _from_slow(self, kind: str, rows: torch.Tensor) -> torch.Tensor:
        return self._all(kind).index_select(0, rows)

    def _to_slow(self, kind: str, rows: torch.Tensor, values: torch.Tensor) -> None:
        self._all(kind).index_copy_(0, rows, values)

    def _tier(self, kind: str) -> torch.Tensor:
        if not self._fast:
            self._fast = {
                name: self._all(name).index_select(0, self.hot).to(self.device) for name in ("weight", *self.moments)
            }
        return self._fast[kind]

    def _split(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return a mask of rows in memory, their slots, and the other rows. Caches the result of the last call."""
        if self._last_split[0] is not rows:
            slots = self.slots.index_select(0, rows)
            hot = slots >= 0
            self._last_split = rows, (hot, slots[hot].long(), rows[~hot].cpu())
        parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = self._last_split[1]
        return parts


def mapped(shape: tuple[int, ...], dtype: torch.dtype, folder: str) -> torch.Tensor:
    """Return zeros in an unnamed memory-mapped file whose disk space is allocated immediately.

    Raises:
        CedarError: the disk has too little space, or the folder cannot be created.
    """
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.zeros(shape, dtype=dtype)
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)  # raises if the disk is full, which later would be SIGBUS
            memory = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise CedarError(
            f"{folder} has no space for {size:,} bytes of tables: {error.strerror}",
            done="nothing was written", fix="free space, or set tables.slow to another folder",
        ) from error  # fmt: skip
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_RANDOM)  # rows are read at random, so read-ahead would not help
    return torch.frombuffer(memory, dtype=dtype).view(shape)
