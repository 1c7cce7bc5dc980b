"""Compile a physical plan into the streams of one rank's epoch, one stream per stage.

Rows and their order (windows, permutations, row keys) depend only on the pipeline as written, not on the plan or the
executor. Kernels are bound when a stream is opened, so cedar can count the units of a compiled plan and display it
without calling the user's functions.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

from cedar.core.cursor import hash_ints
from cedar.core.errors import PipelineError
from cedar.core.stream import Stream
from cedar.datasets.base import Read, rows_may_fail
from cedar.engine.binding import Binding
from cedar.engine.dedup import as_read
from cedar.engine.nodes import any_order_stage, over_ranks, rows_per_unit
from cedar.engine.programs import Programs
from cedar.engine.streams.assigned import AssignedStream, Share
from cedar.engine.streams.deal import EVERYTHING, Interval, steps_from
from cedar.engine.streams.derived import GroupStage, RestStream, SharedStream, SliceStream, WindowStream, blame
from cedar.engine.streams.lanes import DONE, Lane
from cedar.engine.streams.ready import ReadyStream
from cedar.engine.streams.splits import SplitSegment, SplitStream, Window
from cedar.engine.streams.stage import StageStream
from cedar.engine.task_context import Tasks
from cedar.operators.base import StreamContext, StreamOperator
from cedar.operators.batch import BatchStream, MakesBatches, PadBatch
from cedar.operators.cache import StoresRows
from cedar.operators.mix import MixStream
from cedar.plan import physical as plans
from cedar.plan.graph import Node, at_site
from cedar.plan.physical import Branch, Physical, Stage
from cedar.plan.steps.order import batch_rows
from cedar.store.cache import Store
from cedar.tasks.cached import KeptReader
from cedar.tasks.chain import KernelStep, Program
from cedar.tasks.fingerprints import key_of, record_of
from cedar.tasks.reading import Reader, SplitReader

_CHUNK_WINDOWS = 8  # windows in a rank's run: enough that the two windows shared with neighbor ranks cost little


@dataclass(frozen=True)
class Mixing:
    """How weights of mixtures changed during the run. Each dict is keyed by mixture number.

    Args:
        weights: the current weights.
        left: where counts are known, the ranges of units that remain of each input.
        step: the loader's step at which the first of these units was drawn.
        drawn: where counts are unknown, pairs of a unit number and the weights that apply from that unit on.
    """

    weights: dict[str, Any] = field(default_factory=dict)
    left: dict[str, list[list[list[int | None]]]] = field(default_factory=dict)
    step: int = 0
    drawn: dict[str, Any] = field(default_factory=dict)


class Compiler:
    """Creates the streams of one epoch.

    Args:
        physical: the physical plan to run.
        binding: the bound operators of the pipeline as written, which determine windows, keys, random draws and labels.
        tasks: submits tasks, and provides the seed, the epoch and the counters.
        store: stores the blocks that ``cache()`` caches.
        slices: (rank, world) if every rank receives a slice of every batch.
        lane: the part of the epoch to compile; None compiles the whole epoch.
        share: how units are assigned to ranks; needed by operators that move rows between ranks.
        mixing: how weights of mixtures changed during the run.
    """

    def __init__(
        self,
        physical: Physical,
        binding: Binding,
        tasks: Tasks,
        store: Store,
        slices: tuple[int, int] | None = None,
        lane: Lane | None = None,
        share: Share | None = None,
        mixing: Mixing | None = None,
    ) -> None:
        self.physical = physical
        self._nodes = physical.nodes
        self.binding = binding
        self.tasks = tasks
        self._store = store
        self._slices = slices
        self._alone = lane is not None or slices is not None
        self._share = share or Share()
        self._mixing, self._lane = mixing or Mixing(), lane
        self._drawn = self._mixing.drawn if lane is None else lane.drawn
        self._programs = Programs(binding, physical)
        consumers = [0] * len(physical.stages)
        for stage in physical.stages:
            for number in stage.inputs:
                consumers[number] += 1
        self.streams: list[Stream] = []  # by stage number
        self._cuts: list[BatchStream | SliceStream] = []
        self.ready: ReadyStream | None = None
        any_order_number = any_order_stage(physical) if binding.any_order else -1
        for number, stage in enumerate(physical.stages[: physical.deal]):
            stream = self._stream(stage, lane if lane is not None and number in self._lane_stages else None)
            if number == any_order_number:
                stream = self.ready = ReadyStream(stream)
            self.streams.append(SharedStream(stream) if consumers[number] > 1 else stream)

    @property
    def assigned(self) -> Stream:
        """The stream whose units are assigned to ranks."""
        return self.streams[self.physical.stages[self.physical.deal].inputs[0]]

    @property
    def counted(self) -> bool:
        """Whether the position of every unit can be computed from metadata, without reading rows."""
        streams = [stage for stage in self.physical.stages if stage.kind == "stream"]
        repeats = [stage for stage in streams if self._nodes[stage.out].row_use.rows == "repeated"]
        found = all(self.streams[stage.inputs[0]].count is not None for stage in repeats)
        return self.assigned.count is not None and (self.assigned.count != math.inf or found)

    def mixture_below(self, left: Sequence[Interval]) -> tuple[str, Stream, list[Interval]]:
        """Return the number of the topmost mixture, its stream, and the intervals ``left`` converted to its units.

        Raises:
            PipelineError: an operator in between prevents the conversion.
        """
        (number,) = self.physical.stages[self.physical.deal].inputs
        runs = list(left)
        while True:
            stage = self.physical.stages[number]
            node = self._nodes[stage.out]
            stream = self.streams[number]
            if stage.kind == "stream" and node.row_use.rows == "mixed":
                return self.binding.mixture(node), stream, runs
            below = self.streams[stage.inputs[0]] if stage.inputs else stream
            size = batch_rows(node) if stage.kind == "stream" else None
            if size is not None and not self._below(stage).refills:
                end = math.inf if below.count is None else below.count
                runs = [(low * size, min(high * size, end)) for low, high in runs]
            elif stage.kind != "task" or not stage.preserves_units:
                raise PipelineError(
                    f"the weights of a mixture cannot change below {self.physical.works[stage.out].label}: how "
                    "much was drawn from each input cannot be derived from the rows delivered",
                    site=node.site,
                    fix="apply operators that reorder, drop or join rows to the inputs of mix()",
                )
            (number,) = stage.inputs

    def remaining_of_mixtures(self, left: Sequence[Interval]) -> dict[str, Any]:
        """Return what remains of the inputs of mixtures when ``left`` are the units that remain on all ranks."""
        number, stream, runs = self.mixture_below(left)
        return self._mixing.left | {number: _remaining_of_inputs(stream, runs)}

    # ---- the top -----------------------------------------------------------------------------------------------------

    def top(self, share: Share, finish: Sequence[KernelStep] = ()) -> tuple[Stream, AssignedStream]:
        """Return the stream that a rank's loader pulls from, and the assigned stream below it with the same units."""
        stages, deal = self.physical.stages, self.physical.deal
        assigned = AssignedStream(self.assigned, share)
        assigned.cuts = self._cuts
        if self.ready is not None:  # ranks that receive units in turn need the same order
            self.ready.free = self._slices is None and (assigned.whole or assigned.in_runs)
        top: Stream = assigned
        for number in range(deal + 1, len(stages)):
            last = partial(self._final_steps, stages[number], share, finish) if number == len(stages) - 1 else tuple
            top = self._tasks(stages[number], top, last)
        return top, assigned

    def _final_steps(self, stage: Stage, share: Share, finish: Sequence[KernelStep]) -> Sequence[KernelStep]:
        """Return the kernel steps to run last on a rank's units: ``finish``, after padding where it is needed."""
        if share.last != "pad" or self.physical.stages[self.physical.deal + 1].pads >= 0:
            return finish
        root = self.physical.nodes[-1]
        padding = PadBatch(self._local(rows_per_unit(root.logical)), self.binding.types(root), only_empty=True)
        return [KernelStep(padding), *finish]

    # ---- streams -----------------------------------------------------------------------------------------------------

    def _stream(self, stage: Stage, lane: Lane | None) -> Stream:
        inputs = tuple(self.streams[i] for i in stage.inputs)
        if stage.kind == "read":
            return self._read(stage, lane)
        if stage.kind == "task":
            return self._tasks(stage, inputs[0])
        if stage.kind == "group":
            return self._group(stage, inputs[0])
        if stage.kind == "window":
            return WindowStream(inputs[0], self._window_rows(stage))
        if lane is None:
            return self._operator(stage, inputs)
        chunk = min_run_rows(self.binding)
        history = [[of, chunk, [EVERYTHING if k == DONE else 0 for k in kept]] for of, kept in lane.past]
        share = Share(lane.number, lane.of, chunk, history=tuple(history))
        return AssignedStream(self._operator(stage, inputs), share, alone=True)

    def _tasks(self, stage: Stage, below: Stream, last: Callable[[], Sequence[KernelStep]] = tuple) -> StageStream:
        def program() -> Program:
            return self._programs.of(stage.operators, first=self._pad_steps(stage), last=last())

        return StageStream(below, program, stage.preserves_units, stage.small, self.tasks.on(stage.place))

    def _group(self, stage: Stage, rows: Stream) -> Stream:
        size = self._nodes[stage.out].exact_rows or 1
        groups = BatchStream(rows, size, "keep", self._below(stage).refills)
        return GroupStage(groups, rows, size, partial(self._programs.of, stage.operators), self.tasks.on(stage.place))

    def _operator(self, stage: Stage, inputs: tuple[Stream, ...]) -> Stream:
        work, node = self.physical.works[stage.out], self._nodes[stage.out]
        operator = node.operator
        assert isinstance(operator, StreamOperator)
        context = self._context(stage.out)
        if node.row_use.rows == "balanced":
            share = self._share
            assigned = steps_from(inputs[0].count, list(share.history), share.last, inputs[0].rows_of)
            context = replace(context, ranks=share.world, assigned=assigned)
        if node.row_use.rows == "mixed":
            number = self.binding.mixture(node)
            weights, drawn = tuple(self._mixing.weights.get(number, ())), self._drawn.get(number, ())
            step = self._steps(self.physical.works[stage.out].batched)
            context = replace(context, weights=weights, drawn=drawn, step=step)
            if (left := self._mixing.left.get(number)) is not None:
                pairs = zip(inputs, left, strict=True)
                inputs = tuple(each if each.count is None else RestStream(each, runs) for each, runs in pairs)
        below = inputs[0] if inputs else None
        if isinstance(below, StageStream) and below.any_order and (size := batch_rows(node)) is not None:
            below.batch = size
        with at_site(node):
            stream = blame(operator.stream(inputs, context), node)
        if self._slices and work.batched and not self._below(stage).batched:
            drops = isinstance(operator, MakesBatches) and operator.last is None
            even = drops and batch_rows(node) is not None  # not for buckets, which often give short batches
            stream = SliceStream(stream, *self._slices, drops, even)
        self._cuts += [stream] if isinstance(stream, (BatchStream, SliceStream)) else []
        return stream

    def _steps(self, batched: bool) -> Callable[[int], int]:
        """Return a function that maps a mixture's unit to the loader's step; assumes that no unit above is dropped."""
        root = self.physical.nodes[-1].logical
        rows = rows_per_unit(root) if root.batched and not batched else 1
        if self._alone:
            return lambda unit: self._mixing.step + unit // rows
        places, start, first = list[tuple[int, int, int]](), 0, self._mixing.step
        for world, _, taken in self._share.history:
            places.append((start, first, world))
            start, first = start + rows * sum(taken), first + max(taken)
        places.append((start, first, self._share.world))

        def step(unit: int) -> int:
            start, first, world = places[bisect_right(places, unit, key=itemgetter(0)) - 1]
            return first + (unit - start) // (rows * world)

        return step

    def _context(self, i: int) -> StreamContext:
        node, env = self._nodes[i], self.tasks.env
        run = env.seed, env.epoch, self._lane, self._mixing
        return StreamContext(
            seed=env.seed, epoch=env.epoch, index=self.binding.ordinal(node), site=node.site,
            submit=partial(self.tasks.submit, self.binding.ordinal(node)),
            row_bytes=self._unit_bytes(node.inputs[0]) if node.inputs else 0.0,
            types=lambda: next(filter(None, map(self.binding.types, node.inputs)), {}),  # first known input
            refills=self.physical.works[i].refills, parts=self.binding.parts, ranks=self._lane.of if self._lane else 1,
            stored_as=lambda: key_of(node.logical, self.binding.on_error, *run),
        )  # fmt: skip

    # ---- windows -----------------------------------------------------------------------------------------------------

    def _window(self, stage: Stage) -> tuple[Window, int | None]:
        """Return the window size that the user set, and the seed for permuting the splits (None without a shuffle)."""
        mixing = self._nodes[stage.windows].ordering.mixing if stage.windows >= 0 else None
        if mixing is None:
            return Window(), None
        seed = self._context(stage.windows).hash_seed(mixing.seed)
        return Window(mixing.bytes, mixing.rows), hash_ints(seed, 1)

    def _window_rows(self, stage: Stage) -> int:
        window, _ = self._window(stage)
        size = self._unit_bytes(self._nodes[stage.out])
        return window.rows or max(1, int((window.bytes or 0) / max(size, 1.0)))

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _read(self, stage: Stage, lane: Lane | None) -> Stream:
        window, permute = self._window(stage)
        tasks = self.tasks.on(stage.place)
        own: list[KernelStep] = []  # steps that drop the rows of other lanes; they run in the reading task
        made = tuple(self._segment(segment, lane, own) for segment in stage.segments)
        stream = SplitStream(made, window, permute, stage.preserves_units, tasks, lane, windowed=stage.windows >= 0)
        if lane is None:
            return stream
        by_key = stream.by_key
        reported = self._reports_begun(*self.physical.stages[self.physical.deal].inputs)
        stream.reports_begun = by_key is None and reported
        if by_key is None:
            return stream
        if stream.streaming:  # chunks are delivered while the split is being read, so a later stage filters them
            return StageStream(stream, lambda: Program((KernelStep(by_key),)), False, False, tasks)
        own.append(KernelStep(by_key))
        return stream

    def _segment(self, segment: plans.Segment, lane: Lane | None, own: Sequence[KernelStep]) -> SplitSegment:
        node = self._nodes[segment.source]
        assert isinstance(node.operator, Read)
        index, splits = self.binding.ordinal(node), self.binding.splits(node)
        whole = lane is None or rows_may_fail(node.operator.source)  # if rows may fail, do not use conditions
        conditions = () if whole else tuple(self._conditions(node.logical))
        counted = self.binding.splits.rows(node)
        return SplitSegment(
            partial(self._readers, segment, own), node.operator.source, index, splits, conditions, counted
        )

    def _readers(self, segment: plans.Segment, own: Sequence[KernelStep]) -> tuple[Any, Program]:
        """Return the reader of a segment, and the program that its blocks run through."""
        kept, links, plain = segment.kept, segment.links, self._plain(segment.source)
        if self.binding.marks:
            first = itertools.takewhile(lambda link: isinstance(link, int), links)
            read_first = [self._nodes[link] for link in first if isinstance(link, int)]
            plain = replace(plain, source=as_read(plain.source, self.binding, read_first))
        reader = self._programs.scan(self._nodes[segment.source].operator, plain)
        if not kept:
            return reader, self._programs.of(links, first=own, scan=segment.source)
        below = self._programs.of(links[:kept], scan=segment.source)
        return self.keeper(segment, reader, below), self._programs.of(links[kept:], first=own)

    def _plain(self, source: int) -> Reader:
        node, binding = self._nodes[source], self.binding
        assert isinstance(node.operator, Read)
        return Reader(
            node.operator.source, binding.source_ordinal(node), binding.ordinal(node), binding.label(node),
            binding.policy(node), node.site,
        )  # fmt: skip

    def keeper(
        self, segment: plans.Segment, reader: SplitReader | None = None, program: Program | None = None
    ) -> KeptReader:
        """Return a reader that caches a segment's rows below its ``cache()``; without ``reader`` only for display."""
        links = segment.links[: segment.kept]
        top = next(link for link in reversed(links) if isinstance(link, int))
        cache = self._nodes[segment.cache].operator
        assert isinstance(cache, StoresRows)
        record = record_of(self._nodes[top], self.binding.root, cache.version, self._store.digests)
        where = "memory" if record.unknown else cache.storage  # another run cannot verify that it does the same work
        branches = tuple(link.input for link in links if isinstance(link, Branch))
        return KeptReader(
            reader or self._plain(segment.source), program or Program(), self._store, where, record, branches
        )

    def _conditions(self, node: Node) -> Iterator[Any]:
        """Yield the conditions of filters above a source that use only unchanged columns of that source."""
        written: frozenset[str] = frozenset()
        while len(above := self._above.get(id(node), [])) == 1:
            node = above[0]
            reads, writes = node.effects.reads, node.effects.writes
            if node.condition is not None and reads is not None and not reads & written:
                yield node.condition
            if writes is None:
                return
            written |= writes

    @cached_property
    def _above(self) -> dict[int, list[Node]]:
        """Consumers of each operator of the pipeline as written."""
        consumers: dict[int, list[Node]] = {}
        for node in self.binding.nodes:
            for child in node.inputs:
                consumers.setdefault(id(child), []).append(node)
        return consumers

    # ---- lanes -------------------------------------------------------------------------------------------------------

    @cached_property
    def _lane_stages(self) -> set[int]:
        """The stages where rows are assigned to lanes: read stages, and operators that need all their input."""
        return self._find_lane_stages(*self.physical.stages[self.physical.deal].inputs)

    def _find_lane_stages(self, number: int) -> set[int]:
        stage = self.physical.stages[number]
        operator = self._nodes[stage.out].operator if stage.kind == "stream" else None
        counts = isinstance(operator, StreamOperator) and not (operator.row_use.lanes or operator.local)
        if counts or stage.kind == "read":
            return {number}
        return set().union(*map(self._find_lane_stages, stage.inputs))

    def _reports_begun(self, number: int) -> bool:
        """Whether units report which splits were started: true for one source if all operators above it report them."""
        stage = self.physical.stages[number]
        ordering = self._nodes[stage.out].ordering
        reports = stage.kind == "task" or (stage.kind == "stream" and ordering.reports_splits_started)
        return stage.kind == "read" or (reports and self._reports_begun(*stage.inputs))

    def unshared(self, world: int) -> str:
        """Return why ``world`` ranks cannot have a lane each; "" if they can. Only for the pipeline as written."""
        works = self.physical.works
        for number in sorted(self._lane_stages):
            stage, stream = self.physical.stages[number], self.streams[number]
            if stage.kind == "read":
                continue  # ranks share a source by its splits, or by row keys
            if stream.count is None:
                return f"{works[stage.out].label} counts rows whose number is unknown; local=True lets each rank count"
            elif stream.count < world:
                return f"{works[stage.out].label} gives {stream.count} row(s)"
        below = [i for number in self._lane_stages for i in self.physical.stages[number].inputs]
        for number in below:  # the list grows meanwhile, until it has all stages below
            below += [i for i in self.physical.stages[number].inputs if i not in below]
        if self._lane_stages.intersection(below):
            return "a part of the pipeline has two consumers, and one of them counts rows"
        return ""

    def by_key(self, world: int) -> str:
        """Return labels of sources with fewer splits than ranks: each rank reads all splits and selects rows by key."""
        labels = []
        for number in sorted(self._lane_stages):
            stage, stream = self.physical.stages[number], self.streams[number]
            splits = stream.source if isinstance(stream, SharedStream) else stream
            if isinstance(splits, SplitStream) and 0 < splits.splits < world:
                labels += [self.physical.works[segment.source].label for segment in stage.segments]
        return " and ".join(labels)

    # ---- facts about operators ---------------------------------------------------------------------------------------

    def _below(self, stage: Stage) -> plans.Work:
        """Return the work of the operator below a stage of one operator."""
        works = self.physical.works
        return works[works[stage.out].inputs[0]]

    def _local(self, size: int) -> int:
        """Return how many of ``size`` rows of a batch this rank receives."""
        return size // self._slices[1] if self._slices else size

    def _pad_steps(self, stage: Stage) -> list[KernelStep]:
        """Return the step that pads batches directly after batching, for ``last="pad"``; [] without padding."""
        if stage.pads < 0:
            return []
        size = self._local(self._nodes[stage.pads].operator.size)  # type: ignore[attr-defined]
        below = self.physical.stages[stage.inputs[0]].out
        return [KernelStep(PadBatch(size, self.binding.types(self._nodes[below])))]

    def _unit_bytes(self, node: Node) -> float:
        """Estimate the bytes of one unit of a node from source metadata, so that all plans get the same estimate."""
        return self.binding.row_bytes * (rows_per_unit(node) if node.batched else 1)


