"""Hashes of a column's values that are equal in every process, on every machine and in every version."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.block import python_values
from cedar.core.columns import Column, Index
from cedar.core.cursor import Hashes, hash_array, hash_ints, hash_names

_NULL = 0x6E756C6C  # hashed in place of a null


def value_hashes(column: Column, seed: int) -> Hashes:
    """Return a hash of each value, uint64[rows]. Equal values have equal hashes, and all nulls have the same hash.

    Examples:
        >>> a, b, c = value_hashes(pa.array([7, 7, 8]), seed=0).tolist()
        >>> a == b, a == c
        (True, False)
    """
    if not isinstance(column, pa.Array):
        return _hash_words(_hash_objects(python_values(column)), seed)
    encoded = column.dictionary_encode() if not pt.is_nested(column.type) else None
    if encoded is None:
        return _hash_words(_hash_objects(column.to_pylist()), seed)
    distinct, places = encoded.dictionary, encoded.indices.fill_null(len(encoded.dictionary)).to_numpy()
    if pt.is_integer(distinct.type):
        words = distinct.to_numpy(zero_copy_only=False).astype(np.int64)
    elif pt.is_large_string(distinct.type) or pt.is_string(distinct.type):
        words = hash_names(distinct.to_pylist())
    else:
        words = _hash_objects(distinct.to_pylist())
    hashes = np.append(_hash_words(words, seed), np.uint64(hash_ints(seed, _NULL)))
    found: Hashes = hashes[places]
    return found


def sort_by_first_bits(hashes: Hashes) -> tuple[Index, Hashes]:
    """Sort rows by the first bits of their hashes; return row indices (ties in row order), int64, and the bits, uint64.

    Each sorted number consists of the first bits of a hash, followed by the row index. Sorting these numbers takes a
    tenth of the time of sorting rows by hash.

    Examples:
        >>> sort_by_first_bits(np.array([1 << 60, 7, 1 << 50, 2], dtype=np.uint64))[0].tolist()
        [3, 1, 2, 0]
    """
    low = np.uint64((1 << max(len(hashes) - 1, 0).bit_length()) - 1)
    packed = hashes & ~low
    packed |= np.arange(len(hashes), dtype=np.uint64)
    packed.sort()
    order = (packed & low).view(np.int64)
    packed &= ~low
    return order, packed


def _hash_words(words: Any, seed: int) -> Hashes:
    return np.asarray(hash_array(hash_ints(seed), words), dtype=np.uint64)


def _hash_objects(values: Any) -> Any:
    strings = (repr(value + 0.0 if isinstance(value, float) else value) for value in values)  # -0.0 hashes like 0.0
    digests = (int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") for text in strings)
    return np.fromiter(digests, dtype=np.uint64, count=len(values)).view(np.int64)
