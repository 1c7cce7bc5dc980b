"""DataEpoch: deliver one rank's part of an epoch of the data, from its beginning or the position in a state on."""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

from cedar.core.errors import ResumeError, Site
from cedar.core.limits import Limits
from cedar.core.process import Rank
from cedar.core.stream import Count, Fenced, Flow, Piece, Position, Stream
from cedar.engine.agree import Agreement, board, next_run
from cedar.engine.audit import audited
from cedar.engine.binding import Binding
from cedar.engine.compiler import Compiler, Mixing, min_run_units
from cedar.engine.metrics import Metrics
from cedar.engine.nodes import deal_mode, endless, last_mode, over_ranks, rows_per_unit
from cedar.engine.notes import describe_order, describe_overlap, offer
from cedar.engine.plan_control import Plans
from cedar.engine.rendezvous import talk
from cedar.engine.runner import Runner
from cedar.engine.streams.assigned import AssignedStream, Share, only_skipped
from cedar.engine.streams.deal import EVERYTHING
from cedar.engine.streams.lanes import NO_COMMON_END, Lane, LaneState, Sharing
from cedar.engine.streams.splits import SplitStream
from cedar.engine.task_context import Tasks, Watcher
from cedar.operators.base import Env, StreamOperator
from cedar.operators.instances import Instances
from cedar.plan.data import Plan
from cedar.plan.graph import digest, topology
from cedar.plan.steps.step import as_tolerated, tolerated
from cedar.store.cache import Store
from cedar.tasks.chain import KernelStep

_log = logging.getLogger("cedar")
Mixed: TypeAlias = tuple[Any, ...]
Origin: TypeAlias = "tuple[DataEpoch, int] | None"  # the epoch and the lane of a piece; None for padding
_MIXED = {"left": {}, "since": 0, "drawn": {}}  # fields of a state for mixtures with new weights, and their defaults


