"""Compare a plan with the pipeline as written, on sample rows."""

from __future__ import annotations

from cedar import graph
from cedar.block import Block
from cedar.datasets.base import Read
from cedar.execution.binding import Binding
from cedar.execution.comparing import difference
from cedar.execution.copying import own_copy
from cedar.graph import Node
from cedar.operators.base import RowOperator, StreamOperator
from cedar.plan.data import Plan
from cedar.plan.planner import Difference
from cedar.plan.scan import Scan


def check_plan(binding: Binding, plan: Plan, rows: int) -> Difference | None:
    """The first difference between a plan and the pipeline as written on the first rows of its sources.

    Every operator of the pipeline is called on the rows twice: one whose results differ is not deterministic, and
    nothing can be said of a plan that moves it.
    """
    check = _Check(binding, rows)
    try:
        written = check.run(binding.root)
        again = _Check(binding, rows, check.read).run(binding.root)
        unsure = difference([again], [written])
        if unsure is not None:
            return Difference(f"not deterministic: run twice as written, {unsure}")
    except Exception as error:  # noqa: BLE001 - the run's to tell, when it comes there
        return Difference(f"the sample cannot be computed as written: {type(error).__name__}: {_first_line(error)}")
    try:
        done = check.run(plan.root)
    except Exception as error:  # noqa: BLE001 - the order as written did not raise on these rows
        return Difference(f"{type(error).__name__} that the order as written does not raise: {_first_line(error)}")
    if list(done.columns) != list(written.columns):
        return Difference(f"columns {list(done.columns)}, {list(written.columns)} as written")
    found = difference([done], [written])
    return None if found is None else Difference(found)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class _Check:
    def __init__(self, binding: Binding, rows: int, read: dict[int, Block] | None = None) -> None:
        self._binding = binding
        self._rows = rows
        self.read: dict[int, Block] = {} if read is None else read  # what sources gave, by id of the logical node

    def run(self, root: Node) -> Block:
        """The sample rows behind the last node of a graph."""
        done: dict[int, Block] = {}
        for node in graph.walk(root):
            done[id(node)] = self._one(node, [done[id(child)] for child in node.inputs])
        return done[id(root)]

    def _one(self, node: Node, below: list[Block]) -> Block:
        operator, binding = node.operator, self._binding
        if isinstance(operator, Read):
            return self._source(node)
        if isinstance(operator, RowOperator):
            return binding.kernel(node)(below[0], binding.check_env)
        assert isinstance(operator, StreamOperator)
        return operator.sample(*below)

    def _source(self, node: Node) -> Block:
        logical = node.logical
        if id(logical) not in self.read:
            self.read[id(logical)] = self._binding.first_rows(logical, self._rows)
        block = own_copy(self.read[id(logical)])  # functions that change their input in place see it once
        if isinstance(node.operator, Scan):
            return self._binding.scanned(node.operator, block)
        return block
