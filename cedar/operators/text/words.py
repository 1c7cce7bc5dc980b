"""A cache of the ids of words (pieces of text), so that a tokenizer encodes each word only once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.columns import Index, from_numbers, numbers
from cedar.core.jagged import stretches
from cedar.operators.text.string_column import Bytes

Ids: TypeAlias = npt.NDArray[np.int32]
Words64: TypeAlias = npt.NDArray[np.uint64]
Encode: TypeAlias = "Callable[[Sequence[str]], tuple[Ids, Index]]"  # strings -> concatenated ids, counts per string

_SLOT_BITS = 16  # bits of a slot's index in the hash table
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio
_WIDTH = 8  # bytes per uint64
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(_WIDTH + 1)], dtype=np.uint64)
_MAX_WORD_BYTES = 64  # maximum bytes of a cached word
_MAX_WORDS, _MAX_IDS = 1 << 18, 1 << 21  # limits, about 60 MB, at which the cache is cleared


class TokenCache:
    """The cached words of one tokenizer in one process; threads share the cache.

    Words are added but never changed, and become visible only when they are complete, so readers do not need a lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation = Generation()

    def ids(self, data: Bytes, bounds: Index, encode: Encode) -> tuple[Ids, Index]:
        """Return the concatenated ids of the (nonempty) pieces of ``data`` between ``bounds``, and their id counts."""
        generation = self._generation
        codes = generation.codes(data, bounds)
        uncached = np.flatnonzero(codes < 0)
        if not len(uncached):
            return generation.gather(codes)
        pieces = _take_pieces(data, bounds, uncached)
        encoded = pieces.dictionary_encode()
        words: list[bytes] = encoded.dictionary.to_pylist()
        word_codes = np.array([generation.code(word) for word in words], dtype=np.int64)
        unknown = np.flatnonzero(word_codes < 0)
        if not len(unknown):
            codes[uncached] = word_codes[numbers(encoded.indices)]
            return generation.gather(codes)
        new = [words[i] for i in unknown.tolist()]
        ids, counts = encode([word.decode() for word in new])
        word_codes[unknown] = -1 - np.arange(len(new))  # negative codes refer to ids of this call
        codes[uncached] = word_codes[numbers(encoded.indices)]
        self._add_words(generation, new, ids, counts)
        return generation.gather(codes, ids, counts)

    def _add_words(self, generation: Generation, words: Sequence[bytes], ids: Ids, counts: Index) -> None:
        with self._lock:
            if generation is self._generation:
                generation.add(words, ids, counts)
                if generation.full:
                    self._generation = Generation()


class Generation:
    """The words in a cache. When a generation is full, the cache replaces it by a new, empty one."""

    def __init__(self) -> None:
        self._codes: dict[bytes, int] = {}
        self._short, self._wide = SlotTable(), SlotTable()
        self._starts = np.zeros(1 << 10, dtype=np.int64)
        self._counts = np.zeros(1 << 10, dtype=np.int64)
        self._ids: Ids = np.zeros(1 << 12, dtype=np.int32)
        self._used = 0

    @property
    def full(self) -> bool:
        return len(self._codes) >= _MAX_WORDS or self._used >= _MAX_IDS

    def code(self, word: bytes) -> int:
        return self._codes.get(word, -1)

    def codes(self, data: Bytes, bounds: Index) -> Index:
        """Return the code (word index) of each piece, or -1 if its word is not in a slot."""
        keys = PieceKeys.of(data, bounds)
        codes = self._short.find(keys.low, None)
        codes[keys.lengths > _WIDTH] = -1
        if keys.zeros is not None:
            codes[keys.zeros] = -1
        longer = np.flatnonzero(codes < 0)
        if len(longer):
            long_codes = self._wide.find(keys.low.take(longer), keys.high(longer))
            long_codes[keys.lengths.take(longer) > 2 * _WIDTH] = -1
            codes[longer] = long_codes
            if keys.zeros is not None:
                codes[keys.zeros] = -1
        return codes

    def gather(self, codes: Index, ids: Ids | None = None, counts: Index | None = None) -> tuple[Ids, Index]:
        """Return the concatenated ids and the id counts of words; codes -1, -2, ... refer to ``ids`` and ``counts``."""
        if ids is None or counts is None:
            lengths = self._counts.take(codes)
            return self._ids.take(stretches(self._starts.take(codes), lengths)[0]), lengths
        local = codes < 0
        cached_codes, local_indices = codes[~local], -1 - codes[local]
        lengths = np.empty(len(codes), dtype=np.int64)
        lengths[~local], lengths[local] = self._counts.take(cached_codes), counts[local_indices]
        is_local = np.repeat(local, lengths)
        out = np.empty(len(is_local), dtype=np.int32)
        out[~is_local] = self._ids.take(stretches(self._starts.take(cached_codes), lengths[~local])[0])
        out[is_local] = ids.take(stretches((np.cumsum(counts) - counts)[local_indices], lengths[local])[0])
        return out, lengths

    def add(self, words: Sequence[bytes], ids: Ids, counts: Index) -> None:
        """Add words of at most ``_MAX_WORD_BYTES`` bytes. Only one thread at a time may call this."""
        begins = np.cumsum(counts) - counts
        kept = [i for i, word in enumerate(words) if len(word) <= _MAX_WORD_BYTES and word not in self._codes]
        if not kept:
            return
        size, taken = len(self._codes), counts[kept]
        chosen = ids.take(stretches(begins[kept], taken)[0])
        starts = self._used + np.cumsum(taken) - taken
        self._starts = _append(self._starts, size, starts)
        self._counts = _append(self._counts, size, taken)
        self._ids = _append(self._ids, self._used, chosen)
        self._used += len(chosen)
        for code, i in enumerate(kept, size):  # from here on, readers can find the words
            self._codes[words[i]] = code
        self._fill_slots([words[i] for i in kept], size)

    def _fill_slots(self, words: Sequence[bytes], first: int) -> None:
        """Store words of at most 16 bytes in slots."""
        joined = np.frombuffer(b"".join(words), dtype=np.uint8)
        keys = PieceKeys.of(joined, np.concatenate([[0], np.cumsum([len(word) for word in words])]).astype(np.int64))
        fits = keys.lengths <= 2 * _WIDTH
        if keys.zeros is not None:
            fits[keys.zeros] = False
        indices = np.flatnonzero(fits & (keys.lengths <= _WIDTH))
        fits[indices[self._short.put(keys.low[indices], None, indices + first)]] = False
        indices = np.flatnonzero(fits)
        self._wide.put(keys.low[indices], keys.high(indices), indices + first)


