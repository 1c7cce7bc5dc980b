"""Checksums next to a file: every flipped bit is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar import SourceError
from cedar.datasets.sums import BLOCK, RunningChecksums, Sums, block_range


@given(st.lists(st.binary(max_size=3 * BLOCK // 2), max_size=4), st.data())
def test_sums_of_pieces_find_every_flip(pieces, data):
    summing, whole = RunningChecksums(), b"".join(pieces)
    for piece in pieces:
        summing.add(piece)
    sums = Sums.parse("f", len(whole), summing.text())
    sums.check(whole, 0)
    if whole:
        at = data.draw(st.integers(0, len(whole) - 1))
        bad = bytearray(whole)
        bad[at] ^= 1 << data.draw(st.integers(0, 7))
        start, stop = block_range(at, at + 1, len(whole))
        with pytest.raises(SourceError, match="f: damaged: bytes"):
            sums.check(bytes(bad[start:stop]), start)
