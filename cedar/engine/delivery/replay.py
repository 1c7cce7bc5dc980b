"""Compute units of an epoch again: read batches by their steps, and find the origin of their rows."""

from __future__ import annotations

import copy
import itertools
import math
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError, RowRef, Site
from cedar.core.stream import Piece
from cedar.datasets.base import Read
from cedar.engine.binding import Binding
from cedar.engine.delivery.options import Options
from cedar.engine.delivery.state import copied
from cedar.engine.epoch import DataEpoch, Job, first_entry, for_any_rank, scheduled_entry
from cedar.engine.metrics import Metrics
from cedar.engine.nodes import last_mode
from cedar.engine.plan_control import Plans
from cedar.engine.runner import Runner
from cedar.engine.streams.assigned import only_skipped
from cedar.executors.choose import executor_after_fork
from cedar.operators.expressions import Select
from cedar.plan import graph
from cedar.plan.data import Plan
from cedar.plan.graph import Node, Scan

if TYPE_CHECKING:
    from cedar.engine.delivery.epochs import Position
    from cedar.engine.delivery.parts import Units

_OPEN = 4  # number of flows to keep open, so that consecutive steps can be read without seeking


class Replay:
    """Random access to the units of the loader's epoch; reading the next step continues an open flow.

    Batches are recomputed by the pipeline as written, not by the loader's current plan. If the loader's tasks run in
    other processes, so do those of the replay, so that a row that crashes workers does not crash this process.
    Otherwise they run in the caller's thread.

    Args:
        job: the loader's job.
        options: the loader's options.
        site: the user's line, for errors.
        plans: plans to use instead of the pipeline as written.
    """

    runner: Runner  # runs the tasks; set by ``open``

    def __init__(self, job: Job, options: Options, site: Site | None, plans: Plans | None = None) -> None:
        written = plans or Plans(None, Plan.as_written(job.binding.root), job.binding, Metrics())
        self._job, self._options, self.site = replace(job, plans=written), options, site
        self._pid, self._getpid = os.getpid(), os.getpid  # ``os`` may be gone at interpreter exit
        # The opened epoch, the position where it began, and the number of steps before it.
        self._epoch: tuple[int, dict[str, Any], int] | None = None
        self._committed = -1
        self._lanes: bool | None = None  # whether the epoch's shares are lanes; None: as the job says
        # By rank: (next step, the piece that contains it, later pieces).
        self._flows: dict[int, tuple[int, Piece | None, Iterator[Piece]]] = {}

    def open(self, position: Position) -> Replay:
        """Move to the epoch of a position, and return this object."""
        if self._pid != os.getpid():  # in a forked child, open flows belong to the parent and must not be closed
            _flows_of_parent.append((self._flows, self._epoch and self.runner))
            self._flows, self._epoch, self._pid = {}, None, os.getpid()
        if self._epoch != (position.epoch, position.begun, position.earlier_steps):
            self.close()
            self._epoch = position.epoch, copied(position.begun), position.earlier_steps
            self._committed = -1
            # A state may be of a run whose ranks could communicate, and so shared the epoch in another way.
            ways = [
                entry["lanes"] is not None for number, entry in position.open.items() if number == str(position.data)
            ]
            self._lanes = ways[0] if ways else None
            executor, _ = executor_after_fork(self._options.executor, None)
            here = executor in ("auto", "inline", "threads") or isinstance(executor, ThreadPoolExecutor)
            self.runner = Runner("inline", 1) if here else self._options.runner(self._job.metrics.deaths)
        return self

    @property
    def _begun(self) -> dict[str, Any]:
        """The position from which the epoch's steps count: {"step", "data", "open"}."""
        assert self._epoch is not None
        return self._epoch[1]

    def commit(self, step: int) -> None:
        """Declare steps up to ``step`` as final, so that they cannot be read again."""
        self._committed = max(self._committed, step)

    def unit(self, step: int, rank: int) -> Piece:
        """Return the unit that ``rank`` receives at ``step``.

        Raises:
            PipelineError: the step is committed, before the epoch's start or after its end.
        """
        self._check_rank(rank)
        steps, first, problem, fix = self._job.steps, self._begun["step"], "", None
        if step <= self._committed:
            problem = f"steps up to {self._committed} are committed"
            fix = "commit a step only when it will not be read again"
        elif step < first:
            problem = f"the epoch was redistributed to {self._job.rank.world} rank(s) at step {first}"
        elif steps is not None and step >= steps:
            problem = f"the epoch has {steps} steps"
        if problem:
            raise PipelineError(f"step {step}: {problem}", site=self.site, fix=fix)
        place, rest, pieces = self._flows.pop(rank, (0, None, None))
        if pieces is None or place > step:
            place, pieces = self._open(step, rank)
            rest = None
        for piece in pieces if rest is None else itertools.chain([rest], pieces):
            after = place + piece.units
            if step < after:
                rest = piece.slice(step - place + 1, piece.units) if step + 1 < after else None
                self._flows[rank] = step + 1, rest, pieces
                if len(self._flows) > _OPEN:
                    self._flows.pop(next(iter(self._flows)))
                return piece.slice(step - place, step - place + 1)
            place = after
        raise PipelineError(f"step {step}: the epoch of rank {rank} has {place} steps", site=self.site)

    def all(self, rank: int) -> Iterator[tuple[int, Piece]]:
        """Yield all units that ``rank`` receives in the epoch, as pairs of a step and the piece that begins at it.

        Raises:
            PipelineError: only that rank knows its position, or the epoch is endless.
        """
        self._check_rank(rank)
        steps = self._job.steps
        place, pieces = self._open(self._begun["step"], rank)
        if steps is None and self._job.endless:
            raise PipelineError("the epoch has no end", site=self.site, fix="give loader(steps=...)")
        for piece in pieces:
            if steps is not None and place >= steps:
                return
            yield place, piece
            place += piece.units

    def _check_rank(self, rank: int) -> None:
        """Raise PipelineError if this rank cannot derive what ``rank`` receives."""
        own, opened = self._job.rank, self._begun["open"]
        if not 0 <= rank < own.world:
            raise PipelineError(f"rank {rank}: ranks are 0 to {own.world - 1}", site=self.site)
        if rank == own.rank:
            return
        if any(entry["lanes"] is not None for entry in opened.values()):
            raise PipelineError(
                f"row counts are unknown, so only rank {rank} knows its position",
                site=self.site,
                fix="read it on that rank",
            )
        if self._job.steps is not None and opened and last_mode(self._job.binding.root) == "keep":
            raise PipelineError(
                f'with steps= and last="keep", only rank {rank} knows its position',
                site=self.site,
                fix='read it on that rank, or use last="drop" or "pad"',
            )

    def _open(self, step: int, rank: int) -> tuple[int, Iterator[Piece]]:
        """Return the pieces from a step on, and that step: the wanted one if counts are known, else an earlier one."""
        place, number = self._begun["step"], self._begun["data"]
        data = self._data(number, rank, place)
        while (units := data.units()) and place + units <= step and self._job.steps is not None:
            place += int(units)
            number += 1
            data = self._data(number, rank, place)
        if units is not None and units != math.inf and step > place:
            jump = min(step - place, int(units))
            data = self._data(number, rank, place, data.entry_after(jump))
            place += jump
        return place, self._pieces(data, rank, place)

    def _pieces(self, data: DataEpoch, rank: int, place: int) -> Iterator[Piece]:
        while True:
            some = False
            for _, piece in data.pieces():
                some = some or piece.units > 0
                if not only_skipped(piece):  # the caller never receives it
                    place += piece.units
                    yield piece
            if self._job.steps is None or not some:
                return
            data = self._data(data.epoch + 1, rank, place)

    def _data(self, number: int, rank: int, place: int, entry: dict[str, Any] | None = None) -> DataEpoch:
        """Return a data epoch of a rank, at the position in ``entry``, or else where it begins, at step ``place``."""
        assert self._epoch is not None
        own, (_, begun, earlier) = self._job.rank, self._epoch
        job = replace(self._job, rank=replace(own, rank=rank))
        entry = entry or begun["open"].get(str(number))
        if rank != own.rank:
            entry = for_any_rank(entry)
        entry = entry or scheduled_entry(job, number, earlier + place)
        if entry is None and self._lanes is not None:
            entry = first_entry(job, number, self._lanes)
        return DataEpoch(job, self.runner, number, entry)

    def close(self) -> None:
        """Close the open flows and the runner."""
        if self._epoch is not None and self._pid == self._getpid():
            self._flows.clear()
            self.runner.close()
            self._epoch = None

    def __del__(self) -> None:
        self.close()  # ends its threads when a loader is garbage-collected


