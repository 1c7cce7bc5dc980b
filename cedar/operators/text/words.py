"""A cache of the ids of words (pieces of text), so that the tokenizer encodes each word only once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.arrow import numbers, of_numbers
from cedar.core.columns import Index
from cedar.operators.text.string_column import Bytes

Ids: TypeAlias = npt.NDArray[np.int32]
Words64: TypeAlias = npt.NDArray[np.uint64]
Encode: TypeAlias = "Callable[[Sequence[str]], tuple[Ids, Index]]"  # strings -> concatenated ids, counts per string

_SLOTS = 16  # bits of a slot index of the hash table
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio
_WIDTH = 8  # bytes per uint64
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(_WIDTH + 1)], dtype=np.uint64)
_LONGEST = 64  # maximum bytes of a cached word
_MOST_WORDS, _MOST_IDS = 1 << 18, 1 << 21  # the cache is cleared at this size, about 60 MB


class TokenCache:
    """The cached words of one tokenizer in one process, shared by its threads.

    Words are only added, never changed, and become visible when they are complete, so that readers need no lock.
    """

    def __init__(self) -> None:
        self._adding = threading.Lock()
        self._known = Generation()

    def ids(self, data: Bytes, bounds: Index, encode: Encode) -> tuple[Ids, Index]:
        """Return the concatenated ids of the (nonempty) pieces of ``data`` between ``bounds``, and each one's count."""
        known = self._known
        codes = known.codes(data, bounds)
        rest = np.flatnonzero(codes < 0)
        if not len(rest):
            return known.gather(codes)
        pieces = _pieces(data, bounds, rest)
        encoded = pieces.dictionary_encode()
        words: list[bytes] = encoded.dictionary.to_pylist()
        places = np.array([known.code(word) for word in words], dtype=np.int64)
        unknown = np.flatnonzero(places < 0)
        if not len(unknown):
            codes[rest] = places[numbers(encoded.indices)]
            return known.gather(codes)
        new = [words[i] for i in unknown.tolist()]
        ids, counts = encode([word.decode() for word in new])
        places[unknown] = -1 - np.arange(len(new))  # negative codes are local to this call
        codes[rest] = places[numbers(encoded.indices)]
        self._keep(known, new, ids, counts)
        return known.gather(codes, ids, counts)

    def _keep(self, known: Generation, words: Sequence[bytes], ids: Ids, counts: Index) -> None:
        with self._adding:
            if known is self._known:
                known.add(words, ids, counts)
                if known.full:
                    self._known = Generation()


class Generation:
    """The words of a cache until it is full; then a new generation replaces it."""

    def __init__(self) -> None:
        self._codes: dict[bytes, int] = {}
        self._short, self._wide = Slots(), Slots()
        self._starts = np.zeros(1 << 10, dtype=np.int64)
        self._counts = np.zeros(1 << 10, dtype=np.int64)
        self._ids: Ids = np.zeros(1 << 12, dtype=np.int32)
        self._used = 0

    @property
    def full(self) -> bool:
        return len(self._codes) >= _MOST_WORDS or self._used >= _MOST_IDS

    def code(self, word: bytes) -> int:
        return self._codes.get(word, -1)

    def codes(self, data: Bytes, bounds: Index) -> Index:
        """Return the code of each piece, or -1 if it is not in a slot."""
        keys = Keys.of(data, bounds)
        codes = self._short.find(keys.low, None)
        codes[keys.lengths > _WIDTH] = -1
        if keys.zeros is not None:
            codes[keys.zeros] = -1
        rest = np.flatnonzero(codes < 0)
        if len(rest):
            wide = self._wide.find(keys.low.take(rest), keys.high(rest))
            wide[keys.lengths.take(rest) > 2 * _WIDTH] = -1
            codes[rest] = wide
            if keys.zeros is not None:
                codes[keys.zeros] = -1
        return codes

    def gather(self, codes: Index, ids: Ids | None = None, counts: Index | None = None) -> tuple[Ids, Index]:
        """Return concatenated ids of words and each one's count. Codes -1, -2, ... refer to ``ids`` and ``counts``."""
        if ids is None or counts is None:
            lengths = self._counts.take(codes)
            return self._ids.take(_runs(self._starts.take(codes), lengths)), lengths
        local = codes < 0
        mine, theirs = codes[~local], -1 - codes[local]
        lengths = np.empty(len(codes), dtype=np.int64)
        lengths[~local], lengths[local] = self._counts.take(mine), counts[theirs]
        of_local = np.repeat(local, lengths)
        out = np.empty(len(of_local), dtype=np.int32)
        out[~of_local] = self._ids.take(_runs(self._starts.take(mine), lengths[~local]))
        out[of_local] = ids.take(_runs((np.cumsum(counts) - counts)[theirs], lengths[local]))
        return out, lengths

    def add(self, words: Sequence[bytes], ids: Ids, counts: Index) -> None:
        """Add words of at most ``_LONGEST`` bytes. Only one thread at a time may call this."""
        begins = np.cumsum(counts) - counts
        keep = [i for i, word in enumerate(words) if len(word) <= _LONGEST and word not in self._codes]
        if not keep:
            return
        size, taken = len(self._codes), counts[keep]
        chosen = ids.take(_runs(begins[keep], taken))
        starts = self._used + np.cumsum(taken) - taken
        self._starts = _extended(self._starts, size, starts)
        self._counts = _extended(self._counts, size, taken)
        self._ids = _extended(self._ids, self._used, chosen)
        self._used += len(chosen)
        for code, i in enumerate(keep, size):  # readers see the words from here on
            self._codes[words[i]] = code
        self._settle([words[i] for i in keep], size)

    def _settle(self, words: Sequence[bytes], first: int) -> None:
        """Put words of at most 16 bytes into slots."""
        joined = np.frombuffer(b"".join(words), dtype=np.uint8)
        keys = Keys.of(joined, np.concatenate([[0], np.cumsum([len(word) for word in words])]).astype(np.int64))
        fits = keys.lengths <= 2 * _WIDTH
        if keys.zeros is not None:
            fits[keys.zeros] = False
        own = np.flatnonzero(fits & (keys.lengths <= _WIDTH))
        fits[own[self._short.put(keys.low[own], None, own + first)]] = False
        own = np.flatnonzero(fits)
        self._wide.put(keys.low[own], keys.high(own), own + first)


