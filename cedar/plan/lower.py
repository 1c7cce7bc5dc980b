"""Lower: converts a plan's graph and the settings of a run into stages. No other module creates stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from cedar.core.errors import PipelineError, PlanError, Skip
from cedar.datasets.base import Read, rows_may_fail
from cedar.datasets.split_table import SplitTable
from cedar.operators.base import RowOperator, StreamOperator
from cedar.operators.batch import MakesBatches
from cedar.plan import graph
from cedar.plan.graph import Node, Scan
from cedar.plan.physical import Branch, Kind, Link, Physical, Segment, Stage, Work

HERE = ("", "inline", "threads")  # the values of ``place`` that mean the run's own executor
Settled: TypeAlias = Callable[[Node], bool]
_SPLITS_PER_WORKER = 8  # enough splits to balance the load among workers in other processes


@dataclass(frozen=True)
class Choice:
    """Settings of a run that, together with the graph, determine the stages.

    Args:
        executor: the executor of operators that the plan assigns to no executor.
        workers: returns the number of concurrent tasks on an executor, given by its name.
        on_error: the run's policy for rows that fail.
        splits: returns a source's splits, from its metadata.
        caches: False ignores ``cache()``.
        settled: returns whether the number of rows that a filter keeps of each split is known; see ``Splits``.
        any_order: rows are delivered as they finish. Operators that run Python per row then get small tasks of their
            own, and unbatched pipelines distribute rows over ranks after such operators.
    """

    executor: str = "threads"
    workers: Callable[[str], int] = lambda _: 1
    on_error: Skip | None = None
    splits: Callable[[Node], SplitTable] = graph.splits_of
    caches: bool = True
    settled: Settled = lambda _: False
    any_order: bool = False

    def reads_all(self, place: str, sources: Sequence[Node]) -> bool:
        """Return whether a task that reads a split also runs the operators that call Python per row. In other processes
        it does, so that rows are not sent to a second task, provided that there are enough splits for all workers.
        """
        run = self.executor if place in HERE else place
        if self.any_order or (place != "processes" and run != "dask" and "://" not in run):
            return False
        return sum(len(self.splits(each)) for each in sources) >= _SPLITS_PER_WORKER * self.workers(place)


def lower(root: Node, choice: Choice, logical: Node | None = None) -> Physical:
    """Return the physical plan of a graph.

    Args:
        logical: the pipeline as written; None if the graph is that pipeline.

    Raises:
        PipelineError: an operator is invalid at its position; the error refers to the user's line.
        PlanError: a plan runs a filter with known row counts in another stage than the one that reads rows.
    """
    nodes = tuple(graph.walk(root))
    _check_steps(logical or root, choice.on_error)
    lowering = _Lowering(nodes, works(nodes, logical or root, choice.on_error, settled=choice.settled), choice)
    deal = lowering.deal()
    elsewhere = lowering.counted  # filters with known row counts must run in the tasks that read rows
    for stage in lowering.stages:
        for segment in stage.segments:
            elsewhere = elsewhere.difference(segment.links)
    for i in sorted(elsewhere):
        raise PlanError(
            f"node {i} of the plan, {lowering.works[i].label}, is not where rows are read, which are counted there",
            site=nodes[i].site,
            fix="optimize this pipeline and save that plan",
        )
    return Physical(lowering.works, tuple(lowering.stages), nodes, deal)


def _check_steps(root: Node, on_error: Skip | None) -> None:
    """Check the neighbors of ``balance``, which moves rows between the ranks' batches of one training step.

    Raises:
        PipelineError: an operator in between processes whole batches or changes which batches ranks get.
    """
    for node in graph.walk(root):
        if node.row_use.rows == "balanced":
            break
    else:
        return
    at = root
    label = node.operator.label()
    while isinstance(at.operator, RowOperator) and keeps_rows(at, refills(at, on_error)):
        at = at.inputs[0]
    if at is not node:
        raise PipelineError(
            f"{label}: {at.operator.label()} above it changes which batches the ranks get at a step",
            site=node.site,
            fix=f"put balance() above {at.operator.label()}",
        )
    below = node.inputs[0]
    while isinstance(below.operator, StreamOperator) and len(below.inputs) == 1 and below.inputs[0].batched:
        below = below.inputs[0]
    if isinstance(below.operator, RowOperator) and below.storage is None:
        raise PipelineError(
            f"{label} moves rows between batches, and {below.operator.label()} below it sees whole batches",
            site=node.site,
            fix=f"put {below.operator.label()} above balance(), or below batch()",
        )


# ---- operators -------------------------------------------------------------------------------------------------------


def works(
    nodes: Sequence[Node], logical: Node, on_error: Skip | None, settled: Settled = lambda _: False
) -> tuple[Work, ...]:
    """Describe the operators of a graph as ``Work`` records; ``settled``: see ``Choice``."""
    ordinals, labels = {id(node): i for i, node in enumerate(graph.walk(logical))}, graph.labels(logical)
    numbers: dict[int, int] = {}
    lowered: list[Work] = []
    for node in nodes:
        numbers[id(node)] = len(lowered)
        written, fills = id(node.logical), refills(node, on_error)
        inputs, filled = list[int](), fills
        for child in node.inputs:
            inputs.append(numbers[id(child)])
            filled = filled or lowered[inputs[-1]].refills
        lowered.append(
            Work(
                ordinals.get(written, -1),
                labels.get(written) or node.operator.label(),
                tuple(inputs),
                node.place,
                changes(node, ordinals),
                node.batched,
                keeps_rows(node, fills, settled),
                filled,
            )
        )
    return tuple(lowered)


def does(root: Node, logical: Node) -> tuple[Work, ...]:
    """Describe what a graph computes, regardless of where it runs. Plans that differ only in executors are equal."""
    return works(tuple(graph.walk(root)), logical, None)


def changes(node: Node, ordinals: dict[int, int]) -> tuple[object, ...]:
    """Return the changes that a plan made to an operator of the pipeline as written, as comparable values."""
    operator, written = node.operator, node.logical.operator
    if operator is written:
        return ()
    if isinstance(operator, Scan):
        return operator.columns, tuple(ordinals.get(id(each.logical), -1) for each in operator.where)
    return (operator.label(), node.link is None or node.link.exact)


def _changes_place(below: str, place: str) -> bool:
    """Return whether an operator runs on a different executor than its input; ``place=""`` means the input's."""
    return place not in ("", below) and (place not in HERE or below not in HERE)


