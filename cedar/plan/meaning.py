"""Meaning: a proof, by what operators declare, that a plan gives what the pipeline as written gives.

Every column is a term: what it is computed from, by which operator. The rows are what they were counted as last, and
the set of conditions that they passed since. Two plans with the same terms give the same rows in the same order; where
the terms differ, nothing is said, and the plans are compared on sample rows. No rule of an optimizer is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from cedar.core.skip import Skip
from cedar.datasets.base import Read
from cedar.operators.base import StreamOperator
from cedar.operators.elementwise import columns_of
from cedar.operators.expression_steps import never_fails
from cedar.plan.graph import Node
from cedar.plan.lower import group_size, policy_of
from cedar.plan.physical import Physical
from cedar.plan.scan import Scan


class _Unknown(Exception):
    """Nothing can be said."""


@dataclass(frozen=True)
class _Rows:
    """Of an operator's output, by the numbers of terms.

    Args:
        order: which rows, in which order, before the conditions.
        counted: the same without shuffles.
        passed: conditions.
        columns: name to what it holds, in order.
    """

    order: int
    counted: int
    passed: frozenset[int]
    columns: dict[str, int]


@dataclass
class TermTable:
    """Numbers of terms, the same for the same term; hand in one for all plans of a pipeline.

    Args:
        on_error: the run's policy for rows that fail.
    """

    on_error: Skip | None = None
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def of(self, *term: Hashable) -> int:
        """The number of a term."""
        return self.numbers.setdefault(term, len(self.numbers))


def proof(physical: Physical, written: Physical, terms: TermTable) -> tuple[Node, ...] | None:
    """The scans by whose filters a plan gives what the pipeline as written gives; None where that cannot be told.

    What a scan passes over is decided by metadata of the source: whether it leaves what its filters leave, rows tell.
    Both plans are verified.
    """
    try:
        mine, theirs = _Meaning(physical, written, terms), _Meaning(written, written, terms)
        ours, wanted = mine.rows(), theirs.rows()
    except _Unknown:
        return None
    equal = (ours.order, ours.passed) == (wanted.order, wanted.passed)
    equal = equal and list(ours.columns.items()) == list(wanted.columns.items())
    equal = equal and all(
        _meets_no_other(mine.met[i], met) or _never_fails(written.nodes[i]) for i, met in theirs.met.items()
        if i in mine.met
    )  # fmt: skip
    return tuple(mine.filtered) if equal else None


def _meets_no_other(mine: tuple[int, frozenset[int]], theirs: tuple[int, frozenset[int]]) -> bool:
    """An operator meets no rows that it does not meet as written, on which it may fail."""
    return mine[0] == theirs[0] and mine[1] >= theirs[1]


def _never_fails(node: Node) -> bool:
    operator, schema = node.operator, node.inputs[0].schema
    expressions = operator.code() if operator.by_expressions else (None,)
    return all(each is not None and never_fails(each, schema) for each in expressions)


class _Meaning:
    """Of one plan."""

    def __init__(self, physical: Physical, written: Physical, terms: TermTable) -> None:
        self.plan, self.written, self.terms = physical, written, terms
        self.met: dict[int, tuple[int, frozenset[int]]] = {}  # of each operator as written, the rows that it sees
        self.windows = {stage.windows for stage in physical.stages if stage.kind == "read"}
        self.marked = {stage.windows: stage.out for stage in physical.stages if stage.kind == "window"}
        self.node_rows: list[_Rows] = []
        self.filtered: list[Node] = []  # scans with filters
        self.ordinals = {id(node): i for i, node in enumerate(written.nodes)}

    def rows(self) -> _Rows:
        """What the plan gives."""
        node_rows = self.node_rows
        for number, (node, work) in enumerate(zip(self.plan.nodes, self.plan.works, strict=True)):
            inputs = [node_rows[i] for i in work.inputs]
            if node.operator.storage is not None:
                node_rows.append(inputs[0])
            elif isinstance(node.operator, Read):
                node_rows.append(self._read(node, node.operator))
            elif isinstance(node.operator, StreamOperator):
                node_rows.append(self._stream(number, node, node.operator, inputs))
            else:
                node_rows.append(self._row_operator(node, inputs[0], self._sees_batches(node)))
        return node_rows[-1]

    def _sees_batches(self, node: Node) -> bool:
        """An operator that a plan runs above a ``batch``, and that is below it as written, works row by row there."""
        ordinal = self.ordinals.get(id(node.logical), -1)
        return ordinal >= 0 and self.written.nodes[ordinal].batched

    def _own(self, node: Node) -> int:
        """The operator as written whose work a node does, if it does just that."""
        ordinal = self.ordinals.get(id(node.logical), -1)
        if ordinal < 0 or not _ours(node) or node.operator is not node.logical.operator:
            raise _Unknown
        return ordinal

    def _read(self, node: Node, operator: Read) -> _Rows:
        ordinal = self.ordinals[id(node.logical)]
        names = Read(operator.source).schema()
        if names is None or policy_of(node, self.terms.on_error) is not None:
            raise _Unknown
        order = self.terms.of("source", ordinal)
        rows = _Rows(order, order, frozenset(), {name: self.terms.of("column", ordinal, name) for name in names})
        if not isinstance(operator, Scan):
            return rows
        for each in operator.where:
            if not _never_fails(each):
                raise _Unknown
            rows = self._row_operator(each, rows, batched=False)
        if operator.where:
            self.filtered.append(node)
        chosen = set(names if operator.columns is None else operator.columns)
        if not chosen <= rows.columns.keys():
            raise _Unknown  # fields of structs
        return replace(rows, columns={name: term for name, term in rows.columns.items() if name in chosen})

    def _stream(self, number: int, node: Node, operator: StreamOperator, inputs: list[_Rows]) -> _Rows:
        ordinal, effects = self._own(node), node.effects
        if operator.mixing is not None and operator.mixing.by is None and number in self.windows:
            (rows,) = inputs  # a sort by key within windows of metadata: conditions drop rows before it or after it
            return replace(rows, order=self.terms.of("shuffle", ordinal, rows.order))
        marked = [self.node_rows[self.marked[number]]] if number in self.marked else []  # whose units windows count
        order = self.terms.of("stream", ordinal, *((each.order, each.passed) for each in (*inputs, *marked)))
        counted = self.terms.of("stream", ordinal, *((each.counted, each.passed) for each in inputs))
        if operator.batch_rows is not None and effects.writes == frozenset():
            counted = inputs[0].counted  # the same rows, of which the short batch may be dropped
        unchanged = len(inputs) == 1 and effects.writes == frozenset()
        schema: Collection[str] | None = inputs[0].columns if node.schema is None and unchanged else node.schema
        if schema is None:
            raise _Unknown
        if len(inputs) == 1 and effects.writes is not None and effects.reads is not None:
            reads = self._terms(inputs[0], effects.reads)
            columns = {
                name: self.terms.of("made", ordinal, name, order, reads)
                if name in effects.writes or name not in inputs[0].columns
                else inputs[0].columns[name]
                for name in schema
            }
        else:
            columns = {
                name: self.terms.of("join", ordinal, name, order, *(each.columns.get(name, -1) for each in inputs))
                for name in schema
            }
        return _Rows(order, counted, frozenset(), columns)

    def _row_operator(self, node: Node, rows: _Rows, batched: bool) -> _Rows:
        operator, effects = node.operator, node.effects
        if policy_of(node, self.terms.on_error) is not None:
            raise _Unknown  # rows that are skipped
        outputs = operator.outputs(rows.columns) if _ours(node) and not batched else None
        if outputs is not None:
            return self._columns(node, outputs, rows)
        ordinal = self._own(node)
        reads = self._terms(rows, frozenset(rows.columns) if effects.reads is None else effects.reads)
        self.met[ordinal] = rows.counted, rows.passed
        if batched or group_size(node) is not None or effects.rows not in ("1:1", "1:0..1"):
            seen = (ordinal, rows.order, rows.passed, reads)  # a value may depend on who is beside it
            rows = _Rows(self.terms.of("n", *seen), self.terms.of("n", *seen), frozenset(), rows.columns)
            value: tuple[Hashable, ...] = ("value", *seen)
        else:
            # Draws are keyed by the row, whatever else is there.
            value = ("value", ordinal, reads, rows.counted if effects.random else -1)
        if effects.rows == "1:0..1":
            rows = replace(rows, passed=rows.passed | {self.terms.of("passes", *value)})
            if effects.writes == frozenset():
                return rows
        if effects.writes is None and effects.reads is None and node.schema is None:
            # Columns that only a run can tell are one term: of all columns that come in, by their names and order.
            return replace(rows, columns={"*": self.terms.of(*value, tuple(rows.columns))})
        if node.schema is None or (effects.writes is None and effects.reads is not None):
            raise _Unknown
        writes = frozenset(node.schema) if effects.writes is None else effects.writes
        kept = {name: term for name, term in rows.columns.items() if effects.keeps is None or name in effects.keeps}
        return _in_order(node, rows, kept | {name: self.terms.of(*value, name) for name in writes})

    def _columns(self, node: Node, outputs: Iterable[tuple[str | None, Any]], rows: _Rows) -> _Rows:
        """What moves columns about, and computes some by expressions, each by itself."""
        ordinal = self.ordinals.get(id(node.logical), -1)
        made: dict[str, int] = {}
        for name, output in outputs:
            if name is None or name in made:
                raise _Unknown
            if isinstance(output, str):
                (made[name],) = self._terms(rows, frozenset({output}))
                continue
            reads = columns_of(output[1])
            written = node.logical.operator.outputs(()) or ()
            place = next((i for i, (_, each) in enumerate(written) if each is output), None)
            if reads is None or place is None or ordinal < 0:
                raise _Unknown
            made[name] = self.terms.of("item", ordinal, place, self._terms(rows, reads))
            self.met[ordinal] = rows.counted, rows.passed
        return _in_order(node, rows, made)

    def _terms(self, rows: _Rows, names: frozenset[str]) -> tuple[int, ...]:
        """What columns hold, in the order of their names."""
        if not names <= rows.columns.keys():
            raise _Unknown
        return tuple(rows.columns[name] for name in sorted(names))


def _ours(node: Node) -> bool:
    """Of others, effects are what they say they are."""
    return type(node.operator).__module__.startswith("cedar.")


def _in_order(node: Node, rows: _Rows, columns: dict[str, int]) -> _Rows:
    """The columns that leave an operator, as its schema has them."""
    if node.schema is None or not node.schema.keys() <= columns.keys():
        raise _Unknown
    return replace(rows, columns={name: columns[name] for name in node.schema})
