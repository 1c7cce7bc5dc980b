"""The pass for ``unique``: finds rows with repeated values by hashing, and spills hashes to disk beyond a limit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.boundary import to_frame
from cedar.core.columns import Column, Index
from cedar.core.cursor import Hashes
from cedar.core.errors import PipelineError, Skip
from cedar.core.groups import plain
from cedar.core.packages import library, version_of
from cedar.operators.split_rows import sort_by_first_bits
from cedar.operators.surveys import kept_table
from cedar.operators.unique import Keep, Repeats
from cedar.pipeline.surveying import survey
from cedar.plan.graph import Node
from cedar.store.files import remove_tree, temporary_folder
from cedar.tasks.fingerprints import key_of

MEMORY = 256 << 20  # maximum bytes of hashes in memory, before they are written to disk
_ROW_BYTES = 24  # bytes per row: three hashes
_KIND = "unique"
_PARTS = 64
_SEED = b"seed"
_SKETCH_HASHES = 128  # number of hashes in a text's MinHash sketch
_NO_HASHES = np.empty(0, dtype=np.uint64)


def find_repeats(
    node: Node, columns: tuple[str, ...] | None, keep: Keep, on_error: Skip | None, memory: int = MEMORY
) -> Repeats:
    """Find the rows of a node that ``unique`` drops, reading them in the order of the sources.

    Two values count as equal if their 128-bit hashes are equal. Among a billion values, the probability that two
    different values have the same hash is 1e-21.
    """

    def dropped(seed: int) -> Hashes | None:
        with ValueHashes(memory) as seen:
            for block in survey(node, columns, "unique", on_error):
                seen.add(*_hash_values(block, node), block.live_keys().hash(seed))
            return seen.dropped(keep)

    return _kept(key_of(node, on_error, "unique", columns, keep), dropped)


def find_near_repeats(node: Node, column: str, threshold: float, words: int, on_error: Skip | None) -> Repeats:
    """Find the rows of a node whose text is similar to that of an earlier kept row, by MinHash, in source order."""
    rensa = library("rensa", "near-duplicates", "drop_near_duplicates")
    bands = next(
        b
        for b in (4, 8, 16, 32, 64, _SKETCH_HASHES)
        if (1 / b) ** (b / _SKETCH_HASHES) <= threshold - 0.05 or b == _SKETCH_HASHES
    )

    def dropped(seed: int) -> Hashes | None:
        index = rensa.RMinHashLSH(threshold=threshold, num_perm=_SKETCH_HASHES, num_bands=bands)
        sketches: list[Any] = []
        keys: dict[bool, list[int]] = {True: [], False: []}  # True: keys of rows to keep; False: to drop
        for block in survey(node, (column,), "drop_near_duplicates", on_error):
            strings = plain(block.columns[column]).to_pylist()
            for text, key in zip(strings, block.live_keys().hash(seed).tolist(), strict=True):
                sketch = rensa.RMinHash(num_perm=_SKETCH_HASHES, seed=0)
                sketch.update(shingles(text or "", words))
                like = text and any(sketches[i].jaccard(sketch) >= threshold for i in index.query(sketch))
                keys[not like].append(key)
                if text and not like:
                    index.insert(len(sketches), sketch)
                    sketches.append(sketch)
        stay, gone = (np.sort(np.array(keys[side], dtype=np.uint64)) for side in (True, False))
        return None if len(gone) and _overlap([stay], gone) else gone

    asked = ("near duplicates", column, threshold, words, version_of("rensa"))
    return _kept(key_of(node, on_error, *asked), dropped)


def shingles(text: str, words: int) -> list[str]:
    """Return all n-grams of ``words`` consecutive words, in lower case. A text with fewer words is one n-gram.

    Examples:
        >>> shingles("The cat, the mat!", 3)
        ['the cat the', 'cat the mat']
    """
    found = re.findall(r"\w+", text.lower())
    return [" ".join(found[i : i + words]) for i in range(max(len(found) - words + 1, 1))]


def _kept(key: str | None, dropped: Callable[[int], Hashes | None]) -> Repeats:
    """Run a pass, or load its stored result. Row keys are hashed with the first seed that avoids collisions."""

    def make() -> pa.Table:
        for seed in range(16):
            if (found := dropped(seed)) is not None:
                return pa.table({"key": found}).replace_schema_metadata({_SEED: str(seed).encode()})
        raise AssertionError("the hashes of row keys meet under every seed")

    stored = kept_table(key, make)
    return Repeats(int((stored.table.schema.metadata or {})[_SEED]), stored)


def _hash_values(block: Block, node: Node) -> tuple[Hashes, Hashes]:
    """Return two hashes of each row's values."""
    columns = {name: _hashable(name, column, node) for name, column in block.columns.items()}
    if not columns or not len(block):
        return np.zeros(len(block), np.uint64), np.zeros(len(block), np.uint64)
    frame = to_frame(columns)
    return frame.hash_rows(1).to_numpy(), frame.hash_rows(2).to_numpy()


