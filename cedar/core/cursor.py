"""Row keys: the stable identity of a row.

A key is (branch, repeat, file, row or byte offset, flat_map index). A file is identified by a 64-bit hash of its path
relative to the root of its listing, so keys stay the same if the data move or if other files are added to the listing.
Sources without files number their rows. Shuffles sort by a hash of the key, and random operators use it as their seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cedar.core.errors import RowRef

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Part = int | Ints  # one value for all rows, or a value per row

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix64(value: int) -> int:
    """Apply the finalizer of splitmix64 (Steele et al., 2014): a bijection on 64-bit words that mixes their bits."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def hash_ints(*values: int) -> int:
    """Return a 64-bit hash of a tuple of integers; the same in every process and on every machine."""
    state = len(values)
    for value in values:  # ``mix64(state ^ mix64(value))``, without calls
        for word in (0, state):
            value = ((word ^ value) + _GOLDEN) & _MASK
            value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
            value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
            value ^= value >> 31
        state = value
    return state


def hash_array(state: int | Hashes, values: Part) -> int | Hashes:
    """Extend a ``hash_ints`` state by one more value per row."""
    if isinstance(values, int) and isinstance(state, int):
        return mix64(state ^ mix64(values & _MASK))
    inner = mix64(values & _MASK) if isinstance(values, int) else mix64_array(values.astype(np.uint64))
    return mix64_array(np.uint64(state) ^ np.asarray(inner, dtype=np.uint64))


