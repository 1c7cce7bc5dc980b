"""cache(): keeps the blocks of splits behind the deterministic operators below, in memory or as Arrow files.

An entry is keyed by the operators, the code of their functions, the identity of the data and the split. It carries the
rows that were skipped. Files are written under a temporary name and renamed, so a torn entry is never read.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from cedar import graph
from cedar.block import Block, Skipped
from cedar.columns import TensorType, as_column, type_of
from cedar.cursor import Keys
from cedar.datasets.base import Read, Split
from cedar.errors import PipelineError
from cedar.execution.chain import Reader, Step, Timing, run_steps
from cedar.execution.places import find_place
from cedar.graph import Node
from cedar.operators.base import Env

_MEMORY_BYTES = 2 << 30
_KEYS = ("row", "file", "sub", "repeat", "branch", "source")


class Store:
    """Where the entries of one loader are. Memory is bounded; what does not fit is computed again."""

    def __init__(self, budget: int = _MEMORY_BYTES) -> None:
        self._budget = budget
        self._held = 0
        self._entries: dict[str, list[Block]] = {}
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self._budget,)  # another process keeps its own

    def get(self, key: str, where: str) -> list[Block] | None:
        """The blocks of an entry, or None."""
        with self._lock:
            found = self._entries.get(key)
        if found is None and where not in ("auto", "memory"):
            found = _load(where, key)
        self.hits += found is not None
        self.misses += found is None
        return found

    def put(self, key: str, where: str, blocks: list[Block]) -> None:
        """Keep the blocks of a split, if there is room."""
        if where not in ("auto", "memory") and _save(where, key, blocks):
            return
        size = sum(b.nbytes for b in blocks)
        with self._lock:
            if self._held + size <= self._budget:
                self._entries[key] = blocks
                self._held += size


@dataclass(frozen=True)
class KeptReader:
    """A reader and the steps whose results are kept."""

    reader: Reader
    steps: tuple[Step, ...]
    store: Store
    where: str
    fingerprint: str

    def read_blocks(self, split: Split, lap: int, env: Env) -> Iterator[Block]:
        """The blocks of a split behind the steps, from the store if they are there."""
        where, identity = self.where, None
        given: Iterable[Block] | None = None
        if where not in ("auto", "memory"):  # an entry outlives the run, so it must know its data
            identity = self.reader.source.identity()
            if identity is None:
                given = list(self.reader.blocks(split, 0))
                identity = _contents(given)
            where = "memory" if identity is None else where
        key = graph.digest([self.fingerprint, self.reader.ordinal, repr(split), identity])
        blocks = self.store.get(key, where)
        if blocks is None:
            given = self.reader.blocks(split, 0) if given is None else given
            blocks = [run_steps(self.steps, block, env, Timing()) for block in given]
            self.store.put(key, where, blocks)
        for block in blocks:
            yield Block(block.columns, replace(block.keys, repeat=lap), block.dead, block.aligned)


def _contents(blocks: Sequence[Block]) -> str | None:
    """Stands for rows that only reading can tell apart; None where they have no Arrow form."""
    state = hashlib.sha256()
    for block in blocks:
        table = _to_table(block) if block.slots else pa.table({})
        if table is None:
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        state.update(sink.getvalue())
    return state.hexdigest()


def fingerprint(node: Node) -> str:
    """Stands for the operators up to a node, their code, and the data."""
    parts: list[Any] = [graph.code_digest(node), _versions()]
    for current in graph.walk(node):
        operator = current.operator
        if isinstance(operator, Read):
            parts.append(operator.parameters())
            continue
        names: list[str] = list(getattr(operator, "__dataclass_fields__", ()))
        values = {name: getattr(operator, name) for name in names}
        parts.append([operator.name, {name: str(v) for name, v in values.items() if not callable(v)}])
        parts += [_expression(item) for item in operator.code() if hasattr(item, "meta")]
    return graph.digest(parts)


def _expression(expression: Any) -> str:
    """An expression to the last of its literals, which its text leaves out."""
    return hashlib.sha256(expression.meta.serialize(format="binary")).hexdigest()


def _versions() -> list[str]:
    import polars as pl

    return [pa.__version__, np.__version__, pl.__version__]


def _save(where: str, key: str, blocks: list[Block]) -> bool:
    """Write an entry; False if its columns cannot be stored."""
    if not blocks:
        return False
    tables = [_to_table(block) for block in blocks]
    if any(t is None for t in tables):
        return False
    fs, path = find_place(where, "cache")
    try:
        fs.makedirs(path, exist_ok=True)
        if fs.protocol == "file" or "file" in fs.protocol:
            os.chmod(path, 0o700)
        name = f"{path}/{key}.arrow"
        temporary = f"{name}.{os.getpid()}-{threading.get_ident()}.tmp"
        with fs.open(temporary, "wb") as file, pa.ipc.new_file(file, tables[0].schema) as writer:  # type: ignore[union-attr]
            for table in tables:
                writer.write_table(table)
        fs.mv(temporary, name)
    except OSError as error:
        raise PipelineError(
            f"cache({where!r}): an entry cannot be written: {error}",
            done="the epoch was stopped",
            fix='free space or give another place; cache("memory") keeps blocks in memory',
        ) from error
    return True


def _load(where: str, key: str) -> list[Block] | None:
    fs, path = find_place(where, "cache")
    name = f"{path}/{key}.arrow"
    if not fs.exists(name):
        return None
    try:
        with fs.open(name, "rb") as file, pa.ipc.open_file(pa.BufferReader(file.read())) as reader:
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
            for batch in batches:
                batch.validate(full=True)
            return [_from_batch(batch, reader.schema.metadata) for batch in batches]
    except (OSError, pa.ArrowInvalid, KeyError, ValueError):
        return None  # a damaged entry is a miss: it is computed again and written over


def _to_table(block: Block) -> pa.Table | None:
    """A block as one table; None when a column has no Arrow form, or rows left slots behind."""
    if block.dead or not block.aligned or not block.slots:
        return None
    arrays: dict[str, pa.Array] = {}
    shapes: dict[str, Any] = {}
    for name, column in block.columns.items():
        kind = type_of(column)
        if isinstance(column, pa.Array):
            arrays["c." + name] = column
        elif isinstance(kind, TensorType):
            flat = np.ascontiguousarray(column).reshape(len(column), -1).view(np.uint8)
            arrays["c." + name] = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(flat.shape[1]), len(column), [None, pa.py_buffer(flat.tobytes())]
            )
            shapes[name] = [list(kind.shape), kind.dtype]
        else:
            return None
    for name in _KEYS:
        part = getattr(block.keys, name)
        arrays["k." + name] = pa.array(np.full(block.slots, part) if isinstance(part, int) else part)
    return pa.table(arrays).replace_schema_metadata({"shapes": json.dumps(shapes)})


def _from_batch(batch: pa.RecordBatch, metadata: Any) -> Block:
    shapes = json.loads(metadata[b"shapes"])
    columns: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if name.startswith("k."):
            values = array.to_numpy()
            same = name != "k.row" and bool((values == values[0]).all())
            parts[name[2:]] = int(values[0]) if same else values
        elif name[2:] in shapes:
            shape, dtype = shapes[name[2:]]
            flat = np.frombuffer(array.buffers()[1], dtype=np.uint8)
            size = array.type.byte_width
            flat = flat[array.offset * size : (array.offset + len(array)) * size]
            columns[name[2:]] = flat.view(dtype).reshape(len(array), *shape)
        else:
            columns[name[2:]] = as_column(array)
    dead: dict[int, Skipped] = {}
    return Block(columns, Keys(**parts), dead)
