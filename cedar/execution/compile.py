"""Compile a pipeline into streams, as written: chains of row operators become stages, fused where they can be.

Everything that fixes rows and their order (windows, permutations, row keys) comes from the logical graph here, and
none of it from the executor.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from cedar import graph
from cedar.cursor import hash_ints
from cedar.datasets.base import Read
from cedar.errors import PipelineError
from cedar.execution.binding import Binding
from cedar.execution.cached import KeptReader, Store, fingerprint
from cedar.execution.chain import Reader, Step
from cedar.execution.dealt import DealtStream, Share
from cedar.execution.dedup import as_read
from cedar.execution.groups import GroupStage
from cedar.execution.nodes import batch_below, by_place, cost_note, group_size, kept_nodes, pads, rows_per_unit
from cedar.execution.programs import Link, Programs, Within
from cedar.execution.shared import SharedStream
from cedar.execution.slices import SliceStream
from cedar.execution.splits import Segment, SplitStream, Window
from cedar.execution.stage import StageStream, WindowStream
from cedar.execution.tasks import Tasks
from cedar.graph import Node
from cedar.operators.base import RowOperator, StreamContext, StreamOperator
from cedar.operators.batch import BatchStream, PadBatch
from cedar.operators.cache import Cache
from cedar.operators.concat import Concat
from cedar.operators.shuffle import Shuffle
from cedar.plan.stages import Stage, Stages
from cedar.stream import Stream

_SPLITS_PER_WORKER = 8
_CHUNK_WINDOWS = 8  # a rank's run covers so many windows, so that its two cut windows weigh little


@dataclass(frozen=True)
class View:
    """How the sources below an operator are to be read."""

    window: Window = field(default_factory=Window)
    permute: int | None = None


class Compiler:
    """Makes the streams of one epoch.

    Args:
        binding: the bound operators of the pipeline as written: windows, keys, draws and labels are its.
        tasks: runner, seed and epoch, counters.
        store: where ``cache()`` keeps blocks.
        slices: (rank, world) when every rank takes its slice of every batch.
        lane: (number, of) for pipelines with an operator that is local to a rank.
        dry: only to count and to show: no kernel is bound, so no function and no sample is run.
        root: the graph to run, by default the pipeline as written.
    """

    def __init__(
        self,
        binding: Binding,
        tasks: Tasks,
        store: Store,
        slices: tuple[int, int] | None = None,
        lane: tuple[int, int] | None = None,
        dry: bool = False,
        root: Node | None = None,
    ) -> None:
        self.binding = binding
        self._root = binding.root if root is None else root
        self._nodes = binding.nodes if root is None else list(graph.walk(root))
        self._batched = binding.batched if root is None else graph.batched(root)
        self._programs = Programs(binding, self._root, dry)
        self.tasks = tasks
        self._store = store
        self._lane = lane
        self._slices = slices
        self._dry = dry
        self._consumers = Counter(id(child) for node in self._nodes for child in node.inputs)
        self._shared: dict[int, SharedStream] = {}
        self._caches = kept_nodes(self._nodes)
        self.plan = Stages()

    # ---- the top -----------------------------------------------------------------------------------------------------

    def top(self, share: Share, finish: Sequence[Step] = ()) -> tuple[StageStream, DealtStream]:
        """The stream that a rank's loader pulls, and the dealt stream below it; their units correspond."""
        root = self._root
        chain, base = self._chain(root)
        if isinstance(base.operator, Read) or not all(self.binding.keeps_rows(n) for n in chain):
            chain, base = [], root
        dealt = DealtStream(self.build(base), share)
        last: list[Step] = []
        if share.last == "pad" and not pads(base) and not self._dry:
            size = self._local(rows_per_unit(root.logical))
            last.append(Step(PadBatch(size, self.binding.types(root), only_empty=True)))
        program = self._programs.of(chain, self._pad_steps(base), [*last, *finish])
        self._planned("task", [*chain], "a batch a task" if self._batched[id(root)] else "")
        return StageStream(dealt, program, True, self._per_row(chain), self._tasks_of(chain)), dealt

    # ---- streams -----------------------------------------------------------------------------------------------------

    def build(self, node: Node) -> Stream:
        """The stream of a node, shared when several nodes draw from it."""
        if self._consumers[id(node)] > 1:
            if id(node) not in self._shared:
                self._shared[id(node)] = SharedStream(self._build(node))
            return self._shared[id(node)]
        return self._build(node)

    def _build(self, node: Node) -> Stream:
        chain, base = self._chain(node)
        alone = self._consumers[id(base)] < 2 or base is node or self._kept(chain)
        if isinstance(base.operator, Read) and alone:
            return self._read([(base, [])], chain, View(), windowed=False)
        return self._stages(self.build(base) if base is not node else self._base(base), base, chain)

    def _chain(self, node: Node, through_shared: bool = False) -> tuple[list[Node], Node]:
        """The row operators down to the first node that is none (or is shared, or sized), lowest first."""
        chain: list[Node] = []
        current = node
        while (
            isinstance(current.operator, RowOperator)
            and not group_size(current)
            and (current is node or through_shared or self._consumers[id(current)] < 2)
        ):
            chain.append(current)
            current = current.inputs[0]
        return chain[::-1], current

    def _stages(self, stream: Stream, base: Node, chain: list[Node]) -> Stream:
        """``chain`` above the stream of ``base``; without a chain, batches stay plans that a later stage gathers."""
        chain = [n for n in chain if not isinstance(n.operator, Cache)]  # a cache sits below, where rows are read
        first = self._pad_steps(base)
        for run in by_place(chain):
            stream, first = self._stage(stream, first, run), []
        return stream

    def _base(self, node: Node) -> Stream:
        """The stream of a stream operator, or of a map_batches that sees exactly so many rows."""
        size = group_size(node)
        if size is None:
            return self._stream_operator(node)
        below = node.inputs[0]
        if self._batched[id(below)]:
            raise PipelineError(
                f"{self.binding.label(node)}: size= has no meaning after batch()",
                site=node.site,
                fix="leave size out: the function sees the batch",
            )
        rows = self.build(below)
        self._planned("task", [node], f"groups of exactly {size} rows")
        groups = BatchStream(rows, size, "keep", self.binding.refills(below))
        return GroupStage(groups, rows, size, self._programs.of([node]), self._tasks_of([node]))

    def _stage(self, stream: Stream, first: list[Step], chain: list[Node]) -> Stream:
        keeps = all(self.binding.keeps_rows(n) for n in chain)
        if chain:
            batched = self._batched[id(chain[0].inputs[0])]
            small = "small tasks, by measured time" if self._per_row(chain) else ""
            self._planned("task", chain, "a batch a task" if batched else small)
        program = self._programs.of(chain, first)
        return StageStream(stream, program, keeps, self._per_row(chain), self._tasks_of(chain))

    def _stream_operator(self, node: Node) -> Stream:
        operator = node.operator
        assert isinstance(operator, StreamOperator)
        context = StreamContext(
            seed=self.tasks.env.seed,
            epoch=self.tasks.env.epoch,
            index=self.binding.ordinal(node),
            site=node.site,
            submit=self.tasks.runner.submit,
            row_bytes=self.unit_bytes(node.inputs[0]) if node.inputs else 0.0,
            types=lambda: self.binding.types(node.inputs[0]),
            refills=self.binding.refills(node),
        )
        if isinstance(operator, Shuffle):
            window = Window(operator.window_bytes, operator.window_rows)
            permute = hash_ints(context.hash_seed(operator.seed), 1)
            inputs: tuple[Stream, ...] = (self._windowed(node.inputs[0], View(window, permute)),)
        elif operator.windowed:
            inputs = (self._windowed(node.inputs[0], View()),)
        else:
            inputs = tuple(self.build(child) for child in node.inputs)
        stream = operator.stream(inputs, context)
        self._planned("stream", [node], cost_note(operator, inputs))
        cuts = self._slices and self._batched[id(node)] and not self._batched[id(node.inputs[0])]
        return SliceStream(stream, *self._slices) if self._slices and cuts else stream

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _windowed(self, node: Node, view: View) -> Stream:
        """A stream with windows: of splits where rows come straight from sources, else of runs of units."""
        found = self._segments(node)
        if found is not None and (len(found[0]) == 1 or not self._streams(found[0])):
            return self._read(*found, view)
        chain, base = self._chain(node, through_shared=True)
        below = self._base(base)
        rows = view.window.rows
        if rows is None:
            rows = max(1, int((view.window.bytes or 0) / max(self.unit_bytes(base), 1.0)))
        return self._stages(WindowStream(below, rows), base, chain)

    def _segments(self, node: Node) -> tuple[list[tuple[Node, list[Link]]], list[Node]] | None:
        """Each source with the operators of its own, and the operators that all of them share; or None."""
        operator = node.operator
        if isinstance(operator, Read):
            return [(node, [])], []
        if isinstance(operator, RowOperator) and not group_size(node):
            below = self._segments(node.inputs[0])
            return below and (below[0], [*below[1], node])
        if isinstance(operator, Concat):
            joined: list[tuple[Node, list[Link]]] = []
            for i, child in enumerate(node.inputs):
                below = self._segments(child)
                if below is None:
                    return None
                joined += [(source, [*own, *below[1], Within(i)]) for source, own in below[0]]
            return joined, []
        return None

    def _read(
        self, segments: Sequence[tuple[Node, list[Link]]], above: list[Node], view: View, windowed: bool = True
    ) -> Stream:
        """Read splits; what runs Python per row, and what follows it, goes into a stage of smaller tasks."""
        streaming = self._streams(segments)
        cut = 0 if streaming else max(self._read_with(segments, above), 0 if len(segments) > 1 else self._kept(above))
        made = tuple(self._segment(source, [*own, *above[:cut]], streaming) for source, own in segments)
        nodes = [n for source, own in segments for n in (source, *own) if isinstance(n, Node)] + above[:cut]
        keeps = all(self.binding.keeps_rows(n) for n in nodes) and not any(self.binding.refills(s) for s, _ in segments)
        tasks = self._tasks_of([source for source, _ in segments])
        stream = SplitStream(made, view.window, view.permute, keeps, tasks, self._lane, windowed)
        windows = len(stream.layout(0).starts)
        detail = f"{len(stream.entries)} split(s), {windows} window(s)" + (", permuted" if view.permute else "")
        self._planned("read", [*(source for source, _ in segments), *above[:cut]], detail)
        if streaming:
            self.plan.notes.append(
                "a source cannot be split (compressed, quoted CSV, tar or an iterator): it is read from its beginning "
                "by one task at a time, and a resume reads it again up to its place"
            )
        rest = above[cut:]
        return self._stages(stream, segments[0][0], rest)

    def _read_with(self, segments: Sequence[tuple[Node, list[Link]]], above: list[Node]) -> int:
        """How many of the operators above are done by the tasks that read.

        Those of another place are not, nor what runs Python per row, which smaller tasks spread better over workers;
        in another process it is, where there are splits enough: rows are shipped once.
        """
        place = segments[0][0].place
        here = next((i for i, n in enumerate(above) if n.place not in ("", place)), len(above))
        splits = sum(len(self.binding.splits(source)) for source, _ in segments)
        tasks = self._tasks_of([source for source, _ in segments])
        far = place == "processes" or tasks.runner.name == "dask"
        if far and splits >= _SPLITS_PER_WORKER * tasks.runner.workers:
            return here
        return next((i for i, n in enumerate(above[:here]) if self._per_row([n])), here)

    def _streams(self, segments: Sequence[tuple[Node, list[Link]]]) -> bool:
        """Some source has splits that can only be read from their beginning."""
        return any(split.streaming for source, _ in segments for split in self.binding.splits(source))

    def _segment(self, source: Node, links: list[Link], streaming: bool) -> Segment:
        operator, index = source.operator, self.binding.ordinal(source)
        assert isinstance(operator, Read)
        label = self.binding.label(source)
        ordinal, policy = self.binding.source_ordinal(source), self.binding.policy(source)
        read = operator.source if self._dry else as_read(operator.source, self.binding, links)
        plain = Reader(read, ordinal, index, label, policy, source.site)
        reader = self._programs.scan(source, plain)
        if streaming and any(isinstance(n, Node) and id(n) in self._caches for n in links):
            self.plan.notes.append(f"cache() keeps nothing of {label}: it cannot be split")
        kept = 0 if streaming else self._kept(links)
        splits = self.binding.splits(source)
        program = self._programs.of(links[kept:], scan=None if kept else source)
        if not kept:
            return Segment(reader, operator.source, index, program, splits)
        top = next(n for n in reversed(links[:kept]) if isinstance(n, Node))
        cache = self._caches[id(top)]
        below = self._programs.of(links[:kept], scan=source)
        branches = tuple(link.index for link in links[:kept] if isinstance(link, Within))
        made = fingerprint(top, self.binding.root)
        keeper = KeptReader(reader, below, self._store, cache.where, made, branches, cache.version)
        last = self._last_label(source, links[:kept])
        state = f"; {keeper.describe(splits)}" if self._dry else ""
        self.plan.notes.append(f"{cache.label()} keeps what comes out of {last}, split by split{state}")
        return Segment(keeper, operator.source, index, program, splits)

    def _last_label(self, source: Node, links: Sequence[Link]) -> str:
        """What the last of the links that does some work is called."""
        nodes = [n for n in links if isinstance(n, Node) and not isinstance(n.operator, Cache)]
        return self.binding.label(nodes[-1] if nodes else source)

    def _kept(self, links: Sequence[Link]) -> int:
        """How many of the links a ``cache()`` above them keeps: those before the first random one."""
        nodes = [n for n in links if isinstance(n, Node)]
        random = next((n for n in nodes if n.operator.effects().random), None)
        stop = next((i for i, n in enumerate(links) if n is random), len(links)) if random else len(links)
        return max(
            (i + 1 for i, n in enumerate(links[:stop]) if isinstance(n, Node) and id(n) in self._caches), default=0
        )

    def _planned(self, kind: Literal["read", "task", "stream"], nodes: Sequence[Node], detail: str) -> None:
        self.plan.stages.append(Stage(kind, tuple(self.binding.label(n) for n in nodes), detail))

    # ---- what is asked of nodes --------------------------------------------------------------------------------------

    def _tasks_of(self, chain: Sequence[Node]) -> Tasks:
        """What runs the tasks of a chain: the executor of its place."""
        place = next((n.place for n in chain if n.place), "")
        return self.tasks.on(place) if place else self.tasks

    def _per_row(self, chain: Sequence[Node]) -> bool:
        return any(n.operator.effects().per_row for n in chain)

    def _local(self, size: int) -> int:
        """This rank's rows of a batch."""
        return size // self._slices[1] if self._slices else size

    def _pad_steps(self, base: Node) -> list[Step]:
        """What fills the batches of ``last="pad"``: the first step above the batch."""
        batch = None if self._dry else batch_below(base)
        if batch is None or batch.operator.last != "pad":  # type: ignore[attr-defined]
            return []
        size = self._local(batch.operator.size)  # type: ignore[attr-defined]
        return [Step(PadBatch(size, self.binding.types(base)))]

    def unit_bytes(self, node: Node) -> float:
        """Estimated bytes of one unit of a node, from the metadata of the sources below: in any plan the same."""
        size = rows = 0.0
        for source in self.binding.sources:
            assert isinstance(source.operator, Read)
            splits = self.binding.splits(source)
            given = getattr(source.operator.source, "row_bytes", None)
            known = [s for s in splits if s.rows is not None and s.bytes is not None]
            if known:
                rows += sum(s.rows or 0 for s in known)
                size += sum(s.bytes or 0 for s in known)
            elif given:
                rows, size = rows + 1, size + given
        per_row = size / rows if rows and size else 1024.0
        return per_row * (rows_per_unit(node) if self._batched[id(node)] else 1)

    def chunk(self) -> int:
        """Least units of a rank's run: several of the largest windows (or row groups) of the sources below."""
        most = 1.0
        windows = [n.operator for n in self.binding.nodes if isinstance(n.operator, Shuffle)]
        for source in self.binding.sources:
            splits = self.binding.splits(source)
            if not splits:
                continue
            rows = max((s.rows or 0) for s in splits)
            total = sum(s.rows or 0 for s in splits)
            size = sum(s.bytes or 0 for s in splits)
            for shuffle in windows:
                if shuffle.window_rows is not None:
                    rows = max(rows, min(shuffle.window_rows, total))
                elif size:
                    limit = Window(shuffle.window_bytes).limit(size, total)
                    rows = max(rows, min(total, math.ceil(total * limit / size)))
            most = max(most, rows)
        root = self.binding.root
        per_unit = rows_per_unit(root) if self.binding.batched[id(root)] else 1
        return max(1, math.ceil(_CHUNK_WINDOWS * most / per_unit))
