"""What pixel operators ask of the kernel: steps, a code and two numbers each, for every row its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]
Weights = npt.NDArray[np.float32]

NONE = 0  # the row is left unchanged
BRIGHTNESS = 1  # factor
SATURATION = 2  # factor
HUE = 3  # shift
GRAY = 4  # as many channels as before
GRAY_ONE = 5  # one channel
SPREAD = 6  # one channel to three
SOLARIZE = 7  # threshold
POSTERIZE = 8  # step
PERMUTE = 9  # places of the channels, a digit of base 4 each, the first lowest
BLEND = 10  # factor, mean: what CONTRAST becomes
STRETCH = 11  # what AUTOCONTRAST becomes
TABLE = 12  # what EQUALIZE becomes
WHOLE = 20  # from here on a step needs the whole image as the steps before leave it
CONTRAST = 20  # factor
AUTOCONTRAST = 21
EQUALIZE = 22
BLUR = 23  # tables of weights: of the row, of the column
SHARPEN = 24  # factor
WARP = 25  # table: where pixels come from, and fill; mode

# The table of a WARP: a .. h and the fill of four channels. The pixel whose middle is at (x, y) becomes that at
# ((ax + by + c) / (gx + hy + 1), (dx + ey + f) / (gx + hy + 1)). The mode: 0 takes the nearest pixel; 1 interpolates,
# pixels outside being 0; 2 also mixes with the fill by how much of the weights was outside.

KEEP, PIXELS, PLANES, FLOATS, FLOAT_PLANES = 0, 1, 2, 3, 4  # what a sweep writes; KEEP is for a next sweep
NOTHING = 5  # what a sweep writes that only looks

_AMOUNTS = {
    BRIGHTNESS: "brightness", CONTRAST: "contrast", SATURATION: "saturation", HUE: "hue", SOLARIZE: "threshold",
    POSTERIZE: "step", PERMUTE: "channels", SHARPEN: "sharpness", WARP: "matrix",
}  # fmt: skip


@dataclass(frozen=True)
class Steps:
    """The steps of an operator for some rows.

    Attributes:
        codes: int64 (rows, steps).
        numbers: float64 (rows, steps, 2).
        tables: weights that numbers of the steps point to, by their place in this list.
    """

    codes: Codes
    numbers: Numbers
    tables: list[Weights] = field(default_factory=list)

    def describe(self) -> list[dict[str, Any]]:
        """The amounts of each row in the order in which they are applied, by name; or that nothing is."""
        rows = zip(self.codes.tolist(), self.numbers[:, :, 0].tolist(), strict=True)
        reported: list[dict[str, Any]] = []
        for codes, amounts in rows:
            own = [(code, amount) for code, amount in zip(codes, amounts, strict=True) if code != NONE]
            named = {_AMOUNTS[code]: self._amount(code, amount) for code, amount in own if code in _AMOUNTS}
            reported.append({"applied": bool(own)} | named)
        return reported

    def _amount(self, code: int, amount: float) -> Any:
        """A step's number; the order of the channels, and a matrix, as a tuple."""
        if code == WARP:
            return tuple(self.tables[int(amount)][:8].tolist())
        return tuple(int(amount) >> 2 * c & 3 for c in range(3)) if code == PERMUTE else amount

    def then(self, after: Steps) -> Steps:
        """These steps and those."""
        codes, numbers = np.concatenate([self.codes, after.codes], axis=1), after.numbers_behind(len(self.tables))
        return Steps(codes, np.concatenate([self.numbers, numbers], axis=1), self.tables + after.tables)

    def numbers_behind(self, tables: int) -> Numbers:
        """The numbers, where so many tables come before: some are places of tables."""
        places = np.stack([(self.codes == BLUR) | (self.codes == WARP), self.codes == BLUR], axis=2)
        return np.asarray(self.numbers + places * tables, dtype=np.float64)


def one_step(rows: int, code: int, first: npt.ArrayLike = 0.0, applied: npt.NDArray[np.bool_] | None = None) -> Steps:
    """A single step: one code for all rows, or for those where it is applied."""
    codes = np.full((rows, 1), code, dtype=np.int64)
    if applied is not None:
        codes[~applied] = NONE
    numbers = np.zeros((rows, 1, 2), dtype=np.float64)
    numbers[:, 0, 0] = first
    return Steps(codes, numbers)


def joined(steps: list[Steps], rows: int) -> tuple[Codes, Numbers, Weights, Codes]:
    """One operator's steps after the other's: codes, numbers, tables (padded to one length) and their lengths."""
    codes = np.concatenate([np.zeros((rows, 0), dtype=np.int64), *(step.codes for step in steps)], axis=1)
    numbers = [np.zeros((rows, 0, 2))]
    tables: list[Weights] = []
    for step in steps:
        numbers.append(step.numbers_behind(len(tables)))
        tables.extend(step.tables)
    lengths = np.array([len(table) for table in tables], dtype=np.int64)
    padded = np.zeros((len(tables), max(lengths, default=0)), dtype=np.float32)
    for table, row in zip(tables, padded, strict=True):
        row[: len(table)] = table
    return codes, np.concatenate(numbers, axis=1), padded, lengths
