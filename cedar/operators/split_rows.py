"""split: the rows of one part, by a hash of the row key or of a column."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from cedar.core.block import Block
from cedar.core.columns import Index
from cedar.core.cursor import Hashes, Keys
from cedar.core.errors import PipelineError, missing_column, user_site
from cedar.core.groups.column import plain
from cedar.core.skip import Skip
from cedar.operators.base import Bound, Effects, Env, Kernel, RowOperator, Schema
from cedar.operators.merging import by_content
from cedar.operators.surveys import Survey
from cedar.operators.value_hashes import value_hashes

Moved: TypeAlias = dict[int, int]
"""By hash, the number of the part that rows were given to which by their hash alone would be in another one."""


@dataclass(frozen=True)
class SplitRule:
    """Which part a row is in: part i has the hashes from ``bounds[i - 1]`` up to ``bounds[i]``.

    Args:
        bounds: 64-bit words, one for each part but the last.
        by: the column whose value is hashed; None hashes the row key, without the pass of a ``repeat``.
    """

    bounds: tuple[int, ...]
    by: str | None
    seed: int

    def hashes(self, block: Block) -> Hashes:
        """uint64[live rows]."""
        if self.by is None:
            return self.key_hashes(block.live_keys())
        return value_hashes(plain(block.columns[self.by]), self.seed)

    def key_hashes(self, keys: Keys) -> Hashes:
        """uint64[rows]."""
        return replace(keys, repeat=0).hash(self.seed)

    def parts(self, hashes: Hashes) -> Index:
        """int64[rows]: the number of the part of each hash."""
        return np.searchsorted(np.array(self.bounds, dtype=np.uint64), hashes, side="right").astype(np.int64)


@dataclass(frozen=True)
class SplitPart(RowOperator):
    """The rows of one part of a split.

    Args:
        part, number: its name, and which of the parts it is.
        rule: of the whole split.
        survey: finds what has to be moved so that no part is empty.

    Raises:
        PipelineError: while running, below a ``batch``.
    """

    part: str
    number: int
    rule: SplitRule
    survey: Survey[Moved] = field(repr=False)
    name: ClassVar[str] = "split"
    filters = True
    may_fail = False
    group_aware = True

    def label(self) -> str:
        return f"split({self.part!r})"

    def effects(self) -> Effects:
        by = self.rule.by
        reads = frozenset[str]() if by is None else frozenset({by})
        return Effects(reads, frozenset(), rows="1:0..1", keyed=by is None)

    def schema(self, *inputs: Schema) -> Schema:
        if self.rule.by is not None and inputs[0] is not None and self.rule.by not in inputs[0]:
            raise missing_column(self.rule.by, list(inputs[0]), "split(by=...)")
        return inputs[0]

    def parameters(self) -> dict[str, Any]:
        return {"part": self.number, "bounds": list(self.rule.bounds), "by": self.rule.by, "seed": self.rule.seed}

    def merge_key(self) -> Hashable:
        return by_content(self)

    def keeps_keys(self, keys: Keys, on_error: Skip | None) -> npt.NDArray[np.bool_] | None:
        if self.rule.by is not None:
            return None
        if not len(keys):
            return np.zeros(0, dtype=bool)  # without the survey
        return self._under(on_error).keeps(self.rule.key_hashes(keys))

    def _under(self, on_error: Skip | None) -> SplitPart:
        return replace(self, survey=self.survey.under(on_error))

    def keeps(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """bool[rows]: which rows of these hashes are in this part."""
        parts = self.rule.parts(hashes)
        for moved, number in self.survey.value.items():
            parts[hashes == np.uint64(moved)] = number
        found: npt.NDArray[np.bool_] = parts == self.number
        return found

    def bind(self, bound: Bound) -> Kernel:
        if bound.batched:
            raise PipelineError(f"{bound.label}: its input gives batches", site=bound.site, fix="put it above batch()")
        return SplitRows(self._under(bound.on_error))


@dataclass(frozen=True)
class SplitRows:
    """The kernel."""

    operator: SplitPart
    row_wise: ClassVar[bool] = True  # a block may be cut

    def __call__(self, block: Block, env: Env) -> Block:
        rule = self.operator.rule
        if rule.by is None:  # the slot of a row that failed is in one part, too
            keep = self.operator.keeps(rule.key_hashes(block.keys))
            return block if keep.all() else block.take(np.flatnonzero(keep))
        keep = self.operator.keeps(rule.hashes(block))
        return block if keep.all() else block.filter(keep)


def bounds_of(fractions: Mapping[str, float]) -> tuple[int, ...]:
    """Where the parts begin, as 64-bit words.

    Raises:
        PipelineError: fractions that are not positive numbers whose sum is 1, or names that are not strings.

    Examples:
        >>> bounds_of({"train": 0.75, "val": 0.25}) == (3 << 62,)
        True
    """
    site = user_site()
    if not isinstance(fractions, Mapping) or not all(isinstance(name, str) for name in fractions):
        fix = 'give a dict of names and fractions, such as {"train": 0.9, "val": 0.1}'
        raise PipelineError(f"split({fractions!r:.60})", site=site, fix=fix)
    for name, share in fractions.items():
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if not number or not (math.isfinite(share) and share > 0):
            raise PipelineError(
                f"split: the fraction of {name!r} is {share!r}, not a number above 0",
                site=site,
                fix="leave the part out",
            )
    if not math.isclose(sum(fractions.values()), 1, abs_tol=1e-9):
        total = round(sum(fractions.values()), 6)
        raise PipelineError(
            f"split: the fractions add up to {total:g}, not to 1",
            site=site,
            fix="name what becomes of the other rows" if total < 1 else "give each row to one part",
        )
    ends = np.cumsum(list(fractions.values()))[:-1].tolist()
    return tuple(min(round(end * 2.0**64), (1 << 64) - 1) for end in ends)


class Census:
    """Which parts have rows, and what to move where some have none.

    Args:
        rule: of the split.
        parts: how many there are.
    """

    def __init__(self, rule: SplitRule, parts: int) -> None:
        self._rule, self._parts = rule, parts
        self._seen: list[Hashes] = [np.empty(0, dtype=np.uint64) for _ in range(parts)]

    def add(self, hashes: Hashes) -> bool:
        """Count rows; True once every part has some, and nothing has to be moved."""
        numbers = self._rule.parts(hashes)
        for number in range(self._parts):
            some = np.unique(np.concatenate([self._seen[number], hashes[numbers == number]]))
            self._seen[number] = some[: self._parts + 1]  # of which so many may go, and one stays
        return all(len(some) for some in self._seen)

    def moved(self) -> Moved:
        """What goes where: an empty part gets a hash of the part that has the most; every part keeps one."""
        moved: Moved = {}
        seen = [some.tolist() for some in self._seen]
        for number in range(self._parts):
            if not seen[number]:
                fullest = max(range(self._parts), key=lambda other: len(seen[other]))
                if len(seen[fullest]) < 2:
                    break  # fewer rows than parts
                seen[number] = [seen[fullest].pop()]
                moved[seen[number][0]] = number
        return moved
