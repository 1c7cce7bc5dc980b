"""Words: pieces of text whose ids are known, kept so that a tokenizer sees each only once."""

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
Encode: TypeAlias = "Callable[[Sequence[str]], tuple[Ids, Index]]"  # strings -> their ids one after the other, how many

_SLOTS = 16  # bits of the number of a slot
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio
_WIDTH = 8  # bytes of a number
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(_WIDTH + 1)], dtype=np.uint64)
_LONGEST = 64  # bytes of a word that is kept
_MOST_WORDS, _MOST_IDS = 1 << 18, 1 << 21  # when so many are kept, they are forgotten: about 60 MB


class TokenCache:
    """What one process knows of one tokenizer; its threads share it.

    Words are only ever added, and published when they are complete, so that readers take no lock.
    """

    def __init__(self) -> None:
        self._adding = threading.Lock()
        self._known = Generation()

    def ids(self, data: Bytes, bounds: Index, encode: Encode) -> tuple[Ids, Index]:
        """The ids of the pieces of ``data`` between ``bounds``, none of which is empty, and how many each has."""
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
        places[unknown] = -1 - np.arange(len(new))  # for now, they are known here alone
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
    """Words until there are too many."""

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
        """The codes of pieces; -1 if they are in no slot."""
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
        """The ids of words, and how many each has. Codes below 0 count backwards from the first of ``counts``."""
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
        """Keep words that are not long; called by one thread at a time."""
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
        for code, i in enumerate(keep, size):  # from here on readers see them
            self._codes[words[i]] = code
        self._settle([words[i] for i in keep], size)

    def _settle(self, words: Sequence[bytes], first: int) -> None:
        """Give words that are not long a slot."""
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
    """The first 16 bytes of pieces, as numbers of 8 bytes; what a piece has less is 0.

    Args:
        low: uint64, of the first 8.
        lengths: int64, of the pieces.
        zeros: the pieces that have a byte 0 in them, and no key; None if there are none.
    """

    low: Words64
    lengths: Index
    zeros: Index | None
    _starts: Index
    _eights: Words64  # the 8 bytes from each byte on

    @staticmethod
    def of(data: Bytes, bounds: Index) -> Keys:
        """Of the pieces of ``data`` between ``bounds``."""
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
        """Of the second 8, of some of the pieces."""
        more = np.clip(self.lengths.take(which) - _WIDTH, 0, _WIDTH)
        eights: Words64 = self._eights.take(self._starts.take(which) + _WIDTH) & _MASKS.take(more)
        return eights


class Slots:
    """Codes by keys, each in the one slot that its key says; a slot's owner never changes."""

    def __init__(self) -> None:
        self._low = np.zeros(1 << _SLOTS, dtype=np.uint64)
        self._high = np.zeros(1 << _SLOTS, dtype=np.uint64)
        self._codes = np.full(1 << _SLOTS, -1, dtype=np.int64)

    def find(self, low: Words64, high: Words64 | None) -> Index:
        """The code of each key, -1 if another one has its slot, or none."""
        places = _place(low, high)
        codes: Index = self._codes.take(places)
        codes[self._low.take(places) != low] = -1
        if high is not None:
            codes[self._high.take(places) != high] = -1
        return codes

    def put(self, low: Words64, high: Words64 | None, codes: Index) -> Index:
        """Which of the keys got their slot."""
        places, which = np.unique(_place(low, high), return_index=True)
        free = self._codes[places] < 0
        places, which = places[free], which[free]
        self._low[places] = low[which]
        if high is not None:
            self._high[places] = high[which]
        self._codes[places] = codes[which]  # last: a reader that sees it sees the key
        return which


def _place(low: Words64, high: Words64 | None) -> Index:
    mixed = low * _MIX
    if high is not None:
        mixed ^= high
        mixed *= _MIX
    mixed >>= np.uint64(64 - _SLOTS)
    return mixed.view(np.int64)


def _pieces(data: Bytes, bounds: Index, which: Index) -> pa.Array:
    """Some of the pieces, as an Arrow array."""
    offsets = pa.py_buffer(np.ascontiguousarray(bounds))
    every = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, [None, offsets, pa.py_buffer(data)])
    return every if len(which) == len(bounds) - 1 else every.take(of_numbers(which))


def _runs(starts: Index, lengths: Index) -> Index:
    """From each of ``starts`` on, as many numbers as ``lengths`` says."""
    ends = np.cumsum(lengths)
    places = np.repeat(starts - (ends - lengths), lengths)
    places += np.arange(len(places), dtype=np.int64)
    return places


def _extended(array: npt.NDArray, used: int, more: npt.NDArray) -> npt.NDArray:  # type: ignore[type-arg]
    """``array`` with ``more`` after its first ``used`` entries; a new one if there is no room."""
    if used + len(more) > len(array):
        larger = np.zeros(2 * (used + len(more)), dtype=array.dtype)
        larger[:used] = array[:used]
        array = larger
    array[used : used + len(more)] = more
    return array
