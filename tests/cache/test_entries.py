"""Entries: what of blocks can be stored as Arrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cedar.cache.entries import storable
from cedar.core.block import Block
from tests.cache.toy_written import SMALL


def test_what_has_no_arrow_form_is_not_stored() -> None:
    assert storable([SMALL]) == ""
    assert "'o'" in storable([Block({"o": np.array([{}, 1, 2], dtype=object)}, SMALL.keys)])
    assert storable([Block({"x": pa.array([1])}, SMALL.keys, aligned=False)])
