"""Find the origin of a row of a batch by step and index. Kernels run only if they determine which rows exist."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cedar.core.cursor import Keys
from cedar.core.errors import RowRef
from cedar.datasets.base import Read
from cedar.engine.binding import Binding
from cedar.engine.delivery.options import Options
from cedar.engine.delivery.replay import Replays
from cedar.engine.delivery.state import copied
from cedar.engine.epoch import Job
from cedar.engine.metrics import Metrics
from cedar.engine.plan_control import Plans
from cedar.operators.expressions import Select
from cedar.plan import graph
from cedar.plan.data import Plan
from cedar.plan.graph import Node
from cedar.plan.scan import Scan


@dataclass(frozen=True)
class Located:
    """A row that a loader delivers, and its origin.

    Args:
        step, index: row ``index`` of batch ``step`` of the epoch; without batches, ``step`` is the row's number.
        row: URL of the file, row in the file (byte offset in text), item of a ``flat_map``, repeat and epoch.
        rows: all source rows that it consists of, such as the documents of a packed row.
        source: the label of the source, and the user's line.
        operators: labels of the operators between source and loader, in the order as written.
        plan: how the loader's latest plan was found.
        ran: whether files were read and functions run to find the row, because they determine which rows exist.
    """

    step: int
    index: int
    row: RowRef
    source: str
    operators: tuple[str, ...]
    plan: str
    ran: bool
    rows: tuple[RowRef, ...] = ()

    def __str__(self) -> str:
        how = "all of it was run again" if self.ran else "from row counts alone"
        return "\n".join(
            [
                f"step {self.step}, row {self.index}: {self.row}",
                f"  source     {self.source}",
                *(f"  made of    {row}" for row in self.rows if len(self.rows) > 1),
                *(f"  operator   {label}" for label in self.operators),
                f"  plan       {self.plan}; found {how}",
            ]
        )


@dataclass(frozen=True)
class Location:
    """The position at which a row of a file is delivered.

    Args:
        epoch, rank, step, index: row ``index`` of batch ``step`` of ``rank`` in this epoch; without batches, ``step``
            is the row's number and ``index`` is 0.
        row: the row; see ``Located``.
    """

    epoch: int
    rank: int
    step: int
    index: int
    row: RowRef

    def __str__(self) -> str:
        return f"epoch {self.epoch}, rank {self.rank}, step {self.step}, row {self.index}: {self.row}"


class Locator:
    """Finds rows by replaying the row keys of an epoch.

    Args:
        job: the loader's job.
        options: the loader's options.
        skips: whether some operator may drop rows that fail.
        full: replays complete batches; used if values determine which rows exist.
    """

    def __init__(self, job: Job, options: Options, skips: bool, full: Replays) -> None:
        bare = None if skips or job.split_batches else _without_kernels(job.binding.root)
        self.ran = bare is None
        self._last: tuple[Any, Keys] | None = None  # cached, since callers often look up several rows of one step
        self._replays = full
        if any(n.operator.row_use == "joined" for n in job.binding.nodes):
            binding = copy.copy(job.binding)
            binding.parts = True
            self._replays = Replays(replace(job, binding=binding), options, None)
        if bare is not None:
            binding = Binding(bare, None, job.binding.check_env, job.binding.call_in_subprocess)
            plans = Plans(None, Plan(bare, _without_columns(bare)), binding, Metrics())
            self._replays = Replays(replace(job, binding=binding, finish=()), options, None, plans)

    def keys(self, epoch: int, begun: dict[str, Any], step: int, rank: int) -> Keys:
        """Return the keys of the rows of a step, in order."""
        asked = epoch, copied(begun), step, rank
        if self._last is None or self._last[0] != asked:
            rows = self._replays.open(epoch, begun).unit(step, rank).rows
            self._last = asked, rows.gather().live_keys() if self.ran else rows.keys()
        return self._last[1]

    def places(self, epoch: int, begun: dict[str, Any], rank: int, row: int) -> Iterator[tuple[int, int, RowRef]]:
        """Yield step, index and key of each row that ``rank`` receives and whose number in any file is ``row``."""
        for step, piece in self._replays.open(epoch, begun).all(rank):
            places, keys = (piece.rows.gather().live_keys() if self.ran else piece.rows.keys()).each()
            for found in np.flatnonzero(keys.row == row).tolist():
                i = int(places[found])
                yield (step, i, keys.ref(found)) if piece.batch else (step + i, 0, keys.ref(found))

    def close(self) -> None:
        """Close the open replays."""
        self._replays.close()


def path(root: Node, ordinal: int) -> Iterator[Node]:
    """Yield the nodes on the way from source ``ordinal`` to the root."""
    on = {id(graph.sources(root)[ordinal])}
    for node in graph.walk(root):
        if id(node) in on or any(id(child) in on for child in node.inputs):
            on.add(id(node))
            yield node


def _without_kernels(root: Node) -> Node | None:
    """Return the pipeline without operators that only change values; None if values determine which rows exist."""
    for node in graph.walk(root):
        effects = node.effects
        if effects.rows == "stream" and (effects.random or effects.reads is None or effects.reads):
            return None
        if effects.rows not in ("stream", "1:1"):
            return None

    def without(node: Node) -> Node | None:
        if not node.inputs:
            return Node(Select(()), (node,), node.site)
        return node.inputs[0] if node.effects.rows == "1:1" else None

    return graph.replace(root, without)


def _without_columns(root: Node) -> Node:
    """Return a plan's graph whose scans read no columns."""
    done: dict[int, Node] = {}
    for node in graph.walk(root):
        operator = Scan(node.operator.source, ()) if isinstance(node.operator, Read) else node.operator
        inputs = tuple(done[id(child)] for child in node.inputs)
        done[id(node)] = replace(node, operator=operator, inputs=inputs, origin=node)
    return done[id(root)]
