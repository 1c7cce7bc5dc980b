"""Fill values: the numbers that ``pad`` and ``pack`` write after the end of a list; one for all columns, or a dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from cedar.core.errors import PipelineError, Site, user_site
from cedar.core.values import misfits

Fill: TypeAlias = "float | tuple[tuple[str, float], ...]"


def as_fill(value: Any, label: str) -> Fill:
    """Return a number unchanged, and a dict of numbers by column as sorted pairs, so that operators stay hashable.

    Raises:
        PipelineError: the value has another type; the error names the user's line.

    Examples:
        >>> as_fill({"labels": -100}, "pack")
        (('labels', -100),)
    """
    given = dict(value) if isinstance(value, Mapping | tuple) else {"": value}
    for name, number in given.items():
        if not isinstance(name, str) or not isinstance(number, int | float | np.number | np.bool_):
            raise PipelineError(
                f"{label}(value={value!r}): lists of numbers are filled with a number",
                site=user_site(),
                fix='give a number, or a dict of numbers by column such as {"labels": -100}',
            )
    return tuple(sorted(given.items())) if isinstance(value, Mapping | tuple) else value


def fill_for_column(fill: Fill, column: str) -> float:
    """Return the fill value of a column; 0 for a column that is not in the dict."""
    return dict(fill).get(column, 0) if isinstance(fill, tuple) else fill


def check_fill(fill: Fill, dtypes: Mapping[str, np.dtype[Any] | None], label: str, site: Site | None) -> None:
    """Raise PipelineError for a fill value that its column cannot contain, or of a column that is not filled.

    Args:
        fill: the fill value, as ``as_fill`` returns it.
        dtypes: the dtype of each filled column; None if it is unknown before a run.
        label: the operator's label.
        site: the user's line.
    """
    for name in dict(fill) if isinstance(fill, tuple) else ():
        if name not in dtypes:
            raise PipelineError(
                f"{label}: value= names {name!r}, which is not one of its columns",
                site=site,
                fix=f"name one of {', '.join(map(repr, dtypes)) or 'the list columns'}",
            )
    for name, dtype in dtypes.items():
        if dtype is not None and not _can_hold(dtype, fill_for_column(fill, name)):
            raise PipelineError(
                f"{label}: column {name!r} of {dtype} cannot hold the value {fill_for_column(fill, name)!r}",
                site=site,
                fix=f"give a value of {dtype}, or cast the lists first",
            )


def _can_hold(dtype: np.dtype[Any], value: float) -> bool:
    if dtype.kind == "b":
        return value in (0, 1)
    whole = isinstance(value, bool | np.bool_) or (dtype.kind != "f" and float(value).is_integer())
    return not misfits([int(value) if whole else value], pa.from_numpy_dtype(dtype))
