"""flat_map: calls a Python function on each row, which returns any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from cedar.core.block import Block
from cedar.core.columns import UNKNOWN, Column
from cedar.core.dtypes import item_annotation, return_annotation
from cedar.core.errors import Skip, require_columns
from cedar.core.groups import take_each
from cedar.operators.base import Bound, Effects, Env, Kernel, Schema
from cedar.operators.calls import Call, CallKernel, FunctionOperator
from cedar.operators.failures import Failure, without
from cedar.operators.functions import names_written
from cedar.operators.map import sample_results
from cedar.operators.outputs import Form, Outputs, SampledResults, Types, declared_types, fix_outputs, types_of_results


@dataclass(frozen=True)
class FlatMap(FunctionOperator):
    """Call ``fn`` once per row; each item of its iterable result becomes a row.

    With ``columns``, an item is the value of ``into``, and other columns are repeated. Without, it is a whole row.
    ``Pipeline.map`` describes the other arguments. A row on which ``fn`` fails is dropped with all its items.
    """

    fn: Callable[..., Any]
    columns: tuple[str, ...] = ()
    into: str | tuple[str, ...] | None = None
    random: bool = False
    named: str | None = None
    dtype: Any = None
    on_error: Skip | None = None
    timeout: float | None = None
    name = "flat_map"

    def __post_init__(self) -> None:
        self.check()
        self._declared()

    @property
    def written(self) -> tuple[str, ...]:
        """The columns written; () if the items are whole rows."""
        return names_written("flat_map", self.into, default=self.columns[:1])

    @property
    def form(self) -> Form:
        if len(self.written) > 1:
            return "tuple"
        return "value" if self.written else "dict"

    def _declared(self) -> Types:
        item = item_annotation(return_annotation(self.fn))
        return declared_types(self.fn, self.form, self.written, self.dtype, annotation=item or Any)

    def effects(self) -> Effects:
        return Effects(
            reads=frozenset(self.columns) or None,
            writes=frozenset(self.written) or None,
            random=self.random,
            rows="1:n",
            per_row=True,
        )

    def schema(self, *inputs: Schema) -> Schema:
        (known,) = inputs
        require_columns(self.columns, known, self.label())
        if self.form == "dict" or known is None:
            return None
        declared = self._declared()
        return known | {name: declared.get(name, (UNKNOWN,))[0] for name in self.written}

    group_use = "kept"

    def bind(self, bound: Bound) -> Kernel:
        if bound.batched:
            raise bound.refusal(
                "after batch() the rows are fixed",
                fix="call flat_map before batch, or map the whole batch (no columns named) to resize it",
            )
        call = self.call(bound, items=True)
        declared = self._declared()

        def observe() -> Types:
            sampled, asked = SampledResults([], []), 0
            for block in chain([bound.sample()], bound.further()):  # if the first rows give no items, call later rows
                sampled = sample_results(call, self.columns, block, bound.env)
                asked += sampled.asked
                if sampled.results or sampled.failed:
                    break
            return types_of_results(call.blame, self.form, self.written, declared, replace(sampled, asked=asked))

        return FlatMapRows(call, self.columns, fix_outputs(call.blame, self.form, self.written, declared, observe))


@dataclass(frozen=True)
class FlatMapRows(CallKernel):
    """The kernel of ``flat_map``. An output row's key is the original row's key plus the item's index."""

    call: Call
    columns: tuple[str, ...]
    outputs: Outputs
    row_wise: ClassVar[bool] = True

    def __call__(self, block: Block, env: Env) -> Block:
        results, failures = self.call.on_rows(block, env, self.columns)
        columns, items = self._columns(results, failures)
        block = self.call.blame.settle(block, env, failures)
        counts = np.fromiter(map(len, items), dtype=np.int64, count=len(items))
        if self.outputs.form != "dict":
            rows = np.repeat(np.arange(len(counts)), counts)
            kept = take_each({n: c for n, c in block.columns.items() if n not in columns}, rows)
            columns = {n: columns[n] if n in columns else kept[n] for n in block.columns} | columns
        return block.expand(columns, counts)

    def _columns(self, results: list[Any], failures: dict[int, Failure]) -> tuple[dict[str, Column], list[list[Any]]]:
        """Return the columns and the items of each successful row; add rows with invalid items to ``failures``."""
        items = without(results, failures)
        columns, misfits = self.outputs.columns(list(chain.from_iterable(items)))
        if not misfits:
            return columns, items
        rows = [i for i, result in enumerate(results) if i not in failures for _ in result]
        for item, failure in misfits.items():
            failures.setdefault(rows[item], failure)
        items = without(results, failures)
        columns, _ = self.outputs.columns(list(chain.from_iterable(items)))
        return columns, items