def policy_of(node: Node, on_error: Skip | None) -> Skip | None:
    """Return the policy for rows that fail in an operator."""
    own = node.operator.on_error if isinstance(node.operator, RowOperator) else None
    return own if own is not None else on_error


def keeps_rows(node: Node, fills: bool, settled: Settled = lambda _: False) -> bool:
    """Return whether a row operator or source keeps the number of slots (row positions), or sets a known number.

    Args:
        fills: whether the next row takes the slot of a row that fails; see ``refills``.
    """
    operator = node.operator
    if isinstance(operator, RowOperator):
        return not fills and (node.effects.rows == "1:1" or settled(node.logical))
    if isinstance(operator, Scan):
        return all(settled(each.logical) for each in operator.where)
    return isinstance(operator, Read)


def refills(node: Node, on_error: Skip | None) -> bool:
    """Return whether a row that fails in this operator is replaced by the next row."""
    operator, policy = node.operator, policy_of(node, on_error)
    if policy is None or not policy.refill:
        return False
    return isinstance(operator, RowOperator) or (isinstance(operator, Read) and rows_may_fail(operator.source))


# ---- stages ----------------------------------------------------------------------------------------------------------


@dataclass
class _Lowering:
    """The state while one graph is converted to stages. Operators are identified by their index in ``nodes``."""

    nodes: tuple[Node, ...]
    works: tuple[Work, ...]
    choice: Choice
    stages: list[Stage] = field(default_factory=list)
    built: dict[int, int] = field(default_factory=dict)  # the stage that delivers each operator's rows

    def __post_init__(self) -> None:
        self.consumers = [0] * len(self.works)
        self.counted: set[int] = set()  # filters for which the number of remaining rows per split is known
        for i, node in enumerate(self.nodes):
            for below in self.works[i].inputs:
                self.consumers[below] += 1
            if node.is_row_operator and node.effects.rows != "1:1" and self.choice.settled(node.logical):
                self.counted.add(i)
        self.caches: dict[int, int] = {}  # maps every operator at or before a ``cache()`` to the next cache after it
        for i in range(len(self.nodes) - 1, -1, -1) if self.choice.caches else ():
            here = i if self.nodes[i].storage is not None else self.caches.get(i)
            if here is not None:
                self.caches.update(dict.fromkeys((i, *self.works[i].inputs), here))

    def add(
        self,
        kind: Kind,
        out: int,
        inputs: Sequence[int] = (),
        operators: Sequence[int] = (),
        windows: int = -1,
        pads: int = -1,
    ) -> int:
        """Add a stage, with fields derived from its operators, and return its index."""
        place, preserves, small = self.traits(operators) if kind in ("task", "group") else ("", True, False)
        small = small and kind == "task"
        self.stages.append(
            Stage(kind, out, tuple(inputs), tuple(operators), (), place, windows, pads, preserves, small)
        )
        return len(self.stages) - 1

    def deal(self) -> int:
        """Build all stages: those common to all ranks, the one that divides units over ranks, and the later ones.

        Returns:
            The index of the stage that divides units over ranks.
        """
        root = len(self.nodes) - 1
        chain, base = self.chain(root)
        in_rows = self.choice.any_order and not self.works[root].batched
        if in_rows or isinstance(self.nodes[base].operator, Read) or not self.traits(chain)[1]:
            chain, base = [], root
        deal = self.add("deal", base, [self.build(base)])
        self.above(deal, base, chain, gathers=True)
        return deal

    def build(self, i: int) -> int:
        """Return the stage that delivers an operator's rows. All consumers of the operator share this stage."""
        if i not in self.built:
            chain, base = self.chain(i)
            alone = self.consumers[base] < 2 or base == i or self.kept(chain)
            if isinstance(self.nodes[base].operator, Read) and alone:
                stage = self.read(base, [self.segment(base)], chain)
            else:
                stage = self.above(self.build(base) if base != i else self.base(i), base, chain)
            self.built[i] = stage
        return self.built[i]

    def chain(self, i: int, through_shared: bool = False) -> tuple[list[int], int]:
        """Return the adjacent row operators that end with ``i``, in the order in which rows pass, and their input."""
        chain: list[int] = []
        at = i
        while self.nodes[at].is_row_operator and (at == i or through_shared or self.consumers[at] < 2):
            chain.append(at)
            at = self.works[at].inputs[0]
        return chain[::-1], at

    def above(self, stage: int, base: int, chain: Sequence[int], gathers: bool = False) -> int:
        """Add stages for the operators after a stage. Without operators, ``gathers`` adds a stage that gathers rows."""
        if not chain and not gathers:
            return stage
        last, chain = chain[-1] if chain else base, [i for i in chain if self.nodes[i].storage is None]
        runs: list[list[int]] = []  # caches are part of read stages
        here = next((self.nodes[i].place for i in chain if self.nodes[i].place), "")
        for k, i in enumerate(chain):  # an operator without an executor joins the stage of its input
            early = self.choice.any_order and k > 0 and not self.works[chain[k - 1]].preserves_slots
            early = early and self.traits(chain[k:])[1:] == (True, True)  # rows leave as they finish
            if not runs or _changes_place(here, self.nodes[i].place) or early:
                here = self.nodes[i].place or here
                runs.append([])
            runs[-1].append(i)
        pads = self.pads(base)
        for run in runs or ([[]] if gathers else []):
            stage = self.add("task", run[-1] if run else last, [stage], run, pads=pads)
            pads = -1
        return stage

    def base(self, i: int) -> int:
        """Add the stage of a stream operator, or of a ``map_batches`` that needs groups of exactly n rows."""
        node = self.nodes[i]
        operator = node.operator
        if node.exact_rows is not None:
            if node.inputs[0].batched:
                raise PipelineError(
                    f"{self.works[i].label}: size= has no meaning after batch()",
                    site=node.site,
                    fix="leave size out: the function sees the batch",
                )
            return self.add("group", i, [self.build(self.works[i].inputs[0])], [i])
        assert isinstance(operator, StreamOperator)
        windowed = node.ordering.windowed
        inputs = [self.windowed(below, i) if windowed else self.build(below) for below in self.works[i].inputs]
        return self.add("stream", i, inputs, [i])

    # ---- reading -----------------------------------------------------------------------------------------------------

    def windowed(self, i: int, above: int) -> int:
        """Add a stage that marks shuffle windows: groups of splits right after sources, otherwise runs of units."""
        joined = self.segments(i)
        if joined is not None and (len(joined[1]) == 1 or not any(segment.streaming for segment in joined[1])):
            return self.read(*joined, windows=above)
        chain, base = self.chain(i, through_shared=True)
        window = self.add("window", base, [self.base(base)], windows=above)
        return self.above(window, base, chain)

    def segment(self, source: int) -> Segment:
        return Segment(source, streaming=self.choice.splits(self.nodes[source]).streams)

    def segments(self, i: int) -> tuple[int, list[Segment], list[int]] | None:
        """Return the node that joins all sources, each source with its operators, and later operators; None if none."""
        if isinstance(self.nodes[i].operator, Read):
            return i, [self.segment(i)], []
        if self.nodes[i].is_row_operator:
            below = self.segments(self.works[i].inputs[0])
            return below and (below[0], below[1], [*below[2], i])
        if not self.nodes[i].ordering.preserves_windows:
            return None
        joined: list[Segment] = []
        for number, child in enumerate(self.works[i].inputs):
            below = self.segments(child)
            if below is None:
                return None
            links: tuple[Link, ...] = (*below[2], Branch(i, number))
            joined += [replace(segment, links=(*segment.links, *links)) for segment in below[1]]
        return i, joined, []

    def read(self, base: int, segments: Sequence[Segment], above: list[int], windows: int = -1) -> int:
        """Add a stage that reads splits, and further stages for the operators that do not run in reading tasks."""
        sources, streaming, fills = list[int](), False, False
        for segment in segments:
            sources.append(segment.source)
            streaming, fills = streaming or segment.streaming, fills or self.works[segment.source].refills
        place, preserves, _ = self.traits(sources)
        cut = 0 if streaming else self.read_with(place, sources, above, 0 if len(segments) > 1 else self.kept(above))
        shared = above[:cut]
        made = []
        for each in segments:
            linked = (*each.links, *shared)
            kept = 0 if streaming else self.kept(linked)  # a streaming source is not cached
            last = next((i for i in reversed(linked[:kept]) if isinstance(i, int)), -1)
            made.append(Segment(each.source, linked, kept, self.caches[last] if kept else -1, each.streaming))
            preserves = preserves and self.traits(linked)[1]
        stage = Stage(
            "read", shared[-1] if shared else base, (), tuple(shared), tuple(made), place, windows,
            preserves_units=preserves and not fills,
        )  # fmt: skip
        self.stages.append(stage)
        return self.above(len(self.stages) - 1, sources[0], above[cut:])

    def read_with(self, place: str, sources: Sequence[int], above: Sequence[int], kept: int) -> int:
        """Return how many of the operators in ``above`` run in the reading tasks, including the ``kept`` cached ones.

        The first operator on another executor, or that runs Python per row, starts a new stage with smaller tasks.

        Args:
            place: the executor of the sources.
        """
        whole = self.choice.reads_all(place, [self.nodes[i] for i in sources])
        cut = len(above)
        for k in range(len(above) - 1, kept - 1, -1):
            node = self.nodes[above[k]]
            if above[k] in self.counted:
                break
            if _changes_place(place, node.place) or (not whole and node.effects.per_row):
                cut = k
        return cut

    def kept(self, links: Sequence[Link]) -> int:
        """Return how many of the leading links a later ``cache()`` covers; it never covers random operators."""
        kept = 0
        for place, link in enumerate(links):
            if isinstance(link, int):
                if self.nodes[link].effects.random:
                    break
                kept = place + 1 if link in self.caches else kept
        return kept

    # ---- properties of operators -------------------------------------------------------------------------------------

    def traits(self, operators: Sequence[Link]) -> tuple[str, bool, bool]:
        """Return the executor that one of the operators requires, or "" if all can run on the run's own executor;
        whether all of them preserve slots; and whether one of them runs Python per row.
        """
        place, preserves, per_row = "", True, False
        for i in operators:
            if isinstance(i, int):
                node = self.nodes[i]
                place = place or ("" if node.place in HERE else node.place)
                preserves = preserves and self.works[i].preserves_slots
                per_row = per_row or node.effects.per_row
        return place, preserves, per_row

    def pads(self, i: int) -> int:
        """Return the ``batch(last="pad")`` whose batches reach ``i`` without being gathered; -1 if there is none."""
        while isinstance(self.nodes[i].operator, StreamOperator) and self.works[i].inputs:
            operator = self.nodes[i].operator
            if isinstance(operator, MakesBatches) and operator.batch_rows is not None:
                return i if operator.last == "pad" else -1
            i = self.works[i].inputs[0]
        return -1
