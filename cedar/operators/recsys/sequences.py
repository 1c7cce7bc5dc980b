"""Transforms of whole lists: cut, number, join and cross them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from cedar.core.columns import Column, ColumnType
from cedar.core.errors import PipelineError, user_site
from cedar.core.groups.gather import gather
from cedar.operators.algebra import length_changing
from cedar.operators.recsys.hashing import hash_combine, twang_mix64
from cedar.operators.recsys.lists import (
    Array,
    Lists,
    as_int64,
    check_whole,
    is_ids,
    is_lists,
    lists_from,
    offsets_of,
)
from cedar.operators.transform import BadValues, Transform


@length_changing
@dataclass(frozen=True)
class FirstX(Transform):
    """The first ``x`` items of each list, all of a shorter one. Lists of anything; nulls in and around lists stay.

    Examples:
        >>> FirstX(2)([5, 6, 7])
        [5, 6]
    """

    x: int

    def __post_init__(self) -> None:
        check_whole("FirstX", "x", self.x, 0, (1 << 63) - 1)

    def result(self, *types: Any) -> ColumnType:
        (kind,) = types
        if not is_lists(kind):
            raise self.unfit(kind, "lists")
        return kind

    def columns(self, *columns: Column) -> Column:
        lists = Lists.of(columns[0])
        if not len(lists) or int(lists.lengths.max()) <= self.x:
            return columns[0]
        return lists.parts(lists.offsets[:-1], np.minimum(lists.lengths, self.x))


@dataclass(frozen=True)
class Enumerate(Transform):
    """The place of each item in its list, from ``start``: int64 lists of the same lengths. A null list stays null.

    Examples:
        >>> Enumerate()([7, 8, 9])
        [0, 1, 2]
    """

    start: int = 0

    def __post_init__(self) -> None:
        check_whole("Enumerate", "start", self.start, -(1 << 62), 1 << 62)

    def result(self, *types: Any) -> ColumnType:
        if not is_lists(types[0]):
            raise self.unfit(types[0], "lists")
        return pa.large_list(pa.int64())

    def columns(self, *columns: Column) -> Column:
        lists = Lists.of(columns[0])
        return lists_from(lists.places() + self.start, lists.offsets, lists.missing)


class _Ids(Transform):
    """A transform of lists of ids into lists of ids."""

    def result(self, *types: Any) -> ColumnType:
        for kind in types:
            if not (is_lists(kind) and is_ids(kind.value_type)):
                raise self.unfit(kind, "lists of integers")
        return pa.large_list(pa.int64())

    def columns(self, *columns: Column) -> Column:
        lists = [Lists.of(column) for column in columns]
        ids = [as_int64(each.numbers(type(self).__name__)) for each in lists]
        items, offsets = self.made(lists, ids)
        return lists_from(items, offsets, *(each.missing for each in lists))

    def made(self, lists: list[Lists], ids: list[Array]) -> tuple[Array, Array]:
        raise NotImplementedError


@dataclass(frozen=True)
class IdListTransform(_Ids):
    """A set operation on two lists of ids; every id once, in the order of its first occurrence.

    "intersection": the ids of the first list that are in the second; "difference": those that are not; "union": the
    ids of the first, then the others of the second. Where a list is null, so is the result; nulls inside are refused.

    Examples:
        >>> IdListTransform("intersection")([3, 1, 3, 2], [2, 3])
        [3, 2]
    """

    operation: Literal["intersection", "difference", "union"]
    arity: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.operation not in ("intersection", "difference", "union"):
            raise PipelineError(
                f"IdListTransform({self.operation!r})",
                site=user_site(),
                fix='it is "intersection", "difference" or "union"',
            )

    def made(self, lists: list[Lists], ids: list[Array]) -> tuple[Array, Array]:
        rows = [each.rows() for each in lists]
        keys = keys_of(rows, ids)
        if self.operation == "union":
            order = np.argsort(np.concatenate(rows), kind="stable")  # by row; of one, the first list's come first
            items, row, key = np.concatenate(ids)[order], np.concatenate(rows)[order], np.concatenate(keys)[order]
        else:
            shared = np.isin(keys[0], keys[1])
            chosen = shared if self.operation == "intersection" else ~shared
            items, row, key = ids[0][chosen], rows[0][chosen], keys[0][chosen]
        once = np.sort(np.unique(key, return_index=True)[1])
        return items[once], offsets_of(np.bincount(row[once], minlength=len(lists[0])))


@dataclass(frozen=True)
class Cartesian(_Ids):
    """The cross product of two lists of ids: an id for each pair, those of the first item of the first list first.

    The id of (a, b) is hash_combine(twang_mix64(a), twang_mix64(b)) as int64 (the functions of ``SigridHash``): apply
    ``SigridHash`` or ``PositiveModulus`` to it for a table. With an empty list the product is empty; with a null one it
    is null; nulls inside lists are refused.

    Args:
        most: pairs that a row may have: one with more fails. None sets no limit.

    Examples:
        >>> len(Cartesian()([1, 2, 3], [4, 5]))
        6
    """

    most: int | None = None
    arity: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.most is not None:
            check_whole("Cartesian", "most", self.most, 1, (1 << 63) - 1)

    def made(self, lists: list[Lists], ids: list[Array]) -> tuple[Array, Array]:
        first, second = lists
        pairs = first.lengths * second.lengths
        if self.most is not None and len(pairs) and int(pairs.max()) > self.most:
            rows = {int(row): f"Cartesian of {pairs[row]} pairs, more than {self.most}"
                    for row in np.flatnonzero(pairs > self.most)}  # fmt: skip
            raise BadValues(rows, "cut the lists first (FirstX), or raise most=")
        left = np.repeat(np.arange(len(ids[0])), np.repeat(second.lengths, first.lengths))
        right, _ = gather(np.arange(len(ids[1])), second.offsets, first.rows())
        return hash_combine(twang_mix64(ids[0][left]), twang_mix64(ids[1][right])).view(np.int64), offsets_of(pairs)


@dataclass(frozen=True)
class NGram(_Ids):
    """An id for each ``n`` consecutive ids; of several columns, the lists of a row are laid one after the other.

    The id of (a, b, c) is hash_combine(twang_mix64(a), hash_combine(twang_mix64(b), twang_mix64(c))) as int64, and of
    (a) alone twang_mix64(a): order counts. A list of fewer than ``n`` ids has none; where a list is null, so is the
    result; nulls inside lists are refused.

    Examples:
        >>> len(NGram(2)([1, 2, 3])), NGram(4)([1, 2, 3])
        (2, [])
    """

    n: int
    arity: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        check_whole("NGram", "n", self.n, 1, 1 << 20)

    def made(self, lists: list[Lists], ids: list[Array]) -> tuple[Array, Array]:
        rows = np.concatenate([each.rows() for each in lists])
        order = np.argsort(rows, kind="stable")
        words = twang_mix64(np.concatenate(ids)[order])
        lengths = np.sum([each.lengths for each in lists], axis=0)
        counts = np.maximum(lengths - self.n + 1, 0)
        begins = np.flatnonzero(_places(lengths) < np.repeat(counts, lengths))
        hashes = words[begins + self.n - 1]
        for back in range(self.n - 2, -1, -1):
            hashes = hash_combine(words[begins + back], hashes)
        return hashes.view(np.int64), offsets_of(counts)


def _places(lengths: Array) -> Array:
    return np.arange(int(lengths.sum())) - np.repeat(offsets_of(lengths)[:-1], lengths)


def keys_of(rows: list[Array], ids: list[Array]) -> list[Array]:
    """A number for each (row, id), equal for equal ones in all of the lists."""
    values, codes = np.unique(np.concatenate(ids), return_inverse=True)
    keys = np.concatenate(rows) * max(len(values), 1) + codes.reshape(-1)
    return np.split(keys, np.cumsum([len(each) for each in ids])[:-1])
