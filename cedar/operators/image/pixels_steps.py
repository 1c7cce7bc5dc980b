"""Steps: the instructions that pixel operators give the kernel for each row, each a code and two numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]
Weights = npt.NDArray[np.float32]

NONE = 0  # leaves the row unchanged; the comments below name each step's numbers
BRIGHTNESS = 1  # factor
SATURATION = 2  # factor
HUE = 3  # shift
GRAY = 4  # keeps the number of channels
GRAY_ONE = 5  # leaves one channel
SPREAD = 6  # copies one channel to three
SOLARIZE = 7  # threshold
POSTERIZE = 8  # step
PERMUTE = 9  # source channel of each channel, one base-4 digit each, the first channel's lowest
BLEND = 10  # factor, mean; replaces CONTRAST once the mean is known
STRETCH = 11  # replaces AUTOCONTRAST once the range is known
TABLE = 12  # replaces EQUALIZE once the histogram is known
WHOLE = 20  # steps from this code on need the whole image as the previous steps leave it
CONTRAST = 20  # factor
AUTOCONTRAST = 21
EQUALIZE = 22
BLUR = 23  # indices of two tables of weights: along rows, along columns
SHARPEN = 24  # factor
WARP = 25  # index of a table, mode

# The table of a WARP holds a .. h and the fill of four channels. The result at (x, y) is taken from the source at
# ((ax + by + c) / (gx + hy + 1), (dx + ey + f) / (gx + hy + 1)). Mode 0 takes the nearest pixel; 1 interpolates with 0
# outside the image; 2 interpolates and blends with the fill by the weight of the pixels outside.
# What a sweep writes: KEEP stores planes for the next sweep, NOTHING only collects values.
KEEP, PIXELS, PLANES, FLOATS, FLOAT_PLANES = 0, 1, 2, 3, 4
NOTHING = 5

_AMOUNT_NAMES = {
    BRIGHTNESS: "brightness", CONTRAST: "contrast", SATURATION: "saturation", HUE: "hue", SOLARIZE: "threshold",
    POSTERIZE: "step", PERMUTE: "channels", SHARPEN: "sharpness", WARP: "matrix",
}  # fmt: skip


@dataclass(frozen=True)
class Steps:
    """The steps of an operator for each row.

    Attributes:
        codes: int64 (rows, steps).
        numbers: float64 (rows, steps, 2): the parameters of each step.
        tables: weights and matrices; numbers of BLUR and WARP steps are indices into this list.
    """

    codes: Codes
    numbers: Numbers
    tables: list[Weights] = field(default_factory=list)

    def describe(self) -> list[dict[str, Any]]:
        """Return, per row, whether any step applies, and the amounts by name in the order of the steps."""
        rows = zip(self.codes.tolist(), self.numbers[:, :, 0].tolist(), strict=True)
        described: list[dict[str, Any]] = []
        for codes, amounts in rows:
            applied = [(code, amount) for code, amount in zip(codes, amounts, strict=True) if code != NONE]
            named = {
                _AMOUNT_NAMES[code]: self._amount(code, amount) for code, amount in applied if code in _AMOUNT_NAMES
            }
            described.append({"applied": bool(applied)} | named)
        return described

    def _amount(self, code: int, amount: float) -> Any:
        """Return a step's amount: a number, or a tuple for the order of channels or a matrix."""
        if code == WARP:
            return tuple(self.tables[int(amount)][:8].tolist())
        return tuple(int(amount) >> 2 * c & 3 for c in range(3)) if code == PERMUTE else amount

    def followed_by(self, after: Steps) -> Steps:
        """Return these steps followed by the steps ``after``."""
        codes, numbers = np.concatenate([self.codes, after.codes], axis=1), after.shift_table_indices(len(self.tables))
        return Steps(codes, np.concatenate([self.numbers, numbers], axis=1), self.tables + after.tables)

    def shift_table_indices(self, tables: int) -> Numbers:
        """Return the numbers with indices of tables shifted by ``tables``, the number of tables before these."""
        places = np.stack([(self.codes == BLUR) | (self.codes == WARP), self.codes == BLUR], axis=2)
        return np.asarray(self.numbers + places * tables, dtype=np.float64)


def one_step(rows: int, code: int, first: npt.ArrayLike = 0.0, applied: npt.NDArray[np.bool_] | None = None) -> Steps:
    """Return a single step per row: ``code``, or NONE where ``applied`` is False."""
    codes = np.full((rows, 1), code, dtype=np.int64)
    if applied is not None:
        codes[~applied] = NONE
    numbers = np.zeros((rows, 1, 2), dtype=np.float64)
    numbers[:, 0, 0] = first
    return Steps(codes, numbers)


def concatenate_steps(steps: list[Steps], rows: int) -> tuple[Codes, Numbers, Weights, Codes]:
    """Concatenate the steps of several operators: codes, numbers, tables padded to one length, and table lengths."""
    codes = np.concatenate([np.zeros((rows, 0), dtype=np.int64), *(step.codes for step in steps)], axis=1)
    numbers = [np.zeros((rows, 0, 2))]
    tables: list[Weights] = []
    for step in steps:
        numbers.append(step.shift_table_indices(len(tables)))
        tables.extend(step.tables)
    lengths = np.array([len(table) for table in tables], dtype=np.int64)
    padded = np.zeros((len(tables), max(lengths, default=0)), dtype=np.float32)
    for table, row in zip(tables, padded, strict=True):
        row[: len(table)] = table
    return codes, np.concatenate(numbers, axis=1), padded, lengths
