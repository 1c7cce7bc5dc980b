"""Observation: rows, bytes and time of one operator call on one block."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Observation:
    """The measurements of one call of an operator on one block: rows, decoded bytes, seconds.

    ``columns`` maps each column that the operator wrote (for a source: every column) to its decoded bytes.
    """

    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    wall: float
    cpu: float
    columns: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: Observation) -> Observation:
        """Return the sum of two measurements."""
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