@dataclass(frozen=True)
class Job:
    """The settings and services that all epochs of a loader use."""

    binding: Binding
    rank: Rank
    seed: int
    split_batches: bool
    finish: tuple[KernelStep, ...]
    instances: Instances
    store: Store
    metrics: Metrics
    plans: Plans
    deal: str = "auto"
    steps: int | None = None
    place: Callable[[int, int], Any] = lambda _rank, _world: None  # how ranks communicate; see ``meeting_place``
    shares: Sharing | None = None  # how ranks share an epoch; None derives it from the pipeline
    encodes: bool = False  # ``finish`` encodes batches, so it may run in any process and its result can be sent
    limits: Limits = field(default_factory=Limits.of_environment)  # limits of a task
    counts: dict[str, Count] = field(default_factory=dict)  # caches the latest computed number of units of an epoch
    weights: dict[str, Any] = field(default_factory=dict)  # weights of mixtures set during the run, by mixture number

    @cached_property
    def sharing(self) -> Sharing:
        """How ranks share an epoch, according to the metadata of the sources."""
        world = self.rank.world
        if self.shares is not None:
            return self.shares
        if world == 1 or self.split_batches:
            return Sharing()
        if self.balanced:
            name = self.binding.labels[id(over_ranks(self.binding.nodes))]
            return Sharing(why=f"{name} moves rows between ranks. What is above it is of a rank's own rows", asked=True)
        compiler, _ = self.compiled(Runner("inline", 1), 0, [], dry=True)
        if compiler.counted:
            return Sharing()
        if self.deal == "global":
            return Sharing(why='deal="global" asks for it', asked=True)
        why, last = compiler.unshared(world), last_mode(self.binding.root)
        together = last != "keep" and self.steps is None and not self._local and not self.endless
        if not why and together and self.place(self.rank.rank, world) is None:
            why = NO_COMMON_END.format(last=last and f'"{last}"')
        if not why:
            return Sharing(lanes=True, together=together)
        alternative = offer(self.binding)
        return Sharing(why=f"{why}; or {alternative}" if alternative else why)

    def agreement(self, meeting: str, timeout: float | None, site: Site | None) -> Agreement | None:
        """Return the ranks' agreement on the end of the epoch that begins; None if none is needed.

        ``meeting`` is the name of the rendezvous at which the ranks last changed; "" if they have not.
        """
        if not self.sharing.together:
            return None
        rank, world = self.rank.rank, self.rank.world
        run = next_run(meeting or digest([topology(self.binding.root), self.seed, world])[:16], rank)
        with talk(site):
            where = board(self.place(rank, world), run, rank, world)
        return Agreement(where, world, last_mode(self.binding.root) == "pad", timeout, site)

    def streams(
        self,
        runner: Runner,
        epoch: int,
        history: list[Any],
        lane: Lane | None = None,
        dry: bool = False,
        written: Plan | None = None,
        mixed: Mixed = (),
    ) -> tuple[Stream, AssignedStream]:
        """Return the top stream of this rank, and its assigned stream.

        Args:
            dry: compile the pipeline as written, only to count units.
            written: a plan to audit; compiles the pipeline as written, whose rows the plan's are compared with.
            mixed: fields of ``Mixing`` after ``weights``; empty if no weights changed.
        """
        compiler, share = self.compiled(runner, epoch, history, lane, dry, written, mixed)
        return compiler.top(share, self.finish if runner.local or self.encodes else ())

    def describe_order(self) -> str:
        """Describe, for reports, which rows are delivered as they finish."""
        lane = LaneState.first(self.rank.rank, self.rank.world, 0).lane([]) if self.sharing.lanes else None
        compiler, share = self.compiled(Runner("inline", 1), 0, [], lane, dry=True)
        compiler.top(share)
        return describe_order(compiler.physical, compiler.ready)

    def compiled(
        self,
        runner: Runner,
        epoch: int,
        history: list[Any],
        lane: Lane | None = None,
        dry: bool = False,
        written: Plan | None = None,
        mixed: Mixed = (),
    ) -> tuple[Compiler, Share]:
        """Return the compiler of the streams below the top, and this rank's share of the units; see ``streams``."""
        began = time.perf_counter()
        alone = self.split_batches or lane is not None
        turn, turns = (lane.turn, lane.turns) if lane is not None else (0, 1)
        last = deal_mode(self.binding.root)
        share = Share(
            rank=turn if alone else self.rank.rank,
            world=turns if alone else self.rank.world,
            chunk=min_run_units(self.binding) if self.rank.world > 1 else EVERYTHING,
            last="keep" if alone and last_mode(self.binding.root) is None else last,
            history=tuple(history if lane is None else lane.history),
            may_end_apart=alone or (last is None and self.rank.world > 1 and self._local),
            turns=((self.balanced or self.binding.scheduled) and not alone) or lane is not None,
        )
        plain = dry or written is not None
        watcher = Watcher() if plain else self.plans.watcher(runner)
        metrics = self.metrics if written is None else Metrics()
        watch: Literal["", "audit"] = "" if written is None else "audit"
        numeric, limits = self.binding.numeric, self.limits
        unsteady = self.binding.check_env.unsteady
        env = Env(self.seed, epoch, self.instances, watch=watch, numeric=numeric, limits=limits, unsteady=unsteady)
        tasks = Tasks(runner, env, metrics, watcher)
        slices = (self.rank.rank, self.rank.world) if self.split_batches else None
        root = self.binding.root if plain else self.plans.current.root
        store = self.store if written is None else Store()  # an audit must not use rows that a plan has cached
        if written is not None and (inexact := tolerated(written.root)):
            root = as_tolerated(self.binding.root, inexact)
        physical = self.binding.lowered(root, runner.name, lambda place: tasks.on(place).runner.workers)
        mixing = Mixing(self.weights, *mixed)
        compiler = Compiler(physical, self.binding, tasks, store, slices, lane, share, mixing)
        metrics.time.lanes = runner.lanes
        metrics.time.compiling += 0.0 if dry else time.perf_counter() - began
        return compiler, share

    def reads_beyond(self) -> str:
        """Describe the rows that both this rank and other ranks read; "" if there are few."""
        if self.rank.world == 1 or self.split_batches or self.sharing.why:
            return ""
        world = self.rank.world
        compiler, share = self.compiled(Runner("inline", 1), 0, [], dry=True)
        if self.sharing.lanes:
            labels = compiler.by_key(world)
            if not labels:
                return ""
            return f"each of the {world} ranks reads all of {labels}, which has fewer splits, and keeps its rows by key"
        sources = [stream for stream in compiler.streams if isinstance(stream, SplitStream)]
        if len(sources) != 1:
            return ""
        return describe_overlap(sources[0], compiler.top(share)[1], rows_per_unit(self.binding.root), world)

    @cached_property
    def _local(self) -> bool:
        """Whether ranks may end an epoch at different steps, because an operator has ``local=True``."""
        operators = [node.operator for node in self.binding.nodes]
        return any(isinstance(each, StreamOperator) and each.local for each in operators)

    @cached_property
    def endless(self) -> bool:
        """Whether an epoch of the data never ends."""
        return endless(self.binding.root)

    @cached_property
    def balanced(self) -> bool:
        """Whether an operator moves rows between the batches of different ranks at a step."""
        return over_ranks(self.binding.nodes) is not None


