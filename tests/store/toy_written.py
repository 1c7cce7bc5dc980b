"""Blocks as the bytes of an entry."""

from __future__ import annotations

import numpy as np

from tests import toy_blocks

SMALL = toy_blocks.block(x=[1, 2, 3], s=["a", None, "c"], t=np.arange(12.0).reshape(3, 4))
