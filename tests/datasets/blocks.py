"""Blocks that the tests of sinks write, and the files that they find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.boundary import as_column
from cedar.core.cursor import Keys


def block(columns, n: int | None = None, start: int = 0) -> Block:
    made = {name: as_column(c if isinstance(c, (np.ndarray, pa.Array)) else pa.array(c)) for name, c in columns.items()}
    count = n if n is not None else len(next(iter(made.values())))
    return Block(made, Keys(np.arange(start, start + count)))


def files_of(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
