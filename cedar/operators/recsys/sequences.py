"""Transforms of whole lists: truncation, enumeration, set operations, cross products and n-grams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from cedar.core.columns import Column, ColumnType
from cedar.core.errors import invalid_call
from cedar.core.jagged import gather
from cedar.operators.algebra import length_changing
from cedar.operators.recsys.hashing import hash_combine, twang_mix64
from cedar.operators.recsys.lists import (
    Array,
    Lists,
    as_int64,
    check_integer,
    is_ids,
    is_lists,
    lists_from,
    offsets_of,
)
from cedar.operators.transform import BadValues, Transform


@length_changing
@dataclass(frozen=True)
class FirstX(Transform):
    """Keep the first ``x`` items of each list, of any type. Shorter lists and nulls stay unchanged.

    Examples:
        >>> FirstX(2)([5, 6, 7])
        [5, 6]
    """

    x: int

    def __post_init__(self) -> None:
        check_integer("FirstX", "x", self.x, 0, (1 << 63) - 1)

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
    """Replace each item by its index in the list, counted from ``start``, as int64. Null lists stay null.

    Examples:
        >>> Enumerate()([7, 8, 9])
        [0, 1, 2]
    """

    start: int = 0

    def __post_init__(self) -> None:
        check_integer("Enumerate", "start", self.start, -(1 << 62), 1 << 62)

    def result(self, *types: Any) -> ColumnType:
        if not is_lists(types[0]):
            raise self.unfit(types[0], "lists")
        return pa.large_list(pa.int64())

    def columns(self, *columns: Column) -> Column:
        lists = Lists.of(columns[0])
        return lists_from(lists.positions() + self.start, lists.offsets, lists.missing)


class _IdTransform(Transform):
    """Base class of transforms that convert lists of ids to lists of ids."""

    def result(self, *types: Any) -> ColumnType:
        for kind in types:
            if not (is_lists(kind) and is_ids(kind.value_type)):
                raise self.unfit(kind, "lists of integers")
        return pa.large_list(pa.int64())

    def columns(self, *columns: Column) -> Column:
        lists = [Lists.of(column) for column in columns]
        ids = [as_int64(each.numbers(type(self).__name__)) for each in lists]
        items, offsets = self.transform_lists(lists, ids)
        return lists_from(items, offsets, *(each.missing for each in lists))

    def transform_lists(self, lists: list[Lists], ids: list[Array]) -> tuple[Array, Array]:
        raise NotImplementedError


@dataclass(frozen=True)
class IdListTransform(_IdTransform):
    """Apply a set operation to two lists of ids. The result has each id once, in order of first occurrence.

    "intersection" keeps ids of the first list that are in the second; "difference" keeps all others of the first list.
    "union" appends new ids of the second list. The result is null if a list is null. Rows with nulls in lists fail.

    Examples:
        >>> IdListTransform("intersection")([3, 1, 3, 2], [2, 3])
        [3, 2]
    """

    operation: Literal["intersection", "difference", "union"]
    arity: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.operation not in ("intersection", "difference", "union"):
            raise invalid_call(
                f"IdListTransform({self.operation!r})", fix='use "intersection", "difference" or "union"'
            )

    def transform_lists(self, lists: list[Lists], ids: list[Array]) -> tuple[Array, Array]:
        rows = [each.rows() for each in lists]
        keys = keys_of(rows, ids)
        if self.operation == "union":
            order = np.argsort(np.concatenate(rows), kind="stable")  # sort by row; the first list's ids stay first
            items, row, key = np.concatenate(ids)[order], np.concatenate(rows)[order], np.concatenate(keys)[order]
        else:
            shared = np.isin(keys[0], keys[1])
            chosen = shared if self.operation == "intersection" else ~shared
            items, row, key = ids[0][chosen], rows[0][chosen], keys[0][chosen]
        first_occurrences = np.sort(np.unique(key, return_index=True)[1])
        return items[first_occurrences], offsets_of(np.bincount(row[first_occurrences], minlength=len(lists[0])))


@dataclass(frozen=True)
class Cartesian(_IdTransform):
    """Compute an id for each pair in the cross product of two lists of ids; pairs are ordered by the first list.

    The id of (a, b) is hash_combine(twang_mix64(a), twang_mix64(b)) as int64 (functions as for ``SigridHash``). To map
    ids to rows of an embedding table, use ``SigridHash`` or ``PositiveModulus``. The result is empty if a list is
    empty, and null if a list is null. Rows with nulls inside lists fail.

    Args:
        most: maximum number of pairs per row; rows with more fail. None sets no limit.

    Examples:
        >>> len(Cartesian()([1, 2, 3], [4, 5]))
        6
    """

    most: int | None = None
    arity: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.most is not None:
            check_integer("Cartesian", "most", self.most, 1, (1 << 63) - 1)

    def transform_lists(self, lists: list[Lists], ids: list[Array]) -> tuple[Array, Array]:
        first, second = lists
        pairs = first.lengths * second.lengths
        if self.most is not None and len(pairs) and int(pairs.max()) > self.most:
            rows = {int(row): f"Cartesian of {pairs[row]} pairs, more than {self.most}"
                    for row in np.flatnonzero(pairs > self.most)}  # fmt: skip
            raise BadValues(rows, "cut the lists first (FirstX), or raise most=")
        first_indices = np.repeat(np.arange(len(ids[0])), np.repeat(second.lengths, first.lengths))
        second_indices, _ = gather(np.arange(len(ids[1])), second.offsets, first.rows())
        return hash_combine(twang_mix64(ids[0][first_indices]), twang_mix64(ids[1][second_indices])).view(
            np.int64
        ), offsets_of(pairs)


@dataclass(frozen=True)
class NGram(_IdTransform):
    """Compute an id for every ``n`` consecutive ids. With several columns, a row's lists are concatenated first.

    The id of (a, b, c) is hash_combine(twang_mix64(a), hash_combine(twang_mix64(b), twang_mix64(c))) as int64; the id
    of (a) is twang_mix64(a). The order matters. The result of fewer than ``n`` ids is empty. The result is null
    if a list is null. Rows with nulls inside lists fail.

    Examples:
        >>> len(NGram(2)([1, 2, 3])), NGram(4)([1, 2, 3])
        (2, [])
    """

    n: int
    arity: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        check_integer("NGram", "n", self.n, 1, 1 << 20)

    def transform_lists(self, lists: list[Lists], ids: list[Array]) -> tuple[Array, Array]:
        rows = np.concatenate([each.rows() for each in lists])
        order = np.argsort(rows, kind="stable")
        words = twang_mix64(np.concatenate(ids)[order])
        lengths = np.sum([each.lengths for each in lists], axis=0)
        counts = np.maximum(lengths - self.n + 1, 0)
        begins = np.flatnonzero(_positions(lengths) < np.repeat(counts, lengths))
        hashes = words[begins + self.n - 1]
        for back in range(self.n - 2, -1, -1):
            hashes = hash_combine(words[begins + back], hashes)
        return hashes.view(np.int64), offsets_of(counts)


def _positions(lengths: Array) -> Array:
    return np.arange(int(lengths.sum())) - np.repeat(offsets_of(lengths)[:-1], lengths)


def keys_of(rows: list[Array], ids: list[Array]) -> list[Array]:
    """Return an integer key for each (row, id) pair of each list; equal pairs get the same key in all lists."""
    values, codes = np.unique(np.concatenate(ids), return_inverse=True)
    keys = np.concatenate(rows) * max(len(values), 1) + codes.reshape(-1)
    return np.split(keys, np.cumsum([len(each) for each in ids])[:-1])
