"""Blocks that are kept in a place, and what is stored there."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cedar.core.block import Block
from cedar.core.cursor import Keys
from cedar.store.cache import RECORD
from cedar.store.place import INSIDE
from tests.toy_entries import word


def block(first: int = 0, rows: int = 100) -> Block:
    return Block({"x": np.arange(first, first + rows * 2).reshape(rows, 2)}, Keys(np.arange(rows)))


def entry(folder: Path, name: str) -> Path:
    return folder / INSIDE / f"{'-'.join(map(word, name.split('-')))}.arrow"


def entries(folder: Path) -> list[Path]:
    """Those with rows: no records of what they were made from."""
    return sorted(path for path in (folder / INSIDE).glob("*.arrow") if RECORD not in path.name)
