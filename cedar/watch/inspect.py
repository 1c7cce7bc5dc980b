"""``inspect``: run the first rows of a pipeline through its unoptimized operators, one by one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from cedar.core.block import Block, python_values
from cedar.core.columns import Column, type_of
from cedar.core.compare import same_value
from cedar.core.errors import CedarError, user_site
from cedar.core.numeric import NumericEnvironment
from cedar.core.printable import redact
from cedar.engine.account import DeliveryCounter
from cedar.engine.binding import Binding
from cedar.engine.metrics import Metrics
from cedar.operators.base import Env, RowOperator, StreamOperator
from cedar.operators.instances import Instances
from cedar.pipeline.explain_logical import as_written
from cedar.plan.graph import Node
from cedar.tasks.chain import KernelStep, Program, own_copy, run_rows
from cedar.watch.contact_sheet import Cell, Sheet, SheetRow


def inspect(root: Node, rows: int, seed: int, epoch: int) -> Sheet:
    """Return the first rows of a pipeline's source, before and after each operator that works on single rows.

    Random operators make the same draws as for these rows in a run with this seed and epoch.

    Args:
        root: the pipeline's last node.
        rows: the number of rows.
        seed, epoch: the run's seed and epoch.

    Raises:
        CedarError: reading the source failed. If an operator fails, its cell shows the error instead.
    """
    work = _InspectPass(root, seed, epoch)
    try:
        return work.sheet(rows)
    except CedarError as error:
        work.account.locate(error)
        raise


class _InspectPass:
    """Builds one sheet."""

    def __init__(self, root: Node, seed: int, epoch: int) -> None:
        env = Env(seed, epoch, Instances(), numeric=NumericEnvironment.of_caller())
        self.binding = Binding(root, None, env)
        self.env = replace(env, numeric=self.binding.numeric)
        self.account = DeliveryCounter(self.binding, Metrics(), 0, None, user_site())
        self.account.epoch = epoch
        self._words = as_written(root, self.binding.labels)
        self._programs: dict[int, Program | CedarError] = {}

    def sheet(self, rows: int) -> Sheet:
        source, path, notes = self._path()
        block = self.binding.rows_after(source, rows)
        if block.slots < rows:
            notes.append(f"the source has only {block.slots:,} row{'' if block.slots == 1 else 's'}")
        rows_shown = tuple(self._row(block.slice(i, i + 1), path) for i in range(block.slots))
        steps = [source, *(node for node in path if isinstance(node.operator, RowOperator))]
        labels = tuple(self._words[id(node)] for node in steps)
        return Sheet(labels, rows_shown, tuple(notes), self.env.seed, self.env.epoch)

    def _path(self) -> tuple[Node, list[Node], list[str]]:
        """Return the source, the operators after it (following first inputs only), and notes on operators left out."""
        above: list[Node] = []
        node = self.binding.root
        while node.inputs:
            above.append(node)
            node = node.inputs[0]
        path: list[Node] = []
        notes: list[str] = []
        for each in reversed(above):
            label = self._words[id(each)]
            why = _why_sheet_ends(each)
            if why:
                notes.append(f"the sheet ends at {label}: {why}")
                break
            if isinstance(each.operator, StreamOperator):
                several = ", and only its first input is shown" if len(each.inputs) > 1 else ""
                notes.append(f"{label} is left out: it decides which rows come next{several}")
            path.append(each)
        return node, path, notes

    def _row(self, block: Block, path: list[Node]) -> SheetRow:
        place = redact(str(replace(self.account.named(block.keys.ref(0)), epoch=None)))
        values = _values(block)
        row_cells = [Cell(values, tuple(values))]
        for node in path:
            if isinstance(node.operator, StreamOperator):
                block = block.within(0) if len(node.inputs) > 1 else block
                continue
            cell, block = self._apply(node, block, row_cells[-1])
            row_cells.append(cell)
            if cell.end:
                break
        return SheetRow(place, tuple(row_cells))

    def _apply(self, node: Node, block: Block, before: Cell) -> tuple[Cell, Block]:
        """Apply an operator to a block of one row; return the cell and the resulting block."""
        try:
            after = run_rows(self._program(node), own_copy(block), self.env).blocks[0]
        except CedarError as error:
            return Cell(draws=self._draws_if_known(node, block), end=error.what), block
        if not len(after):
            if after.dead:
                why = f"skipped: {next(iter(after.dead.values())).error}"
                return Cell(draws=self._draws_if_known(node, block), end=why), block
            return Cell(draws=self._random_draws(node, block), end=f"dropped by {self._words[id(node)]}"), block
        note = f"{len(after):,} rows result from it; the first is shown" if len(after) > 1 else ""
        after = after.take(after.live_slots()[:1])
        values = _values(after)
        return Cell(values, _changed(node, before.values, values), self._random_draws(node, block), note), after

    def _program(self, node: Node) -> Program:
        """Return a program that runs only this operator.

        Raises:
            CedarError: the operator cannot be prepared.
        """
        if id(node) not in self._programs:
            try:
                kernel, number = self.binding.kernel(node), self.binding.index[id(node)]
                self._programs[id(node)] = Program((KernelStep(kernel, (number,), self._words[id(node)], node.site),))
            except CedarError as error:
                self._programs[id(node)] = error
        program = self._programs[id(node)]
        if isinstance(program, CedarError):
            raise program
        return program

    def _random_draws(self, node: Node, block: Block) -> dict[str, Any]:
        """Return an operator's random draws for the block's row, from the operator's ``describe`` method."""
        drawn = self.binding.bound(node).describe(block, self.env)
        return drawn[0] if drawn else {}

    def _draws_if_known(self, node: Node, block: Block) -> dict[str, Any]:
        """Return the random draws for a row that the operator dropped; empty if they cannot be determined."""
        with suppress(Exception):  # the transform may not accept the row's values
            return self._random_draws(node, block)
        return {}


def _why_sheet_ends(node: Node) -> str:
    """Return why single rows cannot be followed through an operator; "" if they can."""
    operator = node.operator
    if node.batched:
        return "it makes batches"
    if node.exact_rows is not None:
        return f"it sees {node.exact_rows:,} rows at a time"
    if isinstance(operator, StreamOperator):
        if node.row_use.rows == "paired":
            return "it combines a row of each input"
        if node.row_use.rows in ("drawn", "joined") or operator.effects().writes != frozenset():
            return "it does not work on single rows"
    return ""


def _values(block: Block) -> dict[str, Any]:
    return {name: _value(column) for name, column in block.columns.items()}


def _value(column: Column) -> Any:
    try:
        return python_values(column)[0]
    except (pa.ArrowException, ValueError, OverflowError):
        return f"a {type_of(column)} value without a Python equivalent"


def _changed(node: Node, before: Any, after: dict[str, Any]) -> tuple[str, ...]:
    """Return the columns that an operator wrote, added or changed."""
    writes = node.effects.writes or frozenset()
    return tuple(
        name
        for name, value in after.items()
        if name in writes or name not in before or not same_value(before[name], value)
    )
