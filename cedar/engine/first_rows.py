"""Check a plan before it runs: compare it with the pipeline as written on the first rows of the sources.

Both run on at most 64 rows of each source, and their results are compared bit for bit and by row key. Batch sizes,
windows and limits are reduced so that these few rows fill several of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from cedar.core.block import Block
from cedar.core.boundary import first_line
from cedar.core.columns import Column, cut, type_of
from cedar.core.errors import CedarError, WorkerError
from cedar.core.remote import is_remote
from cedar.core.stream import Piece
from cedar.datasets.base import BaseSource, Chunk, Read, Selects, Split
from cedar.datasets.filesource import FileSource
from cedar.datasets.items import IterableSource
from cedar.engine.audit import compared
from cedar.engine.binding import SAMPLE_ROWS, Binding
from cedar.engine.compiler import Compiler, min_run_units
from cedar.engine.metrics import Metrics
from cedar.engine.nodes import deal_mode, over_ranks
from cedar.engine.runner import Runner
from cedar.engine.streams.assigned import Share
from cedar.engine.streams.deal import EVERYTHING
from cedar.engine.task_context import Tasks
from cedar.executors.recovery.waiting import Patience
from cedar.operators.base import BlockKernel, Operator, Resizable, RowOperator, Schema, StreamOperator
from cedar.operators.cache import Cache, StoresRows
from cedar.operators.expressions import ByExpressions, Conditional, Select, SeparateResults
from cedar.plan import graph
from cedar.plan.data import Difference, Plan
from cedar.plan.graph import Node, Scan, chosen_fields, narrowed, narrowed_type, source_of
from cedar.plan.lower import works
from cedar.plan.physical import Work
from cedar.plan.steps.step import tolerated
from cedar.store.cache import Store
from cedar.store.keep import load, save, user_place
from cedar.store.place import name_of
from cedar.tasks.chain import own_column
from cedar.tasks.fingerprints import key_of

_SECONDS = 0.01  # seconds that operators may spend on the first rows
_PROBE = 2  # rows to start with if the pipeline calls user functions, to measure how long a row takes
_SPLIT = 8  # fewer rows than this form one split
_MAX_UNITS = 128  # maximum number of units to compare, since a pipeline may be endless

_passed: WeakKeyDictionary[Node, list[Any]] = WeakKeyDictionary()  # keys of plans that passed the check, by pipeline


class FirstRows:
    """Checks the plans of one pipeline.

    Args:
        binding: the bound operators of the pipeline as written.
        world: number of ranks that share the run; it may grow later.
        strict: also reject plans that fall back to the order as written for some blocks, because that is slow.
        patience: how long to wait for a call that hangs.
    """

    def __init__(
        self, binding: Binding, world: int = 1, *, strict: bool = True, patience: Patience | None = None
    ) -> None:
        self.written = Plan.as_written(binding.root)
        self.world = world
        self._binding = binding
        self._strict = strict
        self._patience = patience
        self._rows: dict[int, Chunk] = {}  # by id of the source's node; read once and used for all plans
        self._cheap = all(_is_cheap(node.operator) for node in binding.nodes)

    def rewrites(self, plan: Plan) -> bool:
        """Whether a plan does different work than the pipeline as written; the executors it uses do not matter."""
        if plan.root is self._binding.root:
            return False
        works = self._works(plan)
        return works is None or works != self._works(self.written)

    def difference(self, plan: Plan, check_running: Callable[[], None] = lambda: None) -> Difference | None:
        """Return the first difference between a plan and the pipeline as written; calls the user's functions.

        A pass applies to later loaders of the pipeline. If it takes long, it is stored, and applies to later runs with
        the same code, library versions and data too.

        Args:
            check_running: called before the user's functions; raises an error if the run has ended.
        """
        root, on_error, works = self._binding.root, self._binding.on_error, self._works(plan)
        key = works, self.world, on_error, self._strict
        if key in _passed.get(root, ()) or (works is not None and works == self._works(self.written)):
            return None
        place, name = None, ""
        if works is not None and not (self._cheap and all(map(_is_local, self._binding.sources))):
            asked = key_of(root, on_error, "passed", works, self.world, self._strict)
            place, name = None if asked is None else user_place(), name_of("passed", asked)
        known = place is not None and load(place, name, lambda _: True)
        found = None if known else self._compare(plan, check_running)
        if found is None and works is not None:
            _passed.setdefault(root, []).append(key)
            if place is not None and not known:
                save(place, name, lambda _: {})
        return found

    def _works(self, plan: Plan) -> tuple[Work, ...] | None:
        """Return the work of a plan; None if no physical plan can be built, which the comparison reports later."""
        try:
            return self._binding.lowered(plan.root).works
        except CedarError:
            return None

    def _compare(self, plan: Plan, check_running: Callable[[], None]) -> Difference | None:
        """Compare a few rows, then as many as time is left for, since the cost of functions is not known in advance."""
        rows = SAMPLE_ROWS if self._cheap else _PROBE
        found = self._run_both(plan, rows, check_running)
        if rows < SAMPLE_ROWS and not found.differs:
            left = _SECONDS - found.seconds
            if not found.any_rows:
                rows = SAMPLE_ROWS
            elif left > 0:
                rows = min(SAMPLE_ROWS, max(4 * rows, int(rows * left / max(found.seconds, 1e-6))))
            if rows > _PROBE:
                found = self._run_both(plan, rows, check_running)
        return Difference(found.why) if found.why else None

    def _run_both(self, plan: Plan, rows: int, check_running: Callable[[], None]) -> _RowsResult:
        """Compare the results of a plan and of the pipeline as written on the first ``rows`` rows of each source."""
        why = ""
        for shrinks in (True, False):  # a function may work only with the batch size that the user set
            check_running()
            try:
                for node in self._binding.sources:
                    if id(node) not in self._rows:
                        self._rows[id(node)] = self._read(node)
                few = _FewRowsRun(self._binding, plan, self._rows, rows, self.world, shrinks, self._patience)
                written, _ = few.run(planned=False)
            except WorkerError as error:  # the call hangs or crashes its process, so do not retry
                return _RowsResult(f"the first rows cannot be computed as written: {first_line(error)}", differs=True)
            except Exception as error:  # noqa: BLE001 - the run raises the same error and reports it to the user
                why = f"the first rows cannot be computed as written: {type(error).__name__}: {first_line(error)}"
                continue
            check_running()
            try:
                done, fell_back = few.run(planned=True)
                why = self._compared(done, written)
                if self._strict and fell_back:
                    why = "an error that the order as written does not raise"
            except Exception as error:  # noqa: BLE001 - the order as written did not raise on these rows
                why = f"{type(error).__name__} that the order as written does not raise: {first_line(error)}"
            if why and (again := self._compared(few.run(planned=False)[0], written)):
                why = f"not deterministic: two runs as written differ: {again}"
            any_rows = any(block.slots for run in written for block in run)
            return _RowsResult(why, bool(why), 2 * few.seconds, any_rows)
        return _RowsResult(why)

    def _compared(self, done: list[list[Block]], written: list[list[Block]]) -> str:
        """Describe the first difference between the units of two runs in any rank and epoch; "" if equal."""
        for ours, theirs in zip(done, written, strict=True):
            why = compared(ours, theirs, self._binding.root.batched)
            if why is not None:
                return why
        return ""

    # ---- rows --------------------------------------------------------------------------------------------------------

    def _read(self, node: Node) -> Chunk:
        """Return the first rows of a source; for an iterator, its next pass delivers these rows again."""
        assert isinstance(node.operator, Read)
        source = node.operator.source
        if isinstance(source, IterableSource):
            return source.first()
        known, out = self._binding.schemas[id(node)], self._binding.schemas[id(self._binding.root)]
        if known is not None and out is not None and source.selects:
            used = set(out)  # the columns that operators use or that the pipeline outputs
            for each in self._binding.nodes:
                effects = each.effects
                if each.inputs and (effects.reads is None or effects.writes is None):
                    used.update(known)
                used.update(effects.reads or (), effects.writes or (), effects.survivors or ())
            if 0 < len(used.intersection(known)) < len(known):
                kept = list(filter(used.__contains__, known))
                node = replace(node, operator=Read(source.select(kept)), origin=node.logical)
        block = self._binding.first_rows(node, SAMPLE_ROWS)
        for each in self._binding.splits.filters(node.logical):  # apply the filters that run while reading
            block = self._binding.kernel(each)(block, self._binding.check_env)
        return Chunk(dict(block.columns), length=len(block))


class _RowsResult(NamedTuple):
    why: str = ""  # the difference, or why the comparison was impossible; "" if the results are equal
    differs: bool = False  # whether more rows would not change that
    seconds: float = 0.0  # of two runs as fast as the second one, since the first one may have loaded a model
    any_rows: bool = False  # whether any row reached the end of the pipeline


def _is_cheap(operator: Operator) -> bool:
    """Whether an operator takes negligible time for 64 rows: it evaluates expressions, or only moves rows."""
    return not isinstance(operator, RowOperator) or isinstance(operator, ByExpressions | Conditional)


def _is_local(node: Node) -> bool:
    """Whether the first rows of a source are read quickly, without user code or requests to remote storage."""
    source = source_of(node)
    return not source.own_code and not (isinstance(source, FileSource) and any(map(is_remote, source.paths)))


# ---- sources ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FewRows(BaseSource):
    """Replaces a source by one with few rows, in at most three splits.

    Args:
        rows: the columns, which may be longer.
        count: the number of rows.
        known: column names and types that the replaced source declares; None if it declares none.
        streaming, counted: properties of the splits, the same as in the replaced source.
    """

    rows: Mapping[str, Column]
    count: int
    known: Schema
    streaming: bool = False
    counted: bool = True
    selects: ClassVar[Selects] = "fields"
    row_bytes: ClassVar[float] = 24.0
    # Chosen so that a second read is worthwhile for the first split but not for the others; see ``FilterHits``.
    second_read_cost_bytes: ClassVar[float] = 15.0

    def splits(self) -> list[Split]:
        total, splits = self.count, []
        ends = [0, total] if total < _SPLIT else [0, total // 2, total // 2 + 1, total]
        for part, (start, end) in enumerate(pairwise(ends)):
            rows = end - start
            counted = rows if self.counted else None
            splits.append(Split(0, start, end, counted, int(self.row_bytes) * rows, part, self.streaming))
        return splits

    def read(self, split: Split) -> Iterator[Chunk]:
        assert split.stop is not None
        columns = {name: cut(column, split.start, split.stop) for name, column in self.rows.items()}
        yield Chunk(columns, np.arange(split.start, split.stop), split.stop - split.start)

    def select(self, columns: Sequence[str]) -> FewRows:
        """Return a source of the same rows with fewer columns."""
        kept, known = {}, {}
        for name, paths in chosen_fields(columns, self.rows).items():
            column = self.rows[name]
            kept[name] = narrowed(column, narrowed_type(type_of(column), paths))
            if self.known is not None and name in self.known:
                known[name] = narrowed_type(self.known[name], paths)
        return replace(self, rows=kept, known=None if self.known is None else known)

    def schema(self) -> Schema:
        return self.known

    def digest(self) -> str:
        return "first rows"

    identity = digest


# ---- copies of graphs ------------------------------------------------------------------------------------------------


class _FewRowsRun:
    """Runs copies ("twins") of a pipeline and of a plan on a few rows. Operators that both contain are copied once.

    Args:
        binding: the bound operators of the pipeline as written.
        plan: the plan to compare with it.
        rows: the first rows of each source, by the id of its node.
        most: the number of these rows to run on.
        world: number of ranks of the run.
        shrinks: reduce batch sizes, windows and limits to at most half of the number of rows.
        patience: how long to wait for a call that hangs.
    """

    def __init__(
        self,
        binding: Binding,
        plan: Plan,
        rows: dict[int, Chunk],
        most: int,
        world: int,
        shrinks: bool,
        patience: Patience | None,
    ) -> None:
        self.seconds = 0.0  # seconds that operators took in the last run
        self._binding, self._plan, self._rows, self._most, self._shrinks = binding, plan, rows, most, shrinks
        self._nodes = [*binding.nodes, *graph.walk(plan.root)]
        local = any(isinstance(each.operator, StreamOperator) and each.operator.local for each in self._nodes)
        # A rank in an epoch; both ranks, and an epoch that reads what the one before it stored, if they may differ.
        self._runs = [(0, 1, 0)] if world == 1 or local else [(0, 1, 0), (1, 2, 0)]
        if any(each.storage is not None for each in self._nodes):
            self._runs = [(rank, of, epoch) for rank, of, _ in self._runs for epoch in (0, 1)]
        self._replacements = tolerated(plan.root)
        self._runner = Runner("inline", 1, patience=patience)

    def run(self, planned: bool) -> tuple[list[list[Block]], int]:
        """Run the plan, or the pipeline as written.

        Returns:
            The units of each rank and epoch, and the number of blocks that fell back to the order as written.
        """
        binding, plan = self._binding, self._plan
        copies: dict[int, Operator] = {}
        written = self._twins(binding.root, copies, {})
        twins = self._twins(plan.root, copies, written) if planned else written
        originals = {}
        for node in self._nodes:
            twin = twins.get(id(node))
            if twin is not None and twin.operator is node.operator:
                originals[id(twin)] = node
        twin_binding = _TwinBinding(twins[id(binding.root)], binding, originals)
        root = plan.root if planned else binding.root
        nodes = tuple(graph.walk(twins[id(root)]))
        twin_works = works(nodes, twin_binding.root, binding.on_error)
        physical = replace(binding.lowered(root), works=twin_works, nodes=nodes)
        store, metrics, runs = Store(), Metrics(), list[list[Block]]()
        for rank, world, epoch in self._runs:
            tasks = Tasks(self._runner, replace(binding.check_env, epoch=epoch, sampling=False), metrics)
            turns = over_ranks(twin_binding.nodes) is not None
            chunk = min_run_units(twin_binding) if world > 1 else EVERYTHING
            share = Share(rank, world, chunk, deal_mode(twin_binding.root), turns=turns)
            top, assigned = Compiler(physical, twin_binding, tasks, store).top(share)
            units, rows = list[Block](), 0
            with closing(top.open([assigned.start(), 0])) as flow:
                while rows < 2 * SAMPLE_ROWS and len(units) < _MAX_UNITS:
                    piece = flow.pull(True)
                    if not isinstance(piece, Piece):
                        break
                    if piece.units:
                        units.append(piece.rows.gather())
                        rows += units[-1].slots
            runs.append(units)
        self.seconds = 0.0
        for (kind, ordinals), spent in metrics.time.parts.items():
            if kind == "operator" and not all(_is_cheap(binding.nodes[i].operator) for i in ordinals):
                self.seconds += spent.wall
        return runs, metrics.fell_back

    def _twins(self, root: Node, copies: dict[int, Operator], written: dict[int, Node]) -> dict[int, Node]:
        """Return copies by the original's id.

        Args:
            root: the pipeline as written, or the plan.
            copies: the copies of operators so far, by the original's id.
            written: for a plan, the copies of the pipeline as written.
        """
        done = dict(written)
        for node in graph.walk(root, written):
            operator = self._replacements.get(id(node), node.operator)
            if id(operator) not in copies:
                copies[id(operator)] = self._copy(node, operator, written)
            inputs = tuple([done[id(child)] for child in node.inputs])
            origin = None if node.origin is None else written.get(id(node.origin))
            done[id(node)] = Node(copies[id(operator)], inputs, node.site, origin, node.place)
        return done

    def _copy(self, node: Node, operator: Operator, written: dict[int, Node]) -> Operator:
        if isinstance(operator, Read):
            return self._source(node, operator, written)
        if isinstance(operator, StoresRows):
            return operator if operator.storage == "auto" else Cache("memory")
        inserted = written and id(node.logical) not in self._binding.index
        if inserted and isinstance(operator, SeparateResults) and operator.projection is not None:
            unread = set[
                str
            ]()  # columns that were not read, because only operators that the optimizer inserted name them
            for source in self._binding.sources:
                unread.update(self._binding.schemas[id(source)] or ())
            for rows in self._rows.values():
                unread.difference_update(rows.columns)
            return Select(tuple([item for item in operator.projection if item not in unread]))
        if not self._shrinks or not isinstance(operator, Resizable):
            return operator
        half = max(min(self._most, *[rows.rows for rows in self._rows.values()]) // 2, 1)
        return operator.resized(lambda size, *_: min(size, half))

    def _source(self, node: Node, operator: Read, written: dict[int, Node]) -> Operator:
        rows, known = self._rows[id(node.logical)], self._binding.schemas[id(node.logical)]
        splits = self._binding.splits(node.logical)
        copies = {name: own_column(column) for name, column in rows.columns.items()}  # functions may change them
        declared = None if known is None else {name: kind for name, kind in known.items() if name in copies}
        few = FewRows(copies, min(self._most, rows.rows), declared, splits.streams, splits.counted)
        if not isinstance(operator, Scan):
            return Read(few)
        columns = operator.columns
        if columns is not None:
            columns = tuple([c for c in columns if next(iter(chosen_fields([c], known or ()))) in copies])
        below, where = Node(Read(few)), []
        for each in operator.where:
            below = Node(each.operator, (below,), each.site, written[id(each.logical)])
            where.append(below)
        return Scan(few, columns, tuple(where))


class _TwinBinding(Binding):
    """Binding of a copied graph that reuses the kernels of the original operators, so that none is fitted twice."""

    def __init__(self, root: Node, binding: Binding, originals: dict[int, Node]) -> None:
        super().__init__(root, binding.on_error, binding.check_env, binding.call_in_subprocess)
        self._binding, self._originals = binding, originals

    def kernel(self, node: Node) -> BlockKernel:
        original = self._originals.get(id(node))
        return super().kernel(node) if original is None else self._binding.kernel(original)

    def bound(self, node: Node) -> BlockKernel:
        original = self._originals.get(id(node))
        return super().bound(node) if original is None else self._binding.bound(original)
