"""pack: packs lists of numbers of different lengths into rows of one fixed length, for language models."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from cedar.core.block import Block
from cedar.core.columns import UNKNOWN, ColumnType, TensorType, blank
from cedar.core.cursor import no_keys
from cedar.core.errors import PipelineError, ResumeError, Site, invalid_call, require_columns
from cedar.core.stream import (
    PENDING,
    At,
    Flow,
    GeneratorFlow,
    Pending,
    Piece,
    Position,
    Rows,
    Stream,
    converted,
    is_count,
    is_list,
)
from cedar.operators.base import Effects, Ordering, RowUse, Schema, StreamContext, StreamOperator
from cedar.operators.buffers import OrderedTasks, keep_columns, task_per_piece
from cedar.operators.packing import (
    ADDED_COLUMNS,
    Documents,
    as_fill,
    block_documents,
    check_fill,
    documents,
    pack_best,
    pack_concat,
    token_columns,
    token_dtype,
)
from cedar.operators.take import whole

Fit: TypeAlias = Literal["concat", "best"]
Tasks: TypeAlias = Generator["tuple[At, Any] | Pending", bool, None]

_WINDOW = 1 << 16  # the maximum number of documents per best-fit window; changing it changes results


@dataclass(frozen=True)
class Pack(StreamOperator):
    """Packs token sequences into rows of exactly ``length`` tokens.

    Each packed column becomes an array of shape (length,) and keeps its dtype. ``segment_ids`` (int32) numbers the
    documents of a row from 1, and is 0 in padding. ``positions`` (int32) counts from 0 inside each document, and
    continues after a cut. Other columns are dropped; all tokens are kept. Padding, at the end of the last row (or of
    any row, if the fit is "best"), is ``value`` in packed columns and 0 in ``positions``.

    Args:
        length: the number of tokens per row.
        columns: the columns to pack; by default, all lists of numbers. Within a row, their lengths must be equal.
        fit: "concat" concatenates documents and cuts them at the ends of rows. "best" packs each window of documents
            by best fit, and cuts only documents that are longer than a row.
        value: the padding value; a dict sets the value per column, and columns that are not in it get 0.
        local: True packs each rank's share separately.

    Raises:
        PipelineError: the length or fit is invalid; a column is missing, is not a list of numbers or cannot hold
            ``value``.
        RowError: while running, a value is missing, or a row's columns have different lengths.

    Examples:
        >>> from cedar.operators.pack import Pack
        >>> Pack(2048, ("tokens",)).label()
        "pack(2048, 'tokens')"
    """

    length: int
    columns: tuple[str, ...] = ()
    fit: Fit = "concat"
    local: bool = False
    value: Any = 0
    name: ClassVar[str] = "pack"
    row_use = RowUse("joined", lanes=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", whole(self.length, "pack(length)", least=1))
        object.__setattr__(self, "columns", (self.columns,) if isinstance(self.columns, str) else tuple(self.columns))
        if self.fit not in ("concat", "best"):
            raise invalid_call(
                f"pack(fit={self.fit!r}) is not known",
                fix='"concat" cuts documents at the ends of rows, "best" keeps them whole where it can',
            )
        object.__setattr__(self, "value", as_fill(self.value, "pack"))

    @property
    def ordering(self) -> Ordering:
        return Ordering(windowed=self.fit == "best")

    def label(self) -> str:
        parts = [str(self.length), *map(repr, self.columns)]
        parts += [] if self.fit == "concat" else [f"fit={self.fit!r}"]
        value = dict(self.value) if isinstance(self.value, tuple) else self.value
        return f"pack({', '.join(parts + ([f'value={value!r}'] if value else []))})"

    def effects(self) -> Effects:
        if not self.columns:  # all lists of numbers, which can be found only if types are known
            return Effects(None, None, rows="stream")
        packed = frozenset(self.columns)
        return Effects(packed, packed | frozenset(ADDED_COLUMNS), rows="stream", survivors=frozenset())

    def parameters(self) -> dict[str, Any]:
        return {"length": self.length, "columns": list(self.columns), "fit": self.fit, "local": self.local}

    def schema(self, *inputs: Schema) -> Schema:
        types = inputs[0]
        if types is None:
            return dict.fromkeys(self.columns, UNKNOWN) | self._added() if self.columns else None
        require_columns(self.columns, types, "pack")
        if not self.columns and UNKNOWN in types.values():
            return None  # any of these may be a list of numbers
        return {name: self._packed(types[name]) for name in self.names(types, None)} | self._added()

    def names(self, types: Mapping[str, ColumnType], site: Site | None) -> tuple[str, ...]:
        """Return the columns to pack, and check that their dtypes can represent ``value``."""
        names = token_columns(types, self.columns, site)
        check_fill(self.value, {name: token_dtype(types.get(name, UNKNOWN)) for name in names}, "pack", site)
        return names

    def _packed(self, kind: ColumnType) -> ColumnType:
        dtype = token_dtype(kind)
        return UNKNOWN if dtype is None else TensorType((self.length,), str(dtype))

    def _added(self) -> dict[str, ColumnType]:
        return dict.fromkeys(ADDED_COLUMNS, TensorType((self.length,), "int32"))

    def batched(self, *inputs: bool) -> bool:
        if inputs[0]:
            raise PipelineError("pack takes rows, but its input gives batches", fix="call pack() before batch()")
        return False

    def sample(self, *inputs: Block) -> Block:
        types = inputs[0].known_types
        if UNKNOWN in types.values():
            known = self.schema(types) or {}
            return Block({name: blank(kind, 0) for name, kind in known.items()}, no_keys())
        docs = block_documents(inputs[0], token_columns(types, self.columns), None)
        return pack_concat([docs], 0, -(-int(docs.lengths.sum()) // self.length), self.length)

    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream:
        return PackStream(inputs[0], self, context)


class PackStream(Stream):
    """A position ``at`` is [input position, number of tokens to skip after it]; with "best", a window's start."""

    def __init__(self, source: Stream, operator: Pack, context: StreamContext) -> None:
        self._source = source
        self._operator = operator
        self._context = context

    def start(self) -> At:
        return [[self._source.start(), 0], 0]

    def fits(self, at: At) -> bool:
        return is_list(at, 2) and self._source.fits_position(at[0]) and is_count(at[1])

    def open_at(self, at: At, lap: int) -> Flow:
        position, offset = at
        source = self._source.open(position, lap)
        measured = OrderedTasks(task_per_piece(source, self._measure))
        best = self._operator.fit == "best"
        tasks = self._window_tasks(measured) if best else self._concat_tasks(measured, position, offset)
        next(tasks)
        packed = OrderedTasks(tasks.send)
        pieces = converted(packed.pull, lambda pulled: Piece(Rows.of(pulled[1]), pulled[0], ends_window=best))
        return GeneratorFlow(pieces, packed, measured, source)

    def _measure(self, piece: Piece) -> Any:
        site = self._context.site
        names = self._operator.names(piece.rows.blocks[0].types, site)
        return self._context.submit(documents, keep_columns(piece.rows, names, "pack", site), names, site)

    def _concat_tasks(self, measured: OrderedTasks[Piece], position: Position, offset: int) -> Tasks:
        """Start a task whenever there are enough tokens for full rows; the rest begins the next row.

        Args:
            measured: pieces and their documents.
            position: the input position of the first waiting document.
            offset: the number of tokens of this document that earlier rows contain.
        """
        operator, waiting = self._operator, WaitingDocuments()

        def start(runs: list[Documents], offset: int, rows: int) -> Any:
            parts = self._context.parts
            return self._context.submit(pack_concat, runs, offset, rows, operator.length, operator.value, parts)

        wait = yield PENDING
        while (pulled := measured.pull(wait)) is not None:
            if pulled is PENDING:
                wait = yield PENDING
                continue
            piece, docs = pulled
            if docs is None:
                continue
            position = position if waiting.runs else piece.position()
            waiting.add(docs, piece)
            if offset > waiting.tokens:
                raise ResumeError(
                    f"the state is {offset:,} tokens into a document of {waiting.tokens:,}: it was edited",
                    done="nothing was read",
                    fix="use the state as it was saved",
                )
            del pulled, piece, docs
            if rows := (waiting.tokens - offset) // operator.length:
                starts = np.concatenate([[0], np.cumsum(waiting.lengths())]) - offset
                edge = rows * operator.length
                begun = int(np.searchsorted(starts, edge, side="left"))
                at, runs, skipped = [position, offset], waiting.first(begun), offset
                begun -= int(starts[begun] != edge)  # the last document continues in the next row
                offset = int(edge - starts[begun])
                waiting = waiting.drop(begun)
                position = waiting.position() if waiting.runs else position
                wait = yield at, start(runs, skipped, rows)
        rows = -(-(waiting.tokens - offset) // operator.length)
        if rows or any(run.dead for run in waiting.runs):
            yield [position, offset], start(waiting.runs, offset, rows)

    def _window_tasks(self, measured: OrderedTasks[Piece]) -> Tasks:
        """Start a task whenever a window is complete."""
        operator, context = self._operator, self._context
        waiting, ended = WaitingDocuments(), False
        rest: tuple[Piece, Any] | None = None  # the part of a piece that exceeds the largest window
        wait = yield PENDING
        while not ended:
            pulled, rest = rest or measured.pull(wait), None
            if pulled is PENDING:
                wait = yield PENDING
                continue
            if pulled is None:
                ended = complete = True
            else:
                piece, docs = pulled
                room, slots = _WINDOW - waiting.slots, 0 if docs is None else len(docs)
                if docs is not None:
                    waiting.add(docs.slice(0, room), piece.slice(0, room))
                if slots > room:
                    rest = piece.slice(room, slots), docs.slice(room, slots)
                complete = piece.ends_window or slots >= room
                del piece, docs
            del pulled
            if complete and waiting.runs:
                at, runs, waiting = [waiting.position(), 0], waiting.runs, WaitingDocuments()
                wait = yield at, context.submit(pack_best, runs, operator.length, operator.value, context.parts)


class WaitingDocuments:
    """A queue of unpacked documents, with their input positions."""

    def __init__(self) -> None:
        self.runs: list[Documents] = []
        self._origins: list[Piece] = []
        self.tokens = 0

    def add(self, run: Documents, origin: Piece) -> None:
        self.runs.append(run)
        self._origins.append(origin)
        self.tokens += int(run.lengths.sum())

    @property
    def slots(self) -> int:
        return sum(len(run) for run in self.runs)

    def position(self) -> Position:
        return self._origins[0].position()

    def lengths(self) -> Any:
        return np.concatenate([run.lengths for run in self.runs])

    def first(self, slots: int) -> list[Documents]:
        """Return the first ``slots`` documents."""
        taken = []
        for run in self.runs:
            if slots > 0:
                taken.append(run.slice(0, min(slots, len(run))))
            slots -= len(run)
        return taken

    def drop(self, slots: int) -> WaitingDocuments:
        """Return the queue without its first ``slots`` documents."""
        rest = WaitingDocuments()
        for run, origin in zip(self.runs, self._origins, strict=True):
            if slots < len(run):
                rest.add(run.slice(max(0, slots), len(run)), origin.slice(max(0, slots), origin.units))
            slots -= len(run)
        return rest
