"""concat: delivers inputs one after the other. ``mix`` also uses its check that all inputs have the same columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import ClassVar

from cedar.core.block import Block, concat_blocks
from cedar.core.columns import OBJECT, UNKNOWN, ColumnType, ObjectType
from cedar.core.errors import PipelineError
from cedar.core.stream import (
    PENDING,
    At,
    Count,
    Flow,
    GeneratorFlow,
    Piece,
    Pieces,
    Position,
    Rows,
    Stream,
    is_count,
    is_list,
)
from cedar.operators.base import Effects, Ordering, RowUse, Schema, StreamContext, StreamOperator
from cedar.operators.take import clip_unit


@dataclass(frozen=True)
class Concat(StreamOperator):
    """Delivers all rows (or batches) of the first input, then all of the second, and so on.

    All inputs must have the same columns, in any order. The output has the first input's column order.

    Raises:
        PipelineError: the inputs' columns or types differ, or some inputs deliver batches and others rows.

    Examples:
        >>> from cedar.operators.concat import Concat
        >>> Concat().label()
        'concat'
    """

    name: ClassVar[str] = "concat"
    inputs: ClassVar[int | None] = None
    ordering = Ordering(preserves_windows=True)
    row_use = RowUse(counts=None, lanes=True)

    def effects(self) -> Effects:
        return Effects(frozenset(), frozenset(), rows="stream")

    def schema(self, *inputs: Schema) -> Schema:
        return merged_schema("concat", inputs)

    def endless(self, *inputs: bool) -> bool:
        return any(inputs)

    def batched(self, *inputs: bool) -> bool:
        return same_units("concat", inputs)

    def sample(self, *inputs: Block) -> Block:
        return joined_samples("concat", inputs)

    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream:
        return ConcatStream(inputs, context)


def joined_samples(label: str, inputs: Sequence[Block]) -> Block:
    """Return the rows of all samples in the first sample's column order; types of empty samples are ignored."""
    merged_schema(label, [None if block.is_nothing else block.known_types for block in inputs])
    filled = [block for block in inputs if len(block) and block.aligned] or inputs[:1]
    names = next(list(block.columns) for block in inputs if block.columns.keys() == filled[0].columns.keys())
    return concat_blocks([block.only_columns({n: block.columns[n] for n in names}) for block in filled])


def merged_schema(label: str, schemas: Sequence[Schema]) -> Schema:
    """Return the common schema of several inputs; a type that is unknown before a run matches any other type.

    Raises:
        PipelineError: the schemas differ; the message lists the differences for each input.

    Examples:
        >>> import pyarrow as pa
        >>> from cedar.operators.concat import merged_schema
        >>> merged_schema("concat", [{"x": pa.int64()}, {"x": pa.int64()}])
        {'x': DataType(int64)}
    """
    if not schemas:
        raise PipelineError(f"{label} takes at least one input", fix=f"give {label} a pipeline")
    known = [(i, s) for i, s in enumerate(schemas) if s is not None]
    if not known:
        return None
    merged: dict[str, ColumnType] = dict(known[0][1])
    wrong: list[str] = []
    for index, schema in known[1:]:
        wrong += [f"input {index}: {text}" for text in differences(merged, schema)]
        merged |= {n: t for n, t in schema.items() if merged.get(n, t) is UNKNOWN}
        merged |= {n: OBJECT for n, t in schema.items() if _are_objects(merged.get(n), t) and merged[n] != t}
    if wrong:
        raise PipelineError(
            f"the inputs of {label} have different columns (compared with input {known[0][0]}): " + "; ".join(wrong),
            fix="bring the inputs to the same columns with select, rename, or with_columns and cast",
        )
    return merged if schemas[0] is not None else None  # the first input determines the column order


def differences(expected: Mapping[str, ColumnType], actual: Mapping[str, ColumnType]) -> list[str]:
    """Return one phrase for each difference between the ``actual`` and the ``expected`` columns."""
    problems = [f"no column {n!r}" for n in expected if n not in actual]
    problems += [f"column {n!r} is extra" for n in actual if n not in expected]
    for name, kind in actual.items():
        wanted = expected.get(name, UNKNOWN)
        if UNKNOWN not in (kind, wanted) and kind != wanted and not _are_objects(kind, wanted):
            problems.append(f"{name!r} is {kind}, not {wanted}")
    return problems


