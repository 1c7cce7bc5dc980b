"""Scan: a source read with fewer columns, and with filters that decide what of the rest is read at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cedar.columns import UNKNOWN
from cedar.datasets.base import Read
from cedar.graph import Node
from cedar.operators.base import Schema


@dataclass(frozen=True, eq=False)
class Scan(Read):
    """A ``Read`` of a plan.

    Args:
        source: as the user gave it; windows and row keys come from its metadata.
        columns: the columns that leave the scan; None is all.
        where: the filters by expression that run inside it, in order; their columns are read first, and the others
            only where rows are left.
    """

    columns: tuple[str, ...] | None = None
    where: tuple[Node, ...] = ()

    def schema(self, *inputs: Schema) -> Schema:
        known = super().schema()
        if known is None or self.columns is None:
            return known
        return {name: known.get(name, UNKNOWN) for name in self.columns}

    def parameters(self) -> dict[str, Any]:
        return super().parameters()