_flows_of_parent: list[Any] = []  # referenced here so that a forked child does not close them


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


class ByStep:
    """Computes batches of an epoch again, or only the keys of their rows.

    Args:
        job: the loader's job. It is replaced, and this object with it, when the ranks or the weights change.
        units: converts batches for the caller.
        site: the line that created the loader, for errors.
    """

    def __init__(self, job: Job, units: Units, site: Site | None) -> None:
        self._job, self._units, self._account = job, units, units.account
        self.replay = Replay(job, units.options, site)
        self._last: tuple[Any, Keys] | None = None  # cached, since callers often look up several rows of one step

    @cached_property
    def _bare(self) -> Node | None:
        """The pipeline without operators that only change values; None if values determine which rows exist."""
        whole = self._account.skips or self._job.split_batches
        return None if whole else without_kernels(self._job.binding.root)

    @cached_property
    def _replay_of_keys(self) -> Replay:
        """Replay of the row keys, which runs kernels only if values determine which rows exist."""
        bare, job, options = self._bare, self._job, self._units.options
        if bare is not None:
            binding = Binding(bare, None, job.binding.check_env, job.binding.call_in_subprocess)
            plans = Plans(None, Plan(bare, without_columns(bare)), binding, Metrics())
            return Replay(replace(job, binding=binding, finish=()), options, None, plans)
        if any(n.row_use.rows == "joined" for n in job.binding.nodes):
            binding = copy.copy(job.binding)
            binding.parts = True
            return Replay(replace(job, binding=binding), options, None)
        return self.replay

    def _keys_of(self, piece: Piece) -> Keys:
        return piece.rows.keys() if self._bare is not None else piece.rows.gather().live_keys()

    def _named(self, position: Position, ref: RowRef) -> RowRef:
        """Return the reference to a row with its file, and its epoch unless ``steps=`` lets one span data epochs."""
        return replace(self._account.named(ref), epoch=position.epoch if self._job.steps is None else None)

    def read(self, position: Position, step: int, rank: int | None, site: Site | None) -> Any:
        """See ``Loader.read``."""
        replay = self.replay.open(position)
        replay.site = site
        with self._account.located("nothing was read"):
            piece = replay.unit(step, self._job.rank.rank if rank is None else rank)
        return self._units.again(piece.rows.gather(), replay.runner)

    def locate(self, position: Position, step: int, i: int, site: Site | None) -> Located:
        """See ``Loader.locate``."""
        asked = position.epoch, copied(position.begun), step
        with self._account.located():
            if self._last is None or self._last[0] != asked:
                replay = self._replay_of_keys.open(position)
                self._last = asked, self._keys_of(replay.unit(step, self._job.rank.rank))
        keys, binding = self._last[1], self._job.binding
        if i >= len(keys):
            raise PipelineError(f"locate({step}, {i}): the batch has {len(keys)} row(s)", site=site)
        source, *above = path(binding.root, keys.ref(i).source)
        of, parts = keys.each()
        refs = [keys.ref(i), *map(parts.ref, np.flatnonzero(of == i).tolist())]
        row, *rows = (self._named(position, ref) for ref in refs)
        return Located(
            step, i, row, f"{binding.labels[id(source)]}, {source.site}", tuple(binding.labels[id(n)] for n in above),
            self._job.plans.current.method, self._bare is None, tuple(rows),
        )  # fmt: skip

    def where(self, position: Position, file: str, row: int, *, alone: bool) -> list[Location]:
        """See ``Loader.where``; ``alone``: search only this rank, because the positions of others are unknown."""
        places, path = [], re.sub(r"^(\.{0,2}/)+", "", file)
        with self._account.located():
            for rank in [self._job.rank.rank] if alone else range(self._job.rank.world):
                for step, piece in self._replay_of_keys.open(position).all(rank):
                    slots, keys = self._keys_of(piece).each()
                    for found in np.flatnonzero(keys.row == row).tolist():
                        named, i = self._named(position, keys.ref(found)), int(slots[found])
                        if named.url == file or str(named.url).endswith(f"/{path}"):
                            at = (step, i) if piece.batch else (step + i, 0)
                            places.append(Location(position.epoch, rank, *at, named))
        return places

    def close(self) -> None:
        """Close the open replays."""
        for each in {self.replay, self.__dict__.get("_replay_of_keys", self.replay)}:
            each.close()


def path(root: Node, ordinal: int) -> Iterator[Node]:
    """Yield the nodes on the way from source ``ordinal`` to the root."""
    on = {id(graph.sources(root)[ordinal])}
    for node in graph.walk(root):
        if id(node) in on or any(id(child) in on for child in node.inputs):
            on.add(id(node))
            yield node


def without_kernels(root: Node) -> Node | None:
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


def without_columns(root: Node) -> Node:
    """Return a plan's graph whose scans read no columns."""
    done: dict[int, Node] = {}
    for node in graph.walk(root):
        operator = Scan(node.operator.source, ()) if isinstance(node.operator, Read) else node.operator
        inputs = tuple(done[id(child)] for child in node.inputs)
        done[id(node)] = replace(node, operator=operator, inputs=inputs, origin=node)
    return done[id(root)]
