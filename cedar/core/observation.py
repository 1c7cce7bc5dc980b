"""Observation: what one call of an operator on one block was seen to take."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Observation:
    """One call of an operator on one block: rows, decoded bytes, seconds.

    ``columns`` are the decoded bytes of the columns that the operator wrote (of all, for a source).
    """

    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    wall: float
    cpu: float
    columns: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: Observation) -> Observation:
        """Both calls as if they were one."""
        names = {*self.columns, *other.columns}
        return Observation(
            self.rows_in + other.rows_in,
            self.rows_out + other.rows_out,
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
            self.wall + other.wall,
            self.cpu + other.cpu,
            {name: self.columns.get(name, 0) + other.columns.get(name, 0) for name in names},
        )