@dataclass(frozen=True)
class PieceKeys:
    """The keys of pieces: their first 16 bytes as two uint64, padded with zeros.

    Args:
        low: the first 8 bytes of each piece, uint64.
        lengths: the length of each piece in bytes, int64.
        zeros: indices of pieces with a zero byte, whose keys are ambiguous; None if there are none.
    """

    low: Words64
    lengths: Index
    zeros: Index | None
    _starts: Index
    _windows: Words64  # for each byte, the 8 bytes from there on

    @staticmethod
    def of(data: Bytes, bounds: Index) -> PieceKeys:
        """Return the keys of the pieces of ``data`` between ``bounds``."""
        begin, end = int(bounds[0]), int(bounds[-1])
        padded = np.zeros(end - begin + 2 * _WIDTH, dtype=np.uint8)
        padded[: -2 * _WIDTH] = data[begin:end]
        windows: Words64 = np.ndarray(shape=(end - begin + _WIDTH,), dtype="<u8", buffer=padded, strides=(1,))
        starts, lengths, zeros = bounds[:-1] - begin, np.diff(bounds), None
        if end > begin and not padded[: -2 * _WIDTH].all():
            zero_positions = np.flatnonzero(padded[: -2 * _WIDTH] == 0) + begin
            zeros = np.unique(np.searchsorted(bounds, zero_positions, side="right") - 1)
        low = windows.take(starts)
        low &= _MASKS.take(np.minimum(lengths, _WIDTH))
        return PieceKeys(low, lengths, zeros, starts, windows)

    def high(self, which: Index) -> Words64:
        """Return the second 8 bytes of the pieces with the indices ``which``, uint64."""
        more = np.clip(self.lengths.take(which) - _WIDTH, 0, _WIDTH)
        windows: Words64 = self._windows.take(self._starts.take(which) + _WIDTH) & _MASKS.take(more)
        return windows


class SlotTable:
    """A hash table from keys to codes. A key can only be in one slot, and filled slots never change."""

    def __init__(self) -> None:
        self._low = np.zeros(1 << _SLOT_BITS, dtype=np.uint64)
        self._high = np.zeros(1 << _SLOT_BITS, dtype=np.uint64)
        self._codes = np.full(1 << _SLOT_BITS, -1, dtype=np.int64)

    def find(self, low: Words64, high: Words64 | None) -> Index:
        """Return the code of each key, or -1 if the key's slot is empty or has another key."""
        slots = _slot_of(low, high)
        codes: Index = self._codes.take(slots)
        codes[self._low.take(slots) != low] = -1
        if high is not None:
            codes[self._high.take(slots) != high] = -1
        return codes

    def put(self, low: Words64, high: Words64 | None, codes: Index) -> Index:
        """Store keys whose slots are empty; return the indices of the stored keys."""
        slots, indices = np.unique(_slot_of(low, high), return_index=True)
        free = self._codes[slots] < 0
        slots, indices = slots[free], indices[free]
        self._low[slots] = low[indices]
        if high is not None:
            self._high[slots] = high[indices]
        self._codes[slots] = codes[indices]  # write codes last: a reader that sees a code also sees its key
        return indices


def _slot_of(low: Words64, high: Words64 | None) -> Index:
    mixed = low * _HASH_MULTIPLIER
    if high is not None:
        mixed ^= high
        mixed *= _HASH_MULTIPLIER
    mixed >>= np.uint64(64 - _SLOT_BITS)
    return mixed.view(np.int64)


def _take_pieces(data: Bytes, bounds: Index, which: Index) -> pa.Array:
    """Return the pieces with the indices ``which`` as an Arrow array."""
    offsets = pa.py_buffer(np.ascontiguousarray(bounds))
    every = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, [None, offsets, pa.py_buffer(data)])
    return every if len(which) == len(bounds) - 1 else every.take(from_numbers(which))


def _append(array: npt.NDArray, used: int, more: npt.NDArray) -> npt.NDArray:  # type: ignore[type-arg]
    """Write ``more`` after the first ``used`` entries of ``array``; return it, or a larger copy if it is too small."""
    if used + len(more) > len(array):
        larger = np.zeros(2 * (used + len(more)), dtype=array.dtype)
        larger[:used] = array[:used]
        array = larger
    array[used : used + len(more)] = more
    return array
