"""The oracle: is a plan right? It and the pipeline as written run on made-up rows, and are compared bit for bit.

``check_effects`` calls no function of the user's: stand-ins depend on all that a function says it reads. ``check_plan``
runs the first rows of the sources with the functions themselves.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from cedar.core.block import Block
from cedar.core.columns import Column, take
from cedar.core.cursor import Keys
from cedar.core.errors import Skip
from cedar.core.stream import Piece
from cedar.datasets.base import Read
from cedar.engine.audit import compared
from cedar.engine.binding import Binding
from cedar.engine.compiler import Compiler, min_run_units
from cedar.engine.metrics import Metrics
from cedar.engine.nodes import deal_mode, over_ranks
from cedar.engine.runner import Runner
from cedar.engine.streams.assigned import Share
from cedar.engine.task_context import Tasks
from cedar.operators.base import Env, RowOperator, StreamOperator
from cedar.plan import graph
from cedar.plan.data import Difference, Plan
from cedar.plan.graph import Node
from cedar.plan.lower import works
from cedar.plan.steps.step import tolerated
from cedar.store.cache import Store
from cedar.tasks.chain import own_column
from tests.oracle.sample_rows import SampleRows, made_up
from tests.oracle.stand_ins import NoStandIn, TwinGraphs

_MOST_ROWS = 400  # compared, of a pipeline without end
_MOST_UNITS = 120
_ROWS = (96, 768)  # made up: more where conditions leave few of them
_ENOUGH = 20  # rows that come through
_TRIES = 3  # to find the made-up rows that fail
_OTHERS = 2  # columns that no operator names: they are alike, and few of them will do
_Rows: TypeAlias = "Callable[[], dict[int, dict[str, Column]] | None]"  # of each source, by the id of its node


class Unclear(Exception):
    """The pipeline as written cannot be run on the sample rows: nothing can be said of a plan."""


def check(binding: Binding, plan: Plan, rows: int, world: int = 1) -> Difference | None:
    """The first difference on made-up rows, or on the first rows of the sources; see below."""
    try:
        mismatch = check_effects(binding, plan, world)
    except Unclear:
        mismatch = None
    return mismatch or check_plan(binding, plan, rows, world)


def check_plan(binding: Binding, plan: Plan, rows: int, world: int = 1) -> Difference | None:
    """The first difference between a plan and the pipeline as written on the first rows of its sources.

    Functions of the user are called. The pipeline as written runs twice: one whose results differ is not
    deterministic, and nothing can be said of a plan that moves it.
    """
    try:
        given = {id(node): dict(binding.first_rows(node, rows).columns) for node in binding.sources}
        check = _Check(binding, plan, given, world)
        written, again = check.written(), check.written()
    except Exception as error:  # noqa: BLE001 - the run's to tell, when it comes there
        return Difference(f"the sample cannot be computed as written: {type(error).__name__}: {_first_line(error)}")
    unsure = check.compared(again, written)
    if unsure is not None:
        return Difference(f"not deterministic: run twice as written, {unsure}")
    return check.difference(written)


def _clear(check: _Check, mismatch: Difference | None) -> Difference | None:
    """A difference, unless stand-ins may have made it."""
    if mismatch is not None and check.vague:
        raise Unclear(f"with stand-ins for {', '.join(sorted(check.vague))}: {mismatch.what}")
    return mismatch


def check_effects(binding: Binding, plan: Plan, world: int = 1, *, strict: bool = True) -> Difference | None:
    """The first difference that follows from what operators declare: on made-up rows, with stand-ins for functions.

    Nothing of the user's is called, and nothing is read unless the source does not tell its types.

    Args:
        strict: where the plan's order raises and that as written does not, that is a difference, too.

    Raises:
        Unclear: there are no such rows.
    """
    why: Exception | None = None
    runs = came = 0
    made: list[_Rows] = [_made_up(binding, rows, nulls) for nulls in (True, False) for rows in _ROWS]
    made.append(partial(_read, binding))
    max_loss: int | None = None
    for number, rows in enumerate(made):
        if number == max_loss:
            continue
        if (came and number >= len(_ROWS)) or (runs and number == len(made) - 1):
            break  # rows without nulls say less, and nothing is read for better ones
        try:
            given = rows()
            if given is None:
                continue
            check = _Check(binding, plan, given, world, functions=False)
            try:
                written = check.sound()
            finally:
                if number % len(_ROWS) == 0 and check.left * _ROWS[1] < _ENOUGH * _ROWS[0]:
                    max_loss = number + 1  # nearly all failed, and so would more of the kind, one by one
        except NoStandIn as error:
            raise Unclear(f"nothing is known of {error}") from error
        except Exception as error:  # noqa: BLE001 - other rows may do
            why = error
            continue
        mismatch = _clear(check, check.difference(written, strict=strict))
        runs, came = runs + 1, sum(block.slots for run in written for block in run)
        if mismatch is not None or came >= _ENOUGH:
            return mismatch
    if runs:
        return None
    raise Unclear("no sample rows" if why is None else f"{type(why).__name__}: {_first_line(why)}") from why


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# ---- rows ------------------------------------------------------------------------------------------------------------


def _made_up(binding: Binding, many: int, nulls: bool) -> _Rows:
    """Rows of each source."""

    def rows() -> dict[int, dict[str, Column]] | None:
        given, out = {}, _left_out(binding, _columns_named(binding.nodes))
        for node in binding.sources:
            known = binding.schemas[id(node)]
            named = None if known is None else {name: kind for name, kind in known.items() if name not in out}
            made = made_up(named, binding.nodes, nulls, many)
            if made is None:
                return None
            given[id(node)] = made
        return given

    return rows


def _columns_named(nodes: Iterable[Node]) -> frozenset[str]:
    """The columns that operators name."""
    named: set[str] = set()
    for node in nodes:
        effects = node.operator.effects()
        named |= (effects.reads or frozenset()) | (effects.writes or frozenset()) | (effects.survivors or frozenset())
    return frozenset(named)


def _left_out(binding: Binding, named: frozenset[str]) -> frozenset[str]:
    """The other columns of the sources, but a few of each type: they are alike."""
    few: Counter[str] = Counter()
    out: set[str] = set()
    for source in binding.sources:
        for name, kind in (binding.schemas[id(source)] or {}).items():
            if name not in named and few[str(kind)] >= _OTHERS:
                out.add(name)
            few[str(kind)] += name not in named
    return frozenset(out)


def _read(binding: Binding) -> dict[int, dict[str, Column]]:
    """The first rows of each source, which a run has read anyway where types are not known."""
    return {id(node): dict(binding.sample(node).columns) for node in binding.sources}


# ---- runs ------------------------------------------------------------------------------------------------------------


@dataclass
class _Check:
    """Runs twins of a pipeline and of a plan on few rows.

    Args:
        binding: of the pipeline as written.
        plan: to be compared with it.
        rows: by the id of a source's node.
        world: ranks of the run.
        functions: those of the user are called.
    """

    binding: Binding
    plan: Plan
    rows: dict[int, dict[str, Column]]
    world: int = 1
    functions: bool = True

    def __post_init__(self) -> None:
        self._runner = Runner("inline", 1)
        self.rows = {id(node): self._kept(node) for node in self.binding.sources}
        mine = self.binding.check_env
        self._env = mine if self.functions else Env(mine.seed)
        nodes = [*self.binding.nodes, *graph.walk(self.plan.root)]
        local = any(isinstance(node.operator, StreamOperator) and node.operator.local for node in nodes)
        self._ranks = [(0, 1)] if self.world == 1 or local else [(0, 1), (1, 2)]
        self.vague: set[str] = set()  # see ``TwinGraphs``
        self._epochs = (0, 1) if any(node.storage is not None for node in nodes) else (0,)

    def _twins(self) -> TwinGraphs:
        rows = {id(node): self._source(node) for node in self.binding.sources}
        present = {name for sample in rows.values() for name in sample.rows}
        known = {name for node in self.binding.sources for name in self.binding.schemas[id(node)] or ()}
        without = frozenset(known - present)
        return TwinGraphs(
            self.binding.root, rows, self._skips, self.functions, tolerated(self.plan.root), without, self.vague
        )

    def _kept(self, node: Node) -> dict[str, Column]:
        """The rows of a source that settled filters leave: no others are read."""
        rows = self.rows[id(node)]
        for each in self.binding.splits.filters(node):
            block = Block(rows, Keys(np.arange(_length(rows))))
            rows = self.binding.kernel(each)(block, self.binding.check_env).columns
        return rows

    def _skips(self, node: Node) -> bool:
        return isinstance(node.operator, RowOperator) and self.binding.policy(node.logical) is not None

    def _source(self, node: Node) -> SampleRows:
        assert isinstance(node.operator, Read)
        splits, known = self.binding.splits(node), self.binding.schemas[id(node)]
        copied = self.rows[id(node)].items()
        rows = {name: own_column(column) for name, column in copied}  # functions may change their input in place
        return SampleRows(
            rows,
            None if known is None else {name: kind for name, kind in known.items() if name in rows},
            node.operator.source,
            streaming=splits.streams,
            counted=splits.counted,
        )

    def written(self) -> list[list[Block]]:
        """What the pipeline as written gives: the units of each rank and epoch."""
        return self._run(self._bound(self._twins().written()))[0]

    def _bound(self, root: Node, on_error: Skip | None = None) -> Binding:
        call_in_subprocess = self.binding.call_in_subprocess if self.functions else None
        return Binding(root, on_error or self.binding.on_error, self._env, call_in_subprocess)

    def sound(self) -> list[list[Block]]:
        """The same, without the made-up rows that fail if nothing is to be skipped."""
        for number in range(_TRIES):
            try:
                return self.written()
            except NoStandIn:
                raise
            except Exception:
                if number == _TRIES - 1 or not self._dropped():
                    raise
        raise AssertionError

    @property
    def left(self) -> int:
        """The rows that are left of the source that has fewest."""
        return min((_length(rows) for rows in self.rows.values()), default=0)

    def _dropped(self) -> bool:
        """Leaves out the rows that fail; False if none is found."""
        failed: dict[int, set[int]] = {}
        most = max(_MOST_ROWS, *_ROWS)  # all at once: each round tries failing rows one by one
        for run in self._run(self._bound(self._twins().written(), Skip()), most=most)[0]:
            for block in run:
                for slot in block.dead:
                    failed.setdefault(block.keys.ref(slot).source, set()).add(int(block.keys.row[slot]))
        for number, node in enumerate(self.binding.sources):
            rows = self.rows[id(node)]
            total = _length(rows)
            left = np.array([i for i in range(total) if i not in failed.get(number, ())], dtype=np.int64)
            self.rows[id(node)] = {name: take(column, left) for name, column in rows.items()}
        return bool(failed)

    def difference(self, written: Sequence[Sequence[Block]], *, strict: bool = True) -> Difference | None:
        """Where the plan's units are others."""
        twins = self._twins()
        try:
            binding = self._bound(twins.written())
            done, fell_back = self._run(binding, twins.plan(self.plan.root))
        except Exception as error:  # noqa: BLE001 - the order as written did not raise on these rows
            what = f": {_first_line(error)}" if self.functions else ""  # of rows that nothing has, nothing is shown
            return Difference(f"{type(error).__name__} that the order as written does not raise{what}")
        if strict and fell_back:
            return Difference("an error that the order as written does not raise")
        mismatch = self.compared(done, written)
        return None if mismatch is None else Difference(mismatch)

    def compared(self, done: Sequence[Sequence[Block]], written: Sequence[Sequence[Block]]) -> str | None:
        """The first difference between the units of two runs, of each rank and epoch."""
        batched = self.binding.root.batched
        pairs = zip(done, written, strict=True)
        return next((mismatch for pair in pairs if (mismatch := compared(*pair, batched)) is not None), None)

    def _run(self, binding: Binding, root: Node | None = None, most: int = _MOST_ROWS) -> tuple[list[list[Block]], int]:
        """The units of each rank and epoch, and how many blocks fell back to the order as written.

        Args:
            root: the plan's twin: it runs in the stages of the plan itself.
        """
        physical = self.binding.lowered(self.binding.root if root is None else self.plan.root)
        nodes = tuple(graph.walk(root or binding.root))
        physical = dataclasses.replace(physical, works=works(nodes, binding.root, binding.on_error), nodes=nodes)
        store, metrics = Store(), Metrics()
        runs = []
        for rank, world in self._ranks:
            for epoch in self._epochs:
                tasks = Tasks(self._runner, dataclasses.replace(self._env, epoch=epoch), metrics)
                compiler = Compiler(physical, binding, tasks, store)
                turns = over_ranks(binding.nodes) is not None
                share = Share(rank, world, min_run_units(binding), deal_mode(binding.root), turns=turns)
                runs.append(_units(compiler, share, most))
        return runs, metrics.fell_back


def _length(rows: dict[str, Column]) -> int:
    return len(next(iter(rows.values()))) if rows else 0


def _units(compiler: Compiler, share: Share, most: int) -> list[Block]:
    top, assigned = compiler.top(share)
    flow = top.open([assigned.start(), 0])
    units: list[Block] = []
    rows = 0
    try:
        while rows < most and len(units) < _MOST_UNITS:
            piece = flow.pull(True)
            if not isinstance(piece, Piece):
                break
            if piece.units:
                units.append(piece.rows.gather())
                rows += units[-1].slots
        return units
    finally:
        flow.close()