def _hashable(name: str, column: Column, node: Node) -> pa.Array:
    array = plain(column)
    if isinstance(array, pa.Array):
        return array
    if array.dtype == object:
        raise PipelineError(
            f"unique: column {name!r} holds Python objects, which have no value to compare",
            site=node.site,
            fix="name other columns with subset=",
        )
    rows = np.ascontiguousarray(array + 0 if array.dtype.kind == "f" else array).reshape(len(array), -1)  # -0.0 is 0.0
    return pa.array(list(map(bytes, rows)), pa.large_binary())


Rows: TypeAlias = tuple[Hashes, Hashes, Hashes]  # two hashes of each row's values, and one of its key


class ValueHashes:
    """Collects hashes of rows' values and keys, in row order, to find rows with equal values.

    Args:
        memory: maximum bytes in memory. Beyond this limit, hashes are written to files, partitioned by value.
    """

    def __init__(self, memory: int) -> None:
        self._max_rows = max(memory // _ROW_BYTES, 1)
        self._held: tuple[list[Hashes], list[Hashes], list[Hashes]] = ([], [], [])
        self._rows = self._spills = 0
        self._folder: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            remove_tree(self._folder, _KIND)

    def add(self, *rows: Hashes) -> None:
        """Add rows: two hashes of their values, and a hash of their keys."""
        for held, hashes in zip(self._held, rows, strict=True):
            held.append(hashes)
        self._rows += len(rows[0])
        if self._rows > self._max_rows:
            self._spill()

    def _take_rows(self) -> Rows:
        """Return the rows that are in memory, and remove them from memory."""

        def joined(held: list[Hashes]) -> Hashes:
            whole = np.concatenate([_NO_HASHES, *held])
            held.clear()
            return whole

        a, b, keys = map(joined, self._held)
        self._rows = 0
        return a, b, keys

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = temporary_folder(_KIND)
        rows = self._take_rows()
        numbers = (rows[0] % _PARTS).astype(np.uint8)
        order = np.argsort(numbers, kind="stable")
        for number, places in enumerate(np.split(order, np.cumsum(np.bincount(numbers, minlength=_PARTS))[:-1])):
            part = np.stack([hashes[places] for hashes in rows])
            np.save(os.path.join(self._folder, f"{number}-{self._spills}.npy"), part)
        self._spills += 1

    def _parts(self) -> Iterator[Rows]:
        """Yield the rows in parts, so that rows with equal values are in the same part."""
        if self._folder is None:
            yield self._take_rows()
            return
        if self._rows:
            self._spill()
        for number in range(_PARTS):
            names = [os.path.join(self._folder, f"{number}-{spill}.npy") for spill in range(self._spills)]
            a, b, keys = np.concatenate([np.load(name) for name in names], axis=1)
            yield a, b, keys

    def dropped(self, keep: Keep) -> Hashes | None:
        """Return the key hashes of rows to drop, ascending; None if one is also the key hash of a row to keep."""
        held = None if self._folder is not None else [_split_by_keep(*part, keep) for part in self._parts()]

        def divided() -> Iterable[tuple[Hashes, Hashes]]:
            return (_split_by_keep(*part, keep) for part in self._parts()) if held is None else held

        gone = np.sort(np.concatenate([_NO_HASHES, *(each for _, each in divided())]))
        return None if len(gone) and _overlap((each for each, _ in divided()), gone) else gone


def _split_by_keep(a: Hashes, b: Hashes, keys: Hashes, keep: Keep) -> tuple[Hashes, Hashes]:
    """Return the key hashes of rows to keep, and of rows to drop."""
    order, begins = _by_value(a, b)
    ends = np.append(begins[1:], True)[: len(begins)]
    chosen = {"first": begins, "any": begins, "last": ends, "none": begins & ends}[keep]
    stays = np.zeros(len(keys), dtype=bool)
    stays[order[chosen]] = True
    return keys[stays], keys[~stays]


def _by_value(a: Hashes, b: Hashes) -> tuple[Index, npt.NDArray[np.bool_]]:
    """Return row indices sorted so that equal values are adjacent, and a mask of the first row of each value."""
    order, bits = sort_by_first_bits(a)
    begins = np.append(True, bits[1:] != bits[:-1])[: len(a)]
    later = np.flatnonzero(~begins)
    if not len(wrong := later[_differ(a, b, order, later)]):
        return order, begins
    runs = np.cumsum(begins)  # consecutive values with the same first bits get the same number
    doubtful = np.flatnonzero(np.isin(runs, runs[wrong]))
    among = order[doubtful]
    order[doubtful] = among[np.lexsort((among, b[among], a[among]))]
    begins[doubtful] = (doubtful == 0) | _differ(a, b, order, doubtful)
    return order, begins


def _differ(a: Hashes, b: Hashes, order: Index, places: Index) -> npt.NDArray[np.bool_]:
    """Return, for each of ``places`` in ``order``, whether the value there differs from the previous value."""
    rows, before = order[places], order[places - 1]
    differ: npt.NDArray[np.bool_] = (a[rows] != a[before]) | (b[rows] != b[before])
    return differ


def _overlap(stay: Iterable[Hashes], gone: Hashes) -> bool:
    for keys in map(np.sort, stay):  # sorted, so that searches touch adjacent memory
        places = np.minimum(np.searchsorted(gone, keys), len(gone) - 1)
        if (gone[places] == keys).any():
            return True
    return False
