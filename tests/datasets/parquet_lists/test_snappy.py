"""Snappy blocks are decompressed as by Arrow, and damaged ones are refused as by Arrow."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from cedar.datasets.parquet_lists.reader import SLACK

_GUARD = 64
_CODEC = pa.Codec("snappy")


def ours(block: bytes, room: int) -> bytes | None:
    """The decompressed block, or None if it is refused. What follows a block and its result must not matter."""
    from cedar.datasets.parquet_lists.snappy import decompress

    source = np.frombuffer(block + random.Random(room).randbytes(SLACK), np.uint8)
    target = np.full(_GUARD + room + SLACK + _GUARD, 77, np.uint8)
    done = decompress(source.ctypes.data, len(block), target.ctypes.data + _GUARD, room)
    assert (target[:_GUARD] == 77).all()
    assert (target[_GUARD + room + SLACK :] == 77).all()
    return target[_GUARD : _GUARD + room].tobytes() if done else None


def arrow(block: bytes, room: int) -> bytes | None:
    try:
        return bytes(_CODEC.decompress(block, room, asbytes=True))
    except (OSError, pa.ArrowException):
        return None


def rows(draw: random.Random) -> bytes:
    """Bytes that repeat at every distance, with literals and copies of every length."""
    made = bytearray()
    for _ in range(draw.choice([0, 1, 3, 30])):
        if made and draw.random() < 0.6:
            back = draw.randrange(1, min(len(made), draw.choice([4, 17, 100_000])) + 1)
            for _ in range(draw.choice([4, 7, 11, 64, 65, 1000])):
                made.append(made[-back])
        else:
            made += draw.randbytes(draw.choice([1, 15, 16, 60, 61, 256, 257, 70_000]))
    return bytes(made)


def test_what_arrow_compressed_is_restored() -> None:
    draw = random.Random(1)
    for _ in range(60):
        data = rows(draw)
        assert ours(_CODEC.compress(data, asbytes=True), len(data)) == data


def test_damaged_blocks_are_those_that_arrow_refuses() -> None:
    draw = random.Random(2)
    refused = 0
    for _ in range(60):
        data = rows(draw)[: draw.choice([40, 5000])]
        block = _CODEC.compress(data, asbytes=True)
        for _ in range(50):
            changed = bytearray(block)
            for _ in range(draw.choice([1, 1, 4])):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            damaged = bytes(changed[: draw.choice([len(changed), draw.randrange(len(changed) + 1)])])
            expected = arrow(damaged, len(data))
            assert ours(damaged, len(data)) == expected
            refused += expected is None
    assert refused > 500


@pytest.mark.parametrize(
    ("block", "room"),
    [
        (b"\x04\x0cabcd", 4),  # a literal
        (b"\x08\x0cabcd\x01\x04", 8),  # a copy whose place takes 11 bits
        (b"\x0c\x0cabcd\x1e\x04\x00", 12),  # 16 bits
        (b"\x0c\x0cabcd\x1f\x04\x00\x00\x00", 12),  # 32 bits
        (b"\x08\xf0\x07abcdefgh", 8),  # literals whose length takes 1 to 4 bytes more
        (b"\x08\xf4\x07\x00abcdefgh", 8),
        (b"\x08\xf8\x07\x00\x00abcdefgh", 8),
        (b"\x08\xfc\x07\x00\x00\x00abcdefgh", 8),
    ],
)
def test_elements_of_every_kind(block: bytes, room: int) -> None:
    expected = arrow(block, room)
    assert ours(block, room) == expected
    assert expected is not None
    for end in range(len(block)):
        assert ours(block[:end], room) is None
    assert ours(block, room + 1) is None
    assert ours(block, room - 1) is None


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\xff\xff\xff\xff\xff\x01",  # a size of more than 32 bits
        b"\x08\x0cabcd\x01\x05",  # a copy from before the block
        b"\x08\x0cabcd\x01\x00",
        b"\x08\x0cabcd\x05\x04",  # more bytes than were said
        b"\x08\x0cabcd",  # fewer
        b"\x08\xfc\xff\xff\xff\xffabcd",
    ],
)
def test_blocks_that_do_not_add_up_are_refused(block: bytes) -> None:
    assert ours(block, 8) is None
    assert arrow(block, 8) is None