def mix64_array(values: Hashes) -> Hashes:
    """Apply ``mix64`` to every value."""
    values = values + np.uint64(_GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def hash_names(names: Sequence[str]) -> Ints:
    """Return int64[names], a hash of each name; the same in every process and on every machine.

    Examples:
        >>> hash_names(["a.parquet", "day=1/a.parquet"]).tolist()
        [2233263537669486555, 1513619954463838812]
    """
    strings = [name.encode("utf-8", "surrogateescape") for name in names]
    data = b"".join([*strings, bytes(8)])
    words = np.ndarray(len(data) - 7, dtype="<u8", buffer=data, strides=(1,))  # the 8-byte word at each byte
    left = np.fromiter(map(len, strings), dtype=np.int64, count=len(strings))
    at = np.cumsum(left) - left
    hashes = mix64_array(left.astype(np.uint64))
    some = np.flatnonzero(left)
    while len(some):  # the next word of each name that is not finished
        unused = np.uint64(8) * np.maximum(8 - left[some], 0).astype(np.uint64)
        word = (words[at[some]] << unused) >> unused
        hashes[some] = mix64_array(hashes[some] ^ word)
        left, at = left - 8, at + 8
        some = some[left[some] > 0]
    return hashes.view(np.int64)


def branch_of(outer: int, index: int) -> int:
    """Return the branch number of input ``index`` of a ``mix`` or ``concat`` whose own branch is ``outer``."""
    return hash_ints(outer, index + 1) >> 1


@dataclass(frozen=True, slots=True)
class KeyParts:
    """The input rows that each row was made from: their number per row, and the keys of all of them in order."""

    counts: Ints
    keys: Keys

    def take(self, index: Ints | slice) -> KeyParts:
        counts = self.counts[index]
        first = (np.cumsum(self.counts) - self.counts)[index]
        before = np.cumsum(counts) - counts
        return KeyParts(counts, self.keys.take(np.repeat(first - before, counts) + np.arange(int(counts.sum()))))


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of consecutive rows, one array per component.

    ``row`` is int64[n]; the other components are one int for all rows, or int64[n]. ``source`` identifies the source in
    the DAG for error messages, and is not part of the hash. ``sub`` is -1 if no flat_map was applied. ``parts`` has the
    input rows that each row was made from, if the caller asked for them.
    """

    row: Ints
    file: Part = 0
    sub: Part = -1
    repeat: Part = 0
    branch: Part = 0
    source: Part = 0
    parts: KeyParts | None = None

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: Ints | slice) -> Keys:
        file, sub, repeat, branch, source = self.file, self.sub, self.repeat, self.branch, self.source
        return Keys(
            self.row[index],
            file if isinstance(file, int) else file[index],
            sub if isinstance(sub, int) else sub[index],
            repeat if isinstance(repeat, int) else repeat[index],
            branch if isinstance(branch, int) else branch[index],
            source if isinstance(source, int) else source[index],
            None if self.parts is None else self.parts.take(index),
        )

    def each(self) -> tuple[Ints, Keys]:
        """Return for each input row (without ``parts``: for each row) the index of the row made from it, and its key.

        Examples:
            >>> keys = Keys(np.array([4, 7]), parts=KeyParts(np.array([2, 1]), Keys(np.array([4, 5, 7]))))
            >>> places, parts = keys.each()
            >>> places.tolist(), parts.row.tolist()
            ([0, 0, 1], [4, 5, 7])
        """
        if self.parts is None:
            return np.arange(len(self.row)), self
        return np.repeat(np.arange(len(self.row)), self.parts.counts), self.parts.keys

    def within(self, index: int) -> Keys:
        """Return the keys of these rows after they pass through input ``index`` of a mix or concat."""
        if isinstance(self.branch, int):
            return replace(self, branch=branch_of(self.branch, index))
        levels, inverse = np.unique(self.branch, return_inverse=True)
        renamed = np.array([branch_of(int(level), index) for level in levels], dtype=np.int64)
        return replace(self, branch=renamed[inverse])

    def hash(self, seed: int) -> Hashes:
        """Return uint64[n], the hash of each row's key, independent of the row's position. ``seed`` has 64 bits."""
        state: int | Hashes = seed & _MASK
        for part in (self.branch, self.repeat, self.file, self.row, self.sub):
            state = hash_array(state, part)
        assert not isinstance(state, int)
        return state

    def ref(self, index: int) -> RowRef:
        """Return the reference of the row at ``index``, for an error message."""

        def at(part: Part) -> int:
            return part if isinstance(part, int) else int(part[index])

        return RowRef(at(self.source), at(self.file), int(self.row[index]), at(self.sub), at(self.repeat))

    @property
    def ends(self) -> tuple[int, int, int, int, int, int] | tuple[()]:
        """Source, file and row of the first row and of the last row; empty if there are no rows.

        Examples:
            >>> Keys(np.array([4, 7, 9]), file=2).ends
            (0, 2, 4, 0, 2, 9)
        """
        row, source, file = self.row, self.source, self.file
        if not len(row):
            return ()
        sources = (source, source) if isinstance(source, int) else (int(source[0]), int(source[-1]))
        files = (file, file) if isinstance(file, int) else (int(file[0]), int(file[-1]))
        return sources[0], files[0], row.item(0), sources[1], files[1], row.item(-1)

    def expand(self, counts: Ints) -> Keys:
        """Repeat row i ``counts[i]`` times; ``sub`` numbers the repetitions."""
        return self.take(np.repeat(np.arange(len(counts)), counts)).items(_numbered(counts))

    def copies(self, counts: Ints) -> Keys:
        """Repeat row i ``counts[i]`` times. The first copy keeps the key; others are in branches of their own."""
        keys, numbers = self.take(np.repeat(np.arange(len(counts)), counts)), _numbered(counts)
        branches = (hash_array(hash_array(1, keys.branch), numbers) >> np.uint64(1)).astype(np.int64)
        return replace(keys, branch=np.where(numbers > 0, branches, keys.branch))

    def items(self, numbers: Ints) -> Keys:
        """Return the keys of item ``numbers[i]`` of row i. ``sub`` is this number; a hash if row i is an item too."""
        if isinstance(self.sub, int) and self.sub == -1:
            return replace(self, sub=numbers)
        hashed = np.asarray(hash_array(hash_array(1, self.sub), numbers), dtype=np.uint64)
        nested = (hashed >> np.uint64(1)).astype(np.int64)
        return replace(self, sub=nested if isinstance(self.sub, int) else np.where(self.sub == -1, numbers, nested))


def _numbered(counts: Ints) -> Ints:
    """Return 0, 1, ..., counts[i] - 1 for each i."""
    return np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)


def concat_keys(parts: Sequence[Keys]) -> Keys:
    """Concatenate several ``Keys``."""
    if len(parts) == 1:
        return parts[0]

    def join(values: list[Part]) -> Part:
        first = values[0]
        if isinstance(first, int) and all(isinstance(v, int) and v == first for v in values):
            return first
        return np.concatenate(
            [
                np.full(len(p), v, dtype=np.int64) if isinstance(v, int) else v
                for p, v in zip(parts, values, strict=True)
            ]
        )

    made: KeyParts | None = None
    if any(p.parts is not None for p in parts):
        each = [p.parts or KeyParts(np.ones(len(p), dtype=np.int64), p) for p in parts]
        made = KeyParts(np.concatenate([e.counts for e in each]), concat_keys([e.keys for e in each]))
    return Keys(
        np.concatenate([p.row for p in parts]),
        join([p.file for p in parts]),
        join([p.sub for p in parts]),
        join([p.repeat for p in parts]),
        join([p.branch for p in parts]),
        join([p.source for p in parts]),
        made,
    )


def no_keys() -> Keys:
    """Return the keys of zero rows."""
    return Keys(np.empty(0, dtype=np.int64))