def _are_objects(one: ColumnType | None, other: ColumnType) -> bool:
    """Return whether one type is a generic object and the other is any object type, such as an image."""
    return OBJECT in (one, other) and isinstance(one, ObjectType) and isinstance(other, ObjectType)


def same_units(label: str, batched: Sequence[bool]) -> bool:
    """Return whether all inputs deliver batches.

    Raises:
        PipelineError: some inputs deliver batches and others rows.
    """
    if any(batched) and not all(batched):
        batches = ", ".join(str(i) for i, b in enumerate(batched) if b)
        raise PipelineError(
            f"{label} takes rows or batches, not both: of its inputs, {batches} give(s) batches and the others rows",
            fix=f"call batch() after {label}, or on each of its inputs",
        )
    return any(batched)


def row_preparer(label: str, index: int, context: StreamContext) -> Callable[[Rows], Rows]:
    """Return a function for rows of input ``index`` that adds it to row keys, and checks and reorders columns."""

    def prepare(rows: Rows) -> Rows:
        rows = rows.within(index)
        expected = context.types()
        blocks = []
        for block in rows.blocks:
            if wrong := differences(expected, block.known_types):
                raise PipelineError(
                    f"the inputs of {label} have different columns: in input {index}, " + "; ".join(wrong),
                    site=context.site,
                    row=block.keys.ref(0) if block.slots else None,
                    fix="bring the inputs to the same columns with select, rename, or with_columns and cast",
                )
            if list(block.columns) != list(expected):
                block = block.only_columns({n: block.columns[n] for n in expected})
            blocks.append(block)
        return replace(rows, blocks=tuple(blocks))

    return prepare


class ConcatStream(Stream):
    """A position ``at`` is [index of the input, position in it]."""

    def __init__(self, inputs: tuple[Stream, ...], context: StreamContext) -> None:
        if not inputs:
            raise PipelineError("concat takes at least one input", site=context.site, fix="give concat a pipeline")
        self.inputs = inputs
        self.context = context

    @property
    def count(self) -> Count:  # type: ignore[override]
        units = 0
        for stream in self.inputs:
            count = stream.count
            if count is None or count == math.inf:
                return count
            units += int(count)
        return units

    @property
    def reopens_quickly(self) -> bool:
        return all(stream.reopens_quickly for stream in self.inputs)

    def start(self) -> At:
        return self.first(0)

    def first(self, branch: int) -> At:
        """Return the position at which input ``branch`` begins."""
        return [branch, [self.inputs[branch].start(), 0]]

    def seek(self, unit: int, lap: int = 0) -> Position:
        last = len(self.inputs) - 1
        for branch, stream in enumerate(self.inputs):
            if stream.count is None:
                return [self.first(branch), unit]
            if unit < stream.count or branch == last:
                return [[branch, stream.seek(clip_unit(unit, stream.count), lap)], 0]
            unit -= int(stream.count)
        raise AssertionError("there is at least one input")

    def rebase(self, piece: Piece) -> At | None:
        branch, (at, skip) = piece.at
        return self.place(branch, replace(piece, at=at, skip=skip + piece.skip))

    def place(self, branch: int, piece: Piece) -> At | None:
        """Return the position of a piece of input ``branch``; None if the piece has no known position."""
        at = self.inputs[branch].rebase(piece)
        return None if at is None else [branch, [at, 0]]

    def fits(self, at: At) -> bool:
        return (
            is_list(at, 2) and is_count(at[0]) and at[0] < len(self.inputs) and self.inputs[at[0]].fits_position(at[1])
        )

    def open_at(self, at: At, lap: int) -> Flow:
        return GeneratorFlow(self._in_turn(at, lap))

    def _in_turn(self, at: At, lap: int) -> Pieces:
        branch, position = at
        wait: bool | None = None
        while True:
            prepare = row_preparer("concat", branch, self.context)
            with closing(self.inputs[branch].open(position, lap)) as source:
                if wait is None:
                    wait = yield PENDING
                while (piece := source.pull(wait)) is not None:
                    if piece is not PENDING:
                        place = self.place(branch, piece)
                        start, skip = ([branch, [piece.at, 0]], piece.skip) if place is None else (place, 0)
                        rows = prepare(piece.rows) if piece.units else piece.rows
                        piece = replace(piece, rows=rows, at=start, skip=skip, end=None)
                        del rows
                    wait = yield piece
                    del piece
            if branch + 1 == len(self.inputs):
                return
            branch, position = self.first(branch + 1)
