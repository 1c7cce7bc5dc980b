"""A source with columns, a predicate and row ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl
import pyarrow as pa

from cedar.datasets.base import Split

ROWS = 100  # of a split


class Squares:
    """Numbers from 0 with their squares and cubes, so many splits of 100 rows."""

    def __init__(self, count: int, columns: Sequence[str] = ("n", "square", "cube")) -> None:
        self.count = count
        self.columns = tuple(columns)

    def splits(self) -> list[Split]:
        return [Split(start=i * ROWS, stop=(i + 1) * ROWS, rows=ROWS, bytes=24 * ROWS) for i in range(self.count)]

    def schema(self) -> dict[str, pa.DataType]:
        return dict.fromkeys(self.columns, pa.int64())

    def read(self, split: Split) -> Iterator[pa.Table]:
        numbers = range(split.start, split.stop or 0)
        made = {"n": list(numbers), "square": [n**2 for n in numbers], "cube": [n**3 for n in numbers]}
        yield pa.table({name: made[name] for name in self.columns})

    def select(self, columns: Sequence[str]) -> Squares:
        return Squares(self.count, columns)

    def prune(self, split: Split, predicate: pl.Expr) -> bool:
        """Nothing is left of a split where the first and the last of its numbers, which rise, say so of all between."""
        if predicate.meta.root_names() != ["n"]:
            return False
        ends = pl.DataFrame({"n": [split.start, (split.stop or 0) - 1]})
        return bool(str(predicate).count(">=") == 1 and not ends.select(predicate).to_series()[-1])

    def digest(self) -> str:
        return f"squares of {self.count}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Squares) and (self.count, self.columns) == (other.count, other.columns)

    def __hash__(self) -> int:
        return hash((self.count, self.columns))
