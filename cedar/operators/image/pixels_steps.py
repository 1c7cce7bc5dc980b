"""Steps: the instructions of pixel operators to the kernel. Each row has steps of a code and two parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]
Weights = npt.NDArray[np.float32]

NONE = 0  # leaves the row unchanged; comments below name each step's parameters
BRIGHTNESS = 1  # factor
SATURATION = 2  # factor
HUE = 3  # shift
GRAY = 4  # grayscale with an unchanged number of channels
GRAY_ONE = 5  # grayscale with one channel
SPREAD = 6  # copies one channel to three
SOLARIZE = 7  # threshold
POSTERIZE = 8  # step
PERMUTE = 9  # base-4 number: digit i, from the lowest, is the source of channel i
BLEND = 10  # factor, mean; replaces CONTRAST once the mean is known
STRETCH = 11  # replaces AUTOCONTRAST once the range is known
TABLE = 12  # replaces EQUALIZE once the histogram is known
WHOLE = 20  # steps from this code on need the whole image after the previous steps
CONTRAST = 20  # factor
AUTOCONTRAST = 21
EQUALIZE = 22
BLUR = 23  # indices of two tables of weights: along rows, along columns
SHARPEN = 24  # factor
WARP = 25  # index of a table, mode

# The table of a WARP has a .. h and the fill values of four channels. The pixel at (x, y) is computed at the source's
# ((ax + by + c) / (gx + hy + 1), (dx + ey + f) / (gx + hy + 1)). Mode 0 uses the nearest pixel; 1 interpolates, with 0
# outside the image; 2 interpolates and blends with the fill according to the weight of pixels outside the image.
# Outputs of a sweep: KEEP stores planes for the next sweep, NOTHING only collects values.
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
        tables: weights and matrices; the parameters of BLUR and WARP steps are indices into this list.
    """

    codes: Codes
    numbers: Numbers
    tables: list[Weights] = field(default_factory=list)

    def describe(self) -> list[dict[str, Any]]:
        """Return for each row whether any step applies, and the amounts by name in the order of the steps."""
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
        """Return a step's amount: a number, or a tuple with the order of channels or a matrix."""
        if code == WARP:
            return tuple(self.tables[int(amount)][:8].tolist())
        return tuple(int(amount) >> 2 * c & 3 for c in range(3)) if code == PERMUTE else amount

    def followed_by(self, after: Steps) -> Steps:
        """Return steps that run these steps, then the steps ``after``."""
        codes, numbers = np.concatenate([self.codes, after.codes], axis=1), after.shift_table_indices(len(self.tables))
        return Steps(codes, np.concatenate([self.numbers, numbers], axis=1), self.tables + after.tables)

    def shift_table_indices(self, tables: int) -> Numbers:
        """Return the parameters with table indices increased by ``tables``, the number of preceding tables."""
        places = np.stack([(self.codes == BLUR) | (self.codes == WARP), self.codes == BLUR], axis=2)
        return np.asarray(self.numbers + places * tables, dtype=np.float64)


def one_step(rows: int, code: int, first: npt.ArrayLike = 0.0, applied: npt.NDArray[np.bool_] | None = None) -> Steps:
    """Return steps with one step per row: ``code``, or NONE if ``applied`` is False for the row."""
    codes = np.full((rows, 1), code, dtype=np.int64)
    if applied is not None:
        codes[~applied] = NONE
    numbers = np.zeros((rows, 1, 2), dtype=np.float64)
    numbers[:, 0, 0] = first
    return Steps(codes, numbers)


def concatenate_steps(steps: list[Steps], rows: int) -> tuple[Codes, Numbers, Weights, Codes]:
    """Concatenate steps of operators; return codes, parameters, tables padded to equal length, and table lengths."""
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
