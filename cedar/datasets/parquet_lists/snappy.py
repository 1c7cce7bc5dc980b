"""Decompress Snappy blocks in a compiled loop; dictionaries of ids take 0.6 of the time of Arrow's codec.

Arrow decompresses one page per call. Each return from such a call waits for the GIL, which other threads hold. Here a
kernel decompresses a page and decodes it at once, while it is in the core's cache.

The format is described in google/snappy, format_description.txt: a block begins with its decompressed size, followed by
elements: bytes to append (literals), or a length and how far back to copy from (copies).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cedar.datasets.parquet_lists.memory import as_pointer, copy_words, load_word, store_word
from cedar.operators.jit import kernel, numba

_carray = numba().carray


@kernel()
def repeat(target: Any, back: Any, length: Any) -> None:
    """Write ``length`` bytes at an address, which repeat the ``back`` bytes before it."""
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
        length = (word >> 2) & 63
        if word & 3 == 0:  # a literal
            source += 1
            if length >= 60:  # its length is in the next bytes
                more = length - 59
                length = (word >> 8) & ((np.int64(1) << (8 * more)) - 1)
                source += more
            length += 1
            if length > end - source or length > goal - target:
                return False
            copy_words(target, source)
            done = np.int64(16)
            while done < length:
                copy_words(target + done, source + done)
                done += 16
            source += length
            target += length
            if length > 3 or source >= end:
                continue
            word >>= 8 * length + 8  # has the next element, too, which is usually a copy
            length = (word >> 2) & 63
            if word & 3 == 0 or word & 3 == 3:  # another literal, or a copy of five bytes, which may be cut off
                continue
        kind = word & 3  # without branches, since the kinds of copies cannot be predicted
        back = (word >> 8) & np.int64(4294967295 if kind == 3 else 65535)
        back = (word & 224) << 3 | back & 255 if kind == 1 else back
        length = (length & 7) + 4 if kind == 1 else length + 1
        source += 5 if kind == 3 else kind + 1
        if source > end or back == 0 or back > target - first or length > goal - target:
            return False
        if back < 8:
            repeat(target, back, length)
        else:
            done = np.int64(0)
            while done < length:
                store_word(target + done, load_word(target + done - back))
                done += 8
        target += length
    return target == goal