def _remaining_of_inputs(stream: Any, runs: Sequence[Interval]) -> list[list[list[int | None]]]:
    """Return the units of each input that a mixture draws in the intervals ``runs``, or does not draw at all."""
    stream = stream.source if isinstance(stream, SharedStream) else stream
    assert isinstance(stream, MixStream)
    left: list[list[Interval]] = [[] for _ in stream.inputs]
    total = stream.count
    assert total is not None
    edges = [*runs, *([] if total == math.inf else [(int(total), math.inf)])]
    for low, high in edges:
        first = stream.taken(int(low))
        last = [math.inf] * len(first) if high == math.inf else stream.taken(int(high))
        for number, (start, stop) in enumerate(zip(first, last, strict=True)):
            below = stream.inputs[number]
            count = math.inf if below.count is None else below.count
            stop = min(stop, count)
            found = below.numbers.spans(start, stop) if isinstance(below, RestStream) else [(start, stop)]
            for each in found:
                if left[number] and left[number][-1][1] == each[0]:
                    each = (left[number].pop()[0], each[1])
                if each[0] < each[1]:
                    left[number].append(each)
    return [[[low, None if high == math.inf else int(high)] for low, high in each] for each in left]


def min_run_rows(binding: Binding) -> int:
    """Return the minimum rows of a rank's run: several times the largest window (or row group) of the sources."""
    most = 1.0
    orders = [node.ordering for node in binding.nodes]
    windows = [order.mixing for order in orders if order.windowed and order.mixing is not None]
    for splits in filter(len, map(binding.splits, binding.sources)):
        rows, total, size = splits.max_rows, splits.known_rows, splits.known_bytes
        for mixing in windows:
            if mixing.rows is not None:
                rows = max(rows, min(mixing.rows, total))
            elif size:
                limit = Window(mixing.bytes).limit(size, total)
                rows = max(rows, min(total, math.ceil(total * limit / size)))
        most = max(most, rows)
    return math.ceil(_CHUNK_WINDOWS * most)


def min_run_units(binding: Binding) -> int:
    """Return ``min_run_rows`` in units of the pipeline; 1 if ranks receive single units in turn."""
    if binding.scheduled or over_ranks(binding.nodes) is not None:
        return 1
    return -(-min_run_rows(binding) // (rows_per_unit(binding.root) if binding.root.batched else 1))
