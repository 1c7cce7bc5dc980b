"""Sizes and numbers as users write them: 4096, numpy.int64(4096), "256MiB", "2GB"."""

from __future__ import annotations

import operator
import re
from typing import Any

from cedar.core.errors import PipelineError, user_site

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def as_int(value: Any) -> Any:
    """Convert integers of NumPy and torch to int; return anything else, such as True, unchanged.

    Examples:
        >>> import numpy as np
        >>> as_int(np.int64(3)), as_int(3.0), as_int(True)
        (3, 3.0, True)
    """
    if isinstance(value, int) or "bool" in str(getattr(value, "dtype", "")):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def size_text(size: float) -> str:
    """Format a number of bytes for people.

    Examples:
        >>> size_text(3 << 40), size_text(3 << 29), size_text(512)
        ('3TiB', '1.5GiB', '512B')
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        whole = _UNITS[unit.upper()]
        if size >= whole:
            return f"{size / whole:.3g}{unit}" if size < 1000 * whole else f"{size / whole:,.0f}{unit}"
    return f"{size:.0f}B"


def parse_bytes(text: str, argument: str) -> int:
    """Return the number of bytes of a size such as "256MiB".

    Raises:
        PipelineError: the text is not a size.

    Examples:
        >>> parse_bytes("2KiB", "window")
        2048
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*", text)
    unit = _UNITS.get(match.group(2).upper()) if match else None
    if match is None or unit is None or float(match.group(1)) <= 0:
        raise PipelineError(f'{argument}={text!r} is not a size; write it like "256MiB"', site=user_site())
    return int(float(match.group(1)) * unit)
