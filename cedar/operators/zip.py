"""zip: combines the columns of several inputs row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cedar.core.block import Block, Skipped
from cedar.core.columns import Column, ColumnType
from cedar.core.cursor import concat_keys
from cedar.core.errors import PipelineError, Site
from cedar.core.groups import take_each
from cedar.core.stream import (
    PENDING,
    At,
    Count,
    Flow,
    GeneratorFlow,
    Pending,
    Piece,
    Position,
    Rows,
    Stream,
    concat_rows,
    converted,
    is_list,
)
from cedar.operators.base import Effects, RowUse, Schema, StreamContext, StreamOperator
from cedar.operators.buffers import Buffer, OrderedTasks
from cedar.operators.concat import same_units

_RUN = 1024  # rows per task, if available; does not affect results


@dataclass(frozen=True)
class Zip(StreamOperator):
    """Combines row i of every input, up to the end of the shortest input; rows keep the keys of the first input.

    A row that was skipped in one input is skipped in the result. After ``batch``, the operator combines batch i of
    every input; these batches must have the same number of rows.

    Args:
        local: True combines each rank's share of the inputs separately.

    Raises:
        PipelineError: two inputs share a column name, only some inputs deliver batches, or batch lengths differ.

    Examples:
        >>> from cedar.operators.zip import Zip
        >>> Zip().label()
        'zip'
    """

    local: bool = False
    name: ClassVar[str] = "zip"
    inputs: ClassVar[int | None] = None
    row_use = RowUse("paired")

    def effects(self) -> Effects:
        return Effects(frozenset(), frozenset(), rows="stream")

    def parameters(self) -> dict[str, Any]:
        return {"local": self.local}

    def schema(self, *inputs: Schema) -> Schema:
        _require_inputs(len(inputs), None)
        known = [schema for schema in inputs if schema is not None]
        check_distinct_names([list(schema) for schema in known], None)
        if len(known) < len(inputs):
            return None
        merged: dict[str, ColumnType] = {}
        for schema in known:
            merged.update(schema)
        return merged

    def batched(self, *inputs: bool) -> bool:
        return same_units("zip", inputs)

    def sample(self, *inputs: Block) -> Block:
        rows = min(len(block) for block in inputs)
        heads = [block.only_columns({n: c[:rows] for n, c in block.columns.items()}) for block in inputs]
        check_distinct_names([list(block.columns) for block in heads], None)
        columns = {n: c for block in heads for n, c in block.columns.items()}
        return Block(columns, inputs[0].live_keys().take(slice(0, rows)), aligned=all(b.aligned for b in inputs))

    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream:
        _require_inputs(len(inputs), context.site)
        return ZipStream(inputs, context)


def _require_inputs(inputs: int, site: Site | None) -> None:
    if not inputs:
        raise PipelineError("zip takes at least one input", site=site, fix="give zip a pipeline")


def check_distinct_names(names: Sequence[Sequence[str]], site: Site | None) -> None:
    """Raise PipelineError if two inputs share a column name."""
    seen: dict[str, int] = {}
    shared = []
    for index, columns in enumerate(names):
        shared += [f"{n!r} (inputs {seen[n]} and {index})" for n in columns if n in seen]
        seen.update({n: index for n in columns if n not in seen})
    if shared:
        raise PipelineError(
            "zip: inputs have columns of the same name: " + ", ".join(shared),
            site=site,
            fix="rename or drop the columns of one input before zip",
        )


def merge(runs: Sequence[Rows], batch: bool, site: Site | None) -> Block:
    """Gather the rows of every input and combine their columns."""
    blocks = [rows.gather() for rows in runs]
    check_distinct_names([list(block.columns) for block in blocks], site)
    replaced = batch and any(why.refill for block in blocks for why in block.dead.values())  # then slots do not match
    if not replaced and all(block.aligned and block.slots == blocks[0].slots for block in blocks):
        return _merge_slots(blocks)
    assert batch
    return _merge_batches(blocks, site)


def _merge_slots(blocks: Sequence[Block]) -> Block:
    dead: dict[int, Skipped] = {}
    for block in reversed(blocks):
        dead.update(block.dead)
    alive = np.ones(blocks[0].slots, dtype=bool)
    alive[list(dead)] = False
    columns: dict[str, Column] = {}
    for block in blocks:
        kept = None if len(block.dead) == len(dead) else np.flatnonzero(alive[block.live_slots()])
        columns.update(block.columns if kept is None else take_each(block.columns, kept))
    return Block(columns, blocks[0].keys, dict(sorted(dead.items())))


def _merge_batches(blocks: Sequence[Block], site: Site | None) -> Block:
    """Combine batches in which row i of each input belongs together; keep the slots of skipped rows for the report."""
    if len({len(block) for block in blocks}) > 1:
        lengths = ", ".join(f"{len(b)} rows in input {i}" for i, b in enumerate(blocks))
        raise PipelineError(
            f"zip: batches have different lengths: {lengths}",
            site=site,
            row=blocks[0].keys.ref(0) if blocks[0].slots else None,
            fix="use the same batch size, and last=, on every input; or zip rows and batch the result",
        )
    columns = {n: c for block in blocks for n, c in block.columns.items()}
    keys, dead = [blocks[0].keys], dict(blocks[0].dead)
    slots = blocks[0].slots
    for block in blocks[1:]:
        keys.append(block.keys.take(np.array(list(block.dead), dtype=np.int64)))
        dead.update({slots + i: why for i, why in enumerate(block.dead.values())})
        slots += len(block.dead)
    return Block(columns, concat_keys(keys), dead, aligned=False)


class ZipStream(Stream):
    """A position ``at`` is [input position, ...]."""

    def __init__(self, inputs: tuple[Stream, ...], context: StreamContext) -> None:
        self.inputs = inputs
        self.context = context

    @property
    def count(self) -> Count:  # type: ignore[override]
        counts = [stream.count for stream in self.inputs]
        return None if None in counts else min((c for c in counts if c is not None), default=math.inf)

    def start(self) -> At:
        return [[stream.start(), 0] for stream in self.inputs]

    def seek(self, unit: int, lap: int = 0) -> Position:
        return [[stream.seek(unit, lap) for stream in self.inputs], 0]

    def fits(self, at: At) -> bool:
        return is_list(at, len(self.inputs)) and all(s.fits_position(p) for s, p in zip(self.inputs, at, strict=True))

    def open_at(self, at: At, lap: int) -> Flow:
        buffers = [Buffer(s.open(p, lap), p) for s, p in zip(self.inputs, at, strict=True)]
        room = math.inf  # the number of units that may still be requested
        under_way = 0

        def limit(units: int) -> None:
            nonlocal room
            room = units
            for buffer in buffers:
                buffer.limit(units)

        def step(wait: bool) -> tuple[Piece, Any] | Pending | None:
            nonlocal room, under_way
            units = PENDING if room <= 0 and not wait else _shared_units(buffers, wait, bool(under_way))
            if not isinstance(units, int):
                return units
            batch = any(b.batch for b in buffers)
            units = 1 if batch else units
            room -= units
            under_way += 1
            at = [b.position for b in buffers]
            runs = [concat_rows(b.take(units)) for b in buffers]
            return Piece(runs[0], at, batch=batch), self.context.submit(merge, runs, batch, self.context.site)

        def merged(pulled: tuple[Piece, Block]) -> Piece:
            nonlocal under_way
            under_way -= 1
            piece, block = pulled
            return Piece(Rows.of(block), piece.at, batch=piece.batch)

        tasks = OrderedTasks(step)
        return GeneratorFlow(converted(tasks.pull, merged), tasks, *buffers, limit=limit)


def _shared_units(buffers: list[Buffer], wait: bool, under_way: bool) -> int | Pending | None:
    """Return how many units are available from every input; while tasks run, wait until a full run is available."""
    while True:
        shortest = min(buffers, key=lambda b: (b.units, not b.ended))
        if shortest.ended:
            return shortest.units or None
        if shortest.units >= (1 if shortest.batch else _RUN):
            return shortest.units
        if not shortest.fill(wait and not shortest.units):
            return shortest.units if shortest.units and not under_way else PENDING
