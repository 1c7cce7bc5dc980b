"""Arrays that are large enough to lie in memory that processes share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

LARGE = 1 << 17  # bytes; goes through shared memory


shares = pytest.mark.skipif(sys.platform != "linux", reason="other systems use pipes")


def mapped(values: Any) -> bool:
    """Whether an array is in memory that is shared."""
    address = values.buffers()[1].address if isinstance(values, pa.Array) else values.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(word, 16) for word in line.split()[0].split("-"))
        if low <= address < high:
            return "memfd:cedar" in line
    return False
