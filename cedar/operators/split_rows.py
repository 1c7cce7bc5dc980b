"""split: keeps the rows of one part; a hash of the row key or of a column determines a row's part."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.block import Block, python_values
from cedar.core.columns import Column, Index, integer_type
from cedar.core.cursor import Hashes, Keys, hash_array, hash_ints, hash_names
from cedar.core.errors import Skip, invalid_call, require_columns
from cedar.core.groups import plain
from cedar.operators.base import BlockKernel, Bound, Effects, Env, Kernel, Mergeable, RowOperator, Schema
from cedar.operators.surveys import Survey, Surveyed

_NULL = 0x6E756C6C  # hashed in place of a null


def value_hashes(column: Column, seed: int) -> Hashes:
    """Return a hash of each value, uint64[rows]. Equal values have equal hashes, and all nulls have the same hash.

    Examples:
        >>> a, b, c = value_hashes(pa.array([7, 7, 8]), seed=0).tolist()
        >>> a == b, a == c
        (True, False)
    """
    column = times_as_integers(column)
    if not isinstance(column, pa.Array) or pt.is_nested(column.type):
        return _hash_words(_hash_objects(python_values(column)), seed)
    encoded = column.dictionary_encode()
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


def times_as_integers(column: Column) -> Column:
    """Show the times and durations of an Arrow column as integers, since Python has no type for all of them."""
    kind = integer_type(column.type) if isinstance(column, pa.Array) else None
    return column if kind is None or kind == column.type else column.view(kind)


def hashed_text(value: Any) -> str:
    """Return the string that is hashed for a value; 0.0 and -0.0 are equal."""
    return repr(value + 0.0 if isinstance(value, float | np.floating) else value)


def _hash_words(words: Any, seed: int) -> Hashes:
    return np.asarray(hash_array(hash_ints(seed), words), dtype=np.uint64)


def _hash_objects(values: Any) -> Any:
    strings = map(hashed_text, values)
    digests = (int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") for text in strings)
    return np.fromiter(digests, dtype=np.uint64, count=len(values)).view(np.int64)


Moved: TypeAlias = dict[int, int]
"""Maps a hash to the number of the part that its rows were moved to, so that no part is empty."""


@dataclass(frozen=True)
class SplitRule:
    """The rule that assigns rows to parts: part i has hashes from ``bounds[i - 1]`` to below ``bounds[i]``.

    Args:
        bounds: 64-bit unsigned integers, one for each part except the last.
        by: the column whose value is hashed; None hashes the row key, which is then equal in all passes of ``repeat``,
            all copies that ``sample`` draws, and all inputs of ``mix`` and ``concat`` that read the row.
    """

    bounds: tuple[int, ...]
    by: str | None
    seed: int

    def hashes(self, block: Block) -> Hashes:
        """Return the hash of each live row, uint64."""
        if self.by is None:
            return self.key_hashes(block.live_keys())
        return value_hashes(plain(block.columns[self.by]), self.seed)

    def key_hashes(self, keys: Keys) -> Hashes:
        """Return the hash of each row key, uint64."""
        return replace(keys, repeat=0, branch=0).hash(self.seed)

    def parts(self, hashes: Hashes) -> Index:
        """Return the index of the part of each hash, int64."""
        return np.searchsorted(np.array(self.bounds, dtype=np.uint64), hashes, side="right").astype(np.int64)


class UsesRowKeys:
    """An operator whose result depends on row keys but not on the epoch, if it reads no columns."""

    def keeps_keys(self, keys: Keys, on_error: Skip | None) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the rows that a filter keeps; None if it is known only in a run.

        ``on_error`` is the current run's policy, for operators with a survey.
        """
        return None


