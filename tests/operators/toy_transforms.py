"""Transforms that draw, that write several columns, and that run in a chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from cedar.core.columns import Column, ColumnType, type_of
from cedar.operators.draws import Draws
from cedar.operators.transform import BadValues, ChainFault, Link, Transform

ROWS = [{"x": i, "y": -i} for i in range(50)]


def ran() -> list[int]:
    """How many links each run of the chain had."""
    return _RAN


_RAN: list[int] = []


class ToyChain:
    """Runs links one by one on the columns, and says that it did."""

    def joins(self, below: Sequence[Link], above: Link) -> bool:
        return len(below) < 3

    def run(
        self, links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None]
    ) -> tuple[dict[str, Column], dict[int, ChainFault]]:
        _RAN.append(len(links))
        held: dict[str, Any] = dict(columns)
        faults: dict[int, ChainFault] = {}
        for i, (link, drawn) in enumerate(zip(links, draws, strict=True)):
            arrays = [held[name] for name in link.reads]
            link.transform.result(*map(type_of, arrays))
            named = {} if drawn is None else {"draws": drawn}
            try:
                made = link.transform.columns(*arrays, **named)
            except BadValues as bad:
                faults |= {row: ChainFault(i, why, bad.fix) for row, why in bad.rows.items() if row not in faults}
                made = arrays[0]
            held |= dict(zip(link.writes, made if isinstance(made, tuple) else (made,), strict=True))
        return {name: held[name] for link in links for name in link.writes}, faults


CHAIN = ToyChain()


@dataclass(frozen=True)
class AddNoise(Transform):
    """x + a number from 0 to ``most``."""

    most: int = 1000
    random: ClassVar[bool] = True
    chain: ClassVar[Any] = CHAIN
    per_row: ClassVar[bool] = True

    def result(self, *types: Any) -> ColumnType:
        return pa.int64()

    def columns(self, *columns: Any, draws: Draws) -> Column:
        return pa.array(np.asarray(columns[0]) + draws.integers(0, self.most, 1)[:, 0])


@dataclass(frozen=True)
class Refuse(Transform):
    """Has no result for ``value``."""

    value: int
    chain: ClassVar[Any] = CHAIN
    per_row: ClassVar[bool] = True

    def result(self, *types: Any) -> ColumnType:
        return pa.int64()

    def columns(self, *columns: Any) -> Column:
        bad = {int(row): f"{self.value} is refused" for row in np.flatnonzero(np.asarray(columns[0]) == self.value)}
        if bad:
            raise BadValues(bad, "leave it out")
        return columns[0]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Swap(Transform):
    """Two columns change places."""

    arity: ClassVar[int | None] = 2
    outputs: ClassVar[int | None] = None

    def result(self, *types: Any) -> tuple[ColumnType, ...]:
        return types[1], types[0]

    def columns(self, *columns: Any) -> tuple[Column, ...]:
        return columns[1], columns[0]


@dataclass(frozen=True)
class Unfold(Transform):
    """Stands for a decoder: says that rows become larger."""

    larger: ClassVar[bool] = True

    def result(self, *types: Any) -> ColumnType:
        return types[0]  # type: ignore[no-any-return]

    def columns(self, *columns: Any) -> Column:
        return columns[0]  # type: ignore[no-any-return]
