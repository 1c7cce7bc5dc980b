"""truncate and special_tokens: limit the length of lists of ids, and add tokens at their ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from cedar.core.columns import Column, ColumnType
from cedar.core.errors import invalid_call
from cedar.operators.algebra import length_changing
from cedar.operators.recsys.lists import Lists, is_ids, is_lists, lists_from
from cedar.operators.take import whole
from cedar.operators.text.string_column import surround_lists
from cedar.operators.text.tokenize import spec_of
from cedar.operators.transform import Transform

Tokens: TypeAlias = "int | str | Iterable[int | str] | None"


@length_changing
@dataclass(frozen=True)
class Truncate(Transform):
    """Keep at most ``length`` items of each list, of any type. Nulls stay unchanged.

    Args:
        length: maximum number of items, at least 0.
        keep: which items to keep, "first" or "last".

    Raises:
        PipelineError: an argument is invalid, or the column does not contain lists.

    Examples:
        >>> Truncate(2)([5, 6, 7]), Truncate(2, keep="last")([5, 6, 7])
        ([5, 6], [6, 7])
    """

    length: int
    keep: Literal["first", "last"] = "first"

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", whole(self.length, "truncate(length)", least=0))
        if self.keep not in ("first", "last"):
            raise invalid_call(f'truncate(keep={self.keep!r}): "first" or "last"')

    def result(self, *types: Any) -> ColumnType:
        if not is_lists(types[0]):
            raise self.unfit(types[0], "lists")
        return types[0]

    def columns(self, *columns: Column) -> Column:
        lists = Lists.of(columns[0])
        if not len(lists) or int(lists.lengths.max()) <= self.length:
            return columns[0]
        kept = np.minimum(lists.lengths, self.length)
        starts = lists.offsets[:-1] if self.keep == "first" else lists.offsets[1:] - kept
        return lists.parts(starts, kept)


@dataclass(frozen=True)
class SpecialTokens(Transform):
    """Add the same ids before and after each list of integers, also to empty lists. Null lists stay null.

    Args:
        begin: one or several ids, or names of tokens, to put before each list.
        end: one or several ids, or names of tokens, to put after each list.
        tokenizer: a tokenizer as for ``tokenize``; only needed if tokens are given by name.

    Raises:
        PipelineError: the tokenizer does not know a name, the column does not contain lists of integers, or its integer
            type cannot hold an id.

    Examples:
        >>> SpecialTokens(end=0)([5, 6])
        [5, 6, 0]
        >>> from cedar.operators.text.byte_level import ByteLevel
        >>> SpecialTokens("<bos>", "<eos>", ByteLevel())([72, 105])
        [257, 72, 105, 258]
    """

    begin: Any = None
    end: Any = None
    tokenizer: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        spec = None if self.tokenizer is None else spec_of(self.tokenizer)
        object.__setattr__(self, "begin", _ids(self.begin, spec))
        object.__setattr__(self, "end", _ids(self.end, spec))
        object.__setattr__(self, "tokenizer", None)  # not needed any more: the ids of names are known

    def result(self, *types: Any) -> ColumnType:
        (kind,) = types
        if not (is_lists(kind) and is_ids(kind.value_type)):
            raise self.unfit(kind, "lists of integers")
        limits = np.iinfo(kind.value_type.to_pandas_dtype())
        for token in (*self.begin, *self.end):
            if not limits.min <= token <= limits.max:
                raise self.unfit(kind, f"lists of numbers that can hold {token}")
        return kind

    def columns(self, *columns: Column) -> Column:
        self.result(columns[0].type)  # direct calls skip ``result``, so check types here too
        lists = Lists.of(columns[0])
        items, offsets = surround_lists(lists.numbers("special_tokens"), lists.offsets, self.begin, self.end)
        return lists_from(items, offsets, lists.missing)


def _ids(tokens: Tokens, spec: Any) -> tuple[int, ...]:
    if tokens is None:
        return ()
    numbers = []
    for token in tokens if isinstance(tokens, Iterable) and not isinstance(tokens, str) else [tokens]:
        number = spec.token_to_id(token) if isinstance(token, str) and spec is not None else token
        if isinstance(number, bool) or not isinstance(number, int | np.integer):
            why = "give tokenizer=" if spec is None else "the tokenizer has no such token"
            raise invalid_call(f"special_tokens: {token!r} is not an id", fix=why)
        numbers.append(int(number))
    return tuple(numbers)