class DataEpoch:
    """Opens the flows of a data epoch and tracks the position after the last delivered unit.

    Args:
        entry: this epoch's part of a state: {"history", "deal", "lanes", "past", "before", "left", "since"}; None at
            the beginning. "past" contains earlier lanes, and "before" the undelivered part of the previous epoch as
            {"epoch", "entry"}. "left" and "since" describe mixtures with changed weights; see ``Mixing``.
        agreement: finds the common end of the epoch if ranks have different numbers of batches.
    """

    def __init__(
        self, job: Job, runner: Runner, epoch: int, entry: dict[str, Any] | None, agreement: Agreement | None = None
    ) -> None:
        self.epoch, self._job, self._runner = epoch, job, runner
        entry = first_entry(job, epoch, job.sharing.lanes) if entry is None else entry
        self._history = entry["history"]
        self._deal: Position | None = entry["deal"]
        self._lanes: list[list[Any]] | None = entry["lanes"]
        self._past: list[Any] = entry.get("past") or []
        self._mixed = mixed_of(entry) if len(entry) > 3 else ()
        self._ends: dict[int, Position | None] = {}  # end positions of exhausted lanes, by index in ``_lanes``
        left = entry.get("before")
        self._before = None if left is None else DataEpoch(job, runner, left["epoch"], left["entry"])
        self.left_out: Counter[str] = Counter() if self._before is None else self._before.left_out
        self._agreement = agreement if self._lanes is not None else None
        self._last: tuple[int, Piece, int] | None = None
        self._compiled: tuple[Stream, AssignedStream] | None = None  # compiled in ``begin``; ``pieces`` opens it first
        self.moved = False  # whether any unit was delivered
        self.cancelled = False  # whether the run was stopped, so that errors say nothing about its plan

    def entry(self) -> dict[str, Any]:
        """Return this epoch's part of a state, with the position after the last delivered unit."""
        self._settle()
        entry = {"history": self._history, "deal": self._deal, "lanes": self._lanes}
        if self._past:
            entry["past"] = self._past
        if self._mixed:
            entry |= dict(zip(_MIXED, self._mixed, strict=True))
        if self._before is not None:
            entry["before"] = {"epoch": self._before.epoch, "entry": self._before.entry()}
        return entry

    def closed(self, ended: bool) -> dict[str, Any]:
        """Return this epoch's part of a state after this rank's last unit; other ranks may still be in the epoch.

        Args:
            ended: whether ``pieces`` has yielded all pieces.
        """
        if ended and (self._agreement is None or not self._agreement.undelivered):
            self._settle()
            self._before = None
            if self._lanes is not None:
                self._mark_finished(len(self._lanes))
        return self.entry_after(0)

    def entry_after(self, units: int) -> dict[str, Any]:
        """Return this epoch's part of a state after this number of further units, which must be known."""
        return self.entry() | {"deal": [[self._taken + units, None, None], 0]}

    def units(self) -> Count:
        """Return how many units this rank still has to deliver; None if unknown."""
        if self._lanes is not None:
            return None
        job, key = self._job, repr((self.epoch, self._job.rank.rank, self._history, self._mixed, self._job.weights))
        count = job.counts.get(key, -1)
        if count == -1:
            count = job.streams(self._runner, self.epoch, self._history, dry=True, mixed=self._mixed)[1].count
            job.counts.clear()
            job.counts[key] = count
        return None if count is None else count - self._taken

    def begin(self) -> Count:
        """Compile the streams that ``pieces`` opens first. Return the number of remaining units; None if unknown."""
        if self._lanes is not None:
            return None
        try:
            self._compiled = self._job.streams(self._runner, self.epoch, self._history, mixed=self._mixed)
        except Exception:  # noqa: BLE001 - ``pieces`` raises it again and can fall back to the pipeline as written
            return self.units()
        count = self._compiled[1].count
        return None if count is None else count - self._taken

    @property
    def _taken(self) -> int:
        return 0 if self._deal is None else self._deal[0][0] + self._deal[1]

    def pieces(self) -> Iterator[tuple[Origin, Piece]]:
        """Yield the pieces of this rank in order. The caller must call ``delivered`` for each unit that it delivers.

        Another thread than the caller's may pull the pieces.
        """
        plain = self._lanes is None and self._before is None
        pulled = self._drain(None, self._deal, 0) if plain else self._all()
        if self._agreement is None:
            return pulled
        # The caller never receives a batch whose rows were all skipped, so it is not a step.
        return self._agreement.through(pulled, self._padding, lambda unit: not only_skipped(unit[1]))

    def _mark_finished(self, lanes: int) -> None:
        """Record that this rank has finished its first ``lanes`` lanes."""
        # If an input of a mixture has weight zero, rows of it may remain when a lane ends.
        drawn = {mix: [[0, weights]] for mix, weights in self._job.weights.items() if 0 in weights}
        for number in range(lanes):
            assert self._lanes is not None
            lane = LaneState(*self._lanes[number])
            self._lanes[number] = lane.finished(self._ends.get(number, lane.position), drawn)

    def _all(self) -> Iterator[tuple[Origin, Piece]]:
        """Yield each piece together with its epoch and the index of its lane."""
        if self._before is not None:
            yield from self._before._all()
        if self._lanes is None:
            yield from self._drain(None, self._deal, 0)
            return
        lanes = [LaneState(*lane) for lane in self._lanes]
        if len(lanes) > 1 and self._job.endless:
            yield from self._in_turns(lanes)
            return
        for number, lane in enumerate(lanes):
            end = lane.position
            for origin, piece in self._drain(lane.lane(self._past), end, number) if not lane.ended else ():
                end = _position_after(piece, piece.units - 1)
                yield origin, piece
            self._ends[number] = end

    def _in_turns(self, lanes: list[LaneState]) -> Iterator[tuple[Origin, Piece]]:
        """Yield units of endless lanes in turn, always from the lane that has delivered the fewest units."""
        flows = [self._drain(lane.lane(self._past), lane.position, number) for number, lane in enumerate(lanes)]
        rest: list[Piece | None] = [None] * len(lanes)
        taken = [(lane.taken, number) for number, lane in enumerate(lanes) if not lane.ended]
        while taken:
            units, number = heapq.heappop(taken)
            piece = rest[number] or next(flows[number], (None, None))[1]
            if piece is None:  # the endless inputs of its mixture were removed
                continue
            rest[number] = piece.slice(1, piece.units) if piece.units > 1 else None
            yield (self, number), piece.slice(0, 1)
            heapq.heappush(taken, (units + 1, number))

    def _padding(self) -> tuple[None, Piece]:
        """Return a batch of padding rows; delivering it does not change the position."""
        top, _ = self._job.streams(self._runner, self.epoch, [], Lane(0, 1), mixed=self._mixed)
        flow = top.open([[EVERYTHING, None, None], 0])
        try:
            piece = flow.pull(True)
            assert isinstance(piece, Piece)
            return None, piece
        finally:
            flow.close()

    def _drain(self, lane: Lane | None, position: Position | None, number: int) -> Iterator[tuple[Origin, Piece]]:
        """Yield the pieces of a lane plan by plan. Each plan continues where the previous plan stopped."""
        plans, origin = self._job.plans, (self, number)
        last: Piece | None = None  # the last delivered piece
        while True:
            flow: Flow | None = None
            try:
                opened, opening = time.perf_counter(), 0.0
                flow = self._open(lane, position if last is None else _position_after(last, last.units - 1))
                audits = plans.rewrites and not self._job.binding.any_order
                while True:
                    piece = flow.pull(True)
                    opening = opening or time.perf_counter() - opened
                    if not isinstance(piece, Piece):
                        self.left_out += self._dealt.left_out
                        return
                    if piece.units:
                        pieces = self._audited(piece, lane) if audits and plans.audit_due(opening) else []
                        for last in pieces or (piece,):
                            yield origin, last
                        if pieces:
                            break
                    if plans.planner is not None and not self.cancelled:
                        plans.poll()
            except Exception as error:  # excludes GeneratorExit, since names may be gone at exit
                if not isinstance(error, Fenced) and (self.cancelled or not plans.failed(error)):
                    raise
            finally:
                if flow is not None:
                    flow.close()

    def _audited(self, piece: Piece, lane: Lane | None) -> list[Piece]:
        """Compute a piece as written; return the units as written if they differ from the piece, else []. The second
        computation shares nothing with the plan: it reads all columns, and binds and fuses kernels as without a plan.
        """
        plans, began = self._job.plans, time.perf_counter()
        top, _ = self._job.streams(
            self._runner, self.epoch, self._history, lane, written=plans.current, mixed=self._mixed
        )  # fmt: skip
        found = audited(piece, top.open([piece.at, piece.skip]), plans.audits.seconds)
        as_written, why = found or ([], None)
        plans.audit(time.perf_counter() - began, why, done=found is not None)
        return [] if why is None else as_written

    def _open(self, lane: Lane | None, position: Position | None) -> Flow:
        if lane is not None:
            top, assigned = self._job.streams(self._runner, self.epoch, [], lane, mixed=self._mixed)
            self._dealt = assigned
            self._job.plans.figures.share = 1 / lane.of
            return _at(top, position) if position else top.open([assigned.start(), 0])
        top, assigned = self._compiled or self._job.streams(
            self._runner, self.epoch, self._history, mixed=self._mixed
        )  # fmt: skip
        self._compiled, self._dealt = None, assigned
        takes_all = assigned.count is None or assigned.share.turns
        self._job.plans.figures.share = 1.0 if takes_all else 1 / assigned.share.world
        last = assigned.share.last
        if last == "drop" and assigned.count == 0 and assigned.source.count and not self._history:
            _log.warning(
                'epoch %d has %d unit(s) for %d ranks: none is delivered, because they do not fill a step; '
                'use smaller batches, fewer ranks, or last="keep" or "pad"',
                self.epoch, assigned.source.count, self._job.rank.world,
            )  # fmt: skip
        return _at(top, position) if position else top.open([assigned.start(), 0])

    def delivered(self, origin: Origin, piece: Piece, unit: int) -> None:
        """Record that unit ``unit`` of a piece is about to be delivered; the position is computed only on demand."""
        self.moved = True
        if origin is not None:
            owner, lane = origin
            if owner._last is not None and owner._last[0] != lane:
                owner._settle()
            owner._last = (lane, piece, unit)
            if owner is self:
                self._before = None
            else:
                self._job.metrics.carried += 1

    def _settle(self) -> None:
        if self._last is None:
            return
        lane, piece, unit = self._last
        self._last = None
        if self._lanes is None:
            self._deal = _position_after(piece, unit)
            return
        if not self._job.endless:  # lanes are read one after another, so those before this one are finished
            self._mark_finished(lane)
        self._lanes[lane] = LaneState(*self._lanes[lane]).after(_position_after(piece, unit), piece.keeps)