@dataclass(frozen=True)
class SplitPart(RowOperator, UsesRowKeys, Mergeable, Surveyed):
    """Keeps the rows of one part of a split.

    Args:
        part, number: the name and the index of the part.
        rule: the rule of the whole split.
        survey: finds hashes to move to other parts so that no part is empty.

    Raises:
        PipelineError: while running, the operator comes after a ``batch``.
    """

    part: str
    number: int
    rule: SplitRule
    survey: Survey[Moved] = field(repr=False)
    name: ClassVar[str] = "split"
    may_fail = False
    group_use = "kept"

    def label(self) -> str:
        return f"split({self.part!r})"

    def effects(self) -> Effects:
        by = self.rule.by
        reads = frozenset[str]() if by is None else frozenset({by})
        return Effects(reads, frozenset(), rows="1:0..1")

    def schema(self, *inputs: Schema) -> Schema:
        require_columns([] if self.rule.by is None else [self.rule.by], inputs[0], "split(by=...)")
        return inputs[0]

    def parameters(self) -> dict[str, Any]:
        return {"part": self.number, "bounds": list(self.rule.bounds), "by": self.rule.by, "seed": self.rule.seed}

    def keeps_keys(self, keys: Keys, on_error: Skip | None) -> npt.NDArray[np.bool_]:
        if not len(keys):
            return np.zeros(0, dtype=bool)  # without running the survey
        return self._under(on_error).keeps(self.rule.key_hashes(keys))

    def _under(self, on_error: Skip | None) -> SplitPart:
        return replace(self, survey=self.survey.under(on_error))

    def keeps(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Return whether each hash is in this part, as a bool array."""
        parts = self.rule.parts(hashes)
        for moved, number in self.survey.value.items():
            parts[hashes == np.uint64(moved)] = number
        found: npt.NDArray[np.bool_] = parts == self.number
        return found

    def bind(self, bound: Bound) -> Kernel:
        bound.refuse_batches()
        return SplitRows(self._under(bound.on_error))


@dataclass(frozen=True)
class SplitRows(BlockKernel):
    """The kernel of ``split``."""

    operator: SplitPart
    row_wise: ClassVar[bool] = True

    def __call__(self, block: Block, env: Env) -> Block:
        rule = self.operator.rule
        if rule.by is None:  # also applies to slots of skipped rows, which belong to one part, too
            keep = self.operator.keeps(rule.key_hashes(block.keys))
            return block if keep.all() else block.take(np.flatnonzero(keep))
        keep = self.operator.keeps(rule.hashes(block))
        return block if keep.all() else block.filter(keep)


def hash_bounds(fractions: Mapping[str, float]) -> tuple[int, ...]:
    """Return the upper bounds of the hashes of all parts except the last, as 64-bit integers.

    Examples:
        >>> hash_bounds({"train": 0.75, "val": 0.25}) == (3 << 62,)
        True
    """
    if not isinstance(fractions, Mapping) or not all(isinstance(name, str) for name in fractions):
        fix = 'give a dict of names and fractions, such as {"train": 0.9, "val": 0.1}'
        raise invalid_call(f"split({fractions!r:.60})", fix=fix)
    for name, share in fractions.items():
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if not number or not (math.isfinite(share) and share > 0):
            raise invalid_call(
                f"split: the fraction of {name!r} is {share!r}, not a number above 0", fix="leave the part out"
            )
    if not math.isclose(sum(fractions.values()), 1, abs_tol=1e-9):
        total = round(sum(fractions.values()), 6)
        raise invalid_call(
            f"split: the fractions add up to {total:g}, not to 1",
            fix="add a part for the remaining rows" if total < 1 else "lower the fractions",
        )
    ends = np.cumsum(list(fractions.values()))[:-1].tolist()
    return tuple(min(round(end * 2.0**64), (1 << 64) - 1) for end in ends)


class Census:
    """Finds the parts that have rows, and the hashes to move to empty parts."""

    def __init__(self, rule: SplitRule, parts: int) -> None:
        self._rule, self._parts = rule, parts
        self._seen: list[Hashes] = [np.empty(0, dtype=np.uint64) for _ in range(parts)]

    def add(self, hashes: Hashes) -> bool:
        """Add the hashes of rows; return True once every part has rows, so that no hash must be moved."""
        numbers = self._rule.parts(hashes)
        for number in range(self._parts):
            some = np.unique(np.concatenate([self._seen[number], hashes[numbers == number]]))
            self._seen[number] = some[: self._parts + 1]  # enough to move one to each part and keep one
        return all(len(some) for some in self._seen)

    def moved(self) -> Moved:
        """Return the hashes to move: each empty part gets one from the part with the most hashes, if it has several."""
        moved: Moved = {}
        seen = [some.tolist() for some in self._seen]
        for number in range(self._parts):
            if not seen[number]:
                fullest = max(range(self._parts), key=lambda other: len(seen[other]))
                if len(seen[fullest]) < 2:
                    break  # there are fewer distinct hashes than parts
                seen[number] = [seen[fullest].pop()]
                moved[seen[number][0]] = number
        return moved