@dataclass(frozen=True)
class Keys:
    """The first 16 bytes of each piece as two uint64, padded with zeros.

    Args:
        low: uint64: the first 8 bytes of each piece.
        lengths: int64: the length of each piece in bytes.
        zeros: indices of pieces that contain a zero byte and so have no key; None if there are none.
    """

    low: Words64
    lengths: Index
    zeros: Index | None
    _starts: Index
    _eights: Words64  # the 8 bytes that start at each byte

    @staticmethod
    def of(data: Bytes, bounds: Index) -> Keys:
        """Return the keys of the pieces of ``data`` between ``bounds``."""
        begin, end = int(bounds[0]), int(bounds[-1])
        padded = np.zeros(end - begin + 2 * _WIDTH, dtype=np.uint8)
        padded[: -2 * _WIDTH] = data[begin:end]
        eights: Words64 = np.ndarray(shape=(end - begin + _WIDTH,), dtype="<u8", buffer=padded, strides=(1,))
        starts, lengths, zeros = bounds[:-1] - begin, np.diff(bounds), None
        if end > begin and not padded[: -2 * _WIDTH].all():
            places = np.flatnonzero(padded[: -2 * _WIDTH] == 0) + begin
            zeros = np.unique(np.searchsorted(bounds, places, side="right") - 1)
        low = eights.take(starts)
        low &= _MASKS.take(np.minimum(lengths, _WIDTH))
        return Keys(low, lengths, zeros, starts, eights)

    def high(self, which: Index) -> Words64:
        """Return the second 8 bytes of the pieces at the indices ``which``."""
        more = np.clip(self.lengths.take(which) - _WIDTH, 0, _WIDTH)
        eights: Words64 = self._eights.take(self._starts.take(which) + _WIDTH) & _MASKS.take(more)
        return eights


class Slots:
    """A hash table from keys to codes. Each key has one possible slot, and a slot never changes once it is filled."""

    def __init__(self) -> None:
        self._low = np.zeros(1 << _SLOTS, dtype=np.uint64)
        self._high = np.zeros(1 << _SLOTS, dtype=np.uint64)
        self._codes = np.full(1 << _SLOTS, -1, dtype=np.int64)

    def find(self, low: Words64, high: Words64 | None) -> Index:
        """Return the code of each key, or -1 if its slot is empty or holds another key."""
        places = _place(low, high)
        codes: Index = self._codes.take(places)
        codes[self._low.take(places) != low] = -1
        if high is not None:
            codes[self._high.take(places) != high] = -1
        return codes

    def put(self, low: Words64, high: Words64 | None, codes: Index) -> Index:
        """Put keys into their slots if these are empty; return the indices of the keys that were stored."""
        places, which = np.unique(_place(low, high), return_index=True)
        free = self._codes[places] < 0
        places, which = places[free], which[free]
        self._low[places] = low[which]
        if high is not None:
            self._high[places] = high[which]
        self._codes[places] = codes[which]  # last, so that a reader that sees the code also sees the key
        return which


def _place(low: Words64, high: Words64 | None) -> Index:
    mixed = low * _MIX
    if high is not None:
        mixed ^= high
        mixed *= _MIX
    mixed >>= np.uint64(64 - _SLOTS)
    return mixed.view(np.int64)


def _pieces(data: Bytes, bounds: Index, which: Index) -> pa.Array:
    """Return the pieces at the indices ``which`` as an Arrow array."""
    offsets = pa.py_buffer(np.ascontiguousarray(bounds))
    every = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, [None, offsets, pa.py_buffer(data)])
    return every if len(which) == len(bounds) - 1 else every.take(of_numbers(which))


def _runs(starts: Index, lengths: Index) -> Index:
    """Return the concatenated ranges start .. start + length - 1."""
    ends = np.cumsum(lengths)
    places = np.repeat(starts - (ends - lengths), lengths)
    places += np.arange(len(places), dtype=np.int64)
    return places


def _extended(array: npt.NDArray, used: int, more: npt.NDArray) -> npt.NDArray:  # type: ignore[type-arg]
    """Return ``array`` with ``more`` after its first ``used`` entries, in a new array if there is no room."""
    if used + len(more) > len(array):
        larger = np.zeros(2 * (used + len(more)), dtype=array.dtype)
        larger[:used] = array[:used]
        array = larger
    array[used : used + len(more)] = more
    return array