def first_entry(job: Job, epoch: int, lanes: bool) -> dict[str, Any]:
    """Return the entry at which a data epoch begins; ``lanes``: whether the rank's share is a lane."""
    first = [list(LaneState.first(job.rank.rank, job.rank.world, epoch))] if lanes else None
    return {"history": [], "deal": None, "lanes": first}


def scheduled_entry(job: Job, epoch: int, since: int) -> dict[str, Any] | None:
    """Return the entry at which a data epoch begins if mixtures have schedules, which count steps on; else None.

    Args:
        since: the number of steps before the data epoch.
    """
    if not job.binding.scheduled:
        return None
    return first_entry(job, epoch, job.sharing.lanes) | {"left": {}, "since": since}


def mixed_of(entry: dict[str, Any]) -> Mixed:
    """Return a state entry's fields for mixtures with changed weights; empty if no weights changed."""
    return tuple(entry.get(name, default) for name, default in _MIXED.items()) if _MIXED.keys() & entry.keys() else ()


def for_any_rank(entry: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return an epoch's part of a state after the same number of units, valid on every rank with known counts."""
    if entry is None or entry["deal"] is None:
        return entry
    (taken, _, _), skip = entry["deal"]  # the position below is only valid for one rank
    return entry | {"deal": [[taken, None, None], skip]}


def _position_after(piece: Piece, unit: int) -> Position:
    """Return the position after a unit of a piece."""
    if piece.end is not None and unit == piece.units - 1:
        return piece.end
    taken, below, number = piece.at
    skip = piece.skip + unit + 1
    plain = below is None and number is None
    return [[taken + skip, None, None], 0] if plain else [[taken, below, number], skip]


def _at(top: Stream, position: Position) -> Flow:
    """Open the stream at a position; raise ResumeError if the position, which may come from a state, is invalid."""
    if not top.fits_position(position):
        raise ResumeError(
            "the position in the state does not exist in this pipeline: the state was edited or damaged",
            done="nothing was read",
            fix="use the state as it was saved",
        )
    return top.open(position)
