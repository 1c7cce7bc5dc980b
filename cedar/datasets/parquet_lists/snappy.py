"""Decompress Snappy blocks in a compiled loop, at the speed of Arrow's codec.

Arrow decompresses one page per call. Each return from such a call waits for the GIL, which other threads hold. Here a
kernel decompresses a page and decodes it at once, while it is in the core's cache.

The format is described in google/snappy, format_description.txt: a block begins with its decompressed size, followed by
elements: bytes to append (literals), or a length and how far back to copy from (copies).
"""

# ruff: noqa: ARG001 - numba passes these arguments to every intrinsic
from __future__ import annotations

from typing import Any

import numpy as np

from cedar.operators.jit import kernel, numba, part

_types = numba().core.types
_ir = part("llvmlite.ir")
_int = _ir.IntType
_carray = numba().carray


@numba().extending.intrinsic  # type: ignore[untyped-decorator]
def load_word(typing: Any, address: Any) -> Any:
    """Return the eight bytes at an address as uint64; the address need not be aligned."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], _int(64).as_pointer()), align=1)

    return _types.uint64(_types.int64), generate


@numba().extending.intrinsic  # type: ignore[untyped-decorator]
def load_half(typing: Any, address: Any) -> Any:
    """Return the four bytes at an address as uint32; the address need not be aligned."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], _int(32).as_pointer()), align=1)

    return _types.uint32(_types.int64), generate


@numba().extending.intrinsic  # type: ignore[untyped-decorator]
def copy_words(typing: Any, target: Any, source: Any) -> Any:
    """Copy 16 bytes between addresses, which need not be aligned."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = _ir.VectorType(_int(8), 16).as_pointer()
        value = builder.load(builder.inttoptr(args[1], words), align=1)
        builder.store(value, builder.inttoptr(args[0], words), align=1)
        return context.get_dummy_value()

    return _types.void(_types.int64, _types.int64), generate


@numba().extending.intrinsic  # type: ignore[untyped-decorator]
def copy_word(typing: Any, target: Any, source: Any) -> Any:
    """Copy eight bytes between addresses, which need not be aligned."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = _int(64).as_pointer()
        builder.store(builder.load(builder.inttoptr(args[1], word), align=1), builder.inttoptr(args[0], word), align=1)
        return context.get_dummy_value()

    return _types.void(_types.int64, _types.int64), generate


@numba().extending.intrinsic  # type: ignore[untyped-decorator]
def as_pointer(typing: Any, address: Any) -> Any:
    """Return an address as a pointer, for ``_carray``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], _int(8).as_pointer())

    return _types.voidptr(_types.int64), generate


@kernel()
def copy_back(target: Any, back: Any, length: Any) -> None:
    """Copy ``length`` bytes to an address from ``back`` bytes before it; what is copied may be repeated."""
    if back >= 16:
        for i in range(0, length, 16):
            copy_words(target + i, target + i - back)
    elif back >= 8:
        for i in range(0, length, 8):
            copy_word(target + i, target + i - back)
    else:
        memory = _carray(as_pointer(target - back), (back + length,), np.uint8)
        for i in range(length):
            memory[back + i] = memory[i]


@kernel()
def decompress(  # noqa: C901, PLR0912 - one loop over a format's elements
    source: Any, size: Any, target: Any, room: Any
) -> Any:
    """Decompress a block of ``size`` bytes at the address ``source`` to the address ``target``.

    Returns:
        False if the block is damaged or does not have ``room`` bytes when decompressed. At most ``reader.SLACK`` bytes
        are read after the block, and written after the result.
    """
    end, first, goal = source + size, target, target + room
    whole, shift = np.int64(0), np.int64(0)
    while True:
        if source >= end or shift > 28:
            return False
        byte = np.int64(load_word(source) & np.uint64(255))
        source += 1
        whole |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if whole != room:
        return False
    while source < end:
        word = np.int64(load_word(source))
        kind, length = word & 3, (word >> 2) & 63
        if kind == 0:  # a literal
            source += 1
            if length >= 60:  # its length is in the next bytes
                more = length - 59
                length = (word >> 8) & ((np.int64(1) << (8 * more)) - 1)
                source += more
            length += 1
            if length > end - source or length > goal - target:
                return False
            for i in range(0, length, 16):
                copy_words(target + i, source + i)
            source += length
        else:
            if kind == 1:
                back, length = (word & 224) << 3 | (word >> 8) & 255, (length & 7) + 4
                source += 2
            elif kind == 2:
                back, length = (word >> 8) & 65535, length + 1
                source += 3
            else:
                back, length = (word >> 8) & 4294967295, length + 1
                source += 5
            if source > end or back == 0 or back > target - first or length > goal - target:
                return False
            copy_back(target, back, length)
        target += length
    return target == goal
