"""Steps that drop what is not used: filters and columns that a scan applies, columns and results that nothing reads.

They also restore the order of columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from cedar.core.columns import ColumnType
from cedar.datasets.base import Read, rows_may_fail
from cedar.operators.base import Schema
from cedar.operators.expression_nodes import columns_of as columns_of_expr
from cedar.operators.expression_nodes import fields_of
from cedar.operators.expressions import ByExpressions, SeparateResults
from cedar.plan import graph as graphs
from cedar.plan.graph import Node, Scan, chosen_fields, dotted
from cedar.plan.steps.step import (
    Facts,
    Refusal,
    Step,
    alike,
    is_inserted,
    needs_each,
    only,
    rebuilt,
    shared,
    union,
    with_inputs,
)

Fields: TypeAlias = "frozenset[tuple[str, ...]] | None"  # paths of fields inside a column; None means the whole column

_NOTHING: frozenset[tuple[str, ...]] = frozenset()


def live_fields(node: Node, column: str, facts: Facts) -> Fields:
    """Return the fields of ``column`` that nodes after ``node`` read; None (all) if the column is in the output."""
    names: dict[int, dict[str, None]] = {id(node): {column: None}}  # the column's names in the outputs of later nodes
    fields: Fields = _NOTHING
    for current in graphs.walk(facts.root):
        if names.keys().isdisjoint(map(id, current.inputs)):
            continue
        needed = needs_each(current, facts.live.get(id(current)))
        for child, wanted in zip(current.inputs, needed, strict=True):
            for name in names.get(id(child), ()):
                if wanted is not None and name not in wanted:
                    continue
                fields = union(fields, _fields_used(current, name))
                above = _passed_on(current, name)
                if above is not None:
                    names.setdefault(id(current), {})[above] = None
        if fields is None:
            return None
    delivered, live = names.get(id(facts.root), {}).keys(), facts.live.get(id(facts.root))
    return None if delivered and (live is None or delivered & live) else fields


def fields_read(node: Node, column: str) -> Fields:
    """Return the fields of ``column`` that an expression operator reads."""
    operator = node.operator
    fields: Fields = _NOTHING
    for expr in operator.code():
        fields = None if columns_of_expr(expr) is None else union(fields, fields_of(expr).get(column, _NOTHING))
    return fields


def _fields_used(node: Node, name: str) -> Fields:
    """Return the fields that the operator reads; None (all) for caches and operators whose inputs must be alike."""
    operator, effects = node.operator, node.effects
    if effects.reads is None or effects.writes is None or node.storage is not None or alike(node):
        return None
    if isinstance(operator, ByExpressions):
        return fields_read(node, name)
    return _NOTHING if name in node.renames or name not in effects.reads else None


def _passed_on(node: Node, name: str) -> str | None:
    """Return the column's name after the operator; None if it is dropped."""
    effects = node.effects
    if pairs := node.renames:
        return pairs.get(name) or (None if name in pairs.values() else name)
    if name in (effects.writes or ()) or (effects.survivors is not None and name not in effects.survivors):
        return None
    return name


@dataclass(frozen=True)
class PushFilter(Step):
    """Merge an expression filter into the scan that is its input.

    The scan reads the filter's columns first, and other columns only for rows that pass. Rows and row keys do not
    change. The filter's columns must be known, and no split may be a stream. No policy may skip and count failing
    rows, because the scan no longer reads every value.
    """

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        below = graph.inputs[0] if graph.inputs else None
        if below is None or graph.condition is None or not isinstance(below.operator, Read):
            return Refusal("it is not a filter by expression above a source")
        if not below.operator.source.selects:
            return Refusal("the source cannot read some columns before others")
        if (why := shared(below, facts)) is not None:
            return Refusal(why)
        if graph.effects.reads is None:
            return Refusal("which columns it reads depends on their types")
        if facts.skips(graph) or facts.skips(below):
            return Refusal("rows may be skipped, and are counted where all are read")
        if facts.streams(below):
            return Refusal(f"{facts.label(below)} has splits that can only be read from their beginning")
        return None

    def apply(self, graph: Node, facts: Facts) -> Node:
        below = graph.inputs[0]
        scan = _scan(below)
        where = (*scan.where, rebuilt(graph, graph.inputs, facts))
        return rebuilt(below, (), facts, Scan(scan.source, scan.columns, where))


@dataclass(frozen=True)
class PushColumns(Step):
    """Read only some columns of a source, and only some fields of struct columns.

    The columns include all that later operators and the scan's filters read, in the source's order. The step is
    refused if failing rows are skipped and a value in another column may fail.

    Args:
        columns: names of columns, and paths of fields such as "a.b".
    """

    columns: tuple[str, ...]
    downward = True

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        operator, known = graph.operator, graph.schema or {}
        needed = columns_needed(graph, facts) if isinstance(operator, Read) else None
        if needed is None:
            return Refusal("it is not a source whose columns are known")
        assert isinstance(operator, Read)
        if not operator.source.selects:
            return Refusal("the source cannot leave columns out")
        if facts.skips(graph) and rows_may_fail(operator.source):
            return Refusal("rows may fail in the other columns, and are then skipped")
        chosen = chosen_fields(self.columns, known)
        if list(chosen) != [name for name in known if name in chosen] or not chosen:
            return Refusal("they are not columns of the source in its order")
        for name, paths in chosen_fields(needed, known).items():
            if name not in chosen or not _covers(chosen[name], paths):
                return Refusal(f"column {name!r} is read further up")
        if any(paths is not None for paths in chosen.values()) and operator.source.selects != "fields":
            return Refusal("the source cannot select fields")
        return Refusal("it reads these columns already") if self.columns == columns_of(graph) else None

    def apply(self, graph: Node, facts: Facts) -> Node:
        scan = _scan(graph)
        return rebuilt(graph, (), facts, Scan(scan.source, self.columns, scan.where))


def _covers(chosen: list[str] | None, needed: list[str] | None) -> bool:
    """Return whether the chosen fields include the needed ones; None means the whole column."""
    if chosen is None:
        return True
    if needed is None:
        return False
    return all(any(path == have or path.startswith(f"{have}.") for have in chosen) for path in needed)


def _scan(node: Node) -> Scan:
    operator = node.operator
    assert isinstance(operator, Read)
    return operator if isinstance(operator, Scan) else Scan(operator.source)


def columns_of(node: Node) -> tuple[str, ...]:
    """Return the columns and fields that a source currently delivers."""
    operator = node.operator
    chosen = operator.columns if isinstance(operator, Scan) else None
    return tuple(node.schema or ()) if chosen is None else chosen


def columns_needed(node: Node, facts: Facts) -> tuple[str, ...] | None:
    """Return the columns and fields of a source that are read; None if columns are unknown or all may be read."""
    live, known = facts.live.get(id(node)), node.schema
    if live is None or known is None:
        return None
    names = tuple(name for name in known if name in live) or _least(known)
    assert isinstance(node.operator, Read)
    source = node.operator.source
    whole = Read(source).schema() if source.selects == "fields" else None
    columns: list[str] = []
    for name in names:
        kind, paths = (whole or {}).get(name), None
        if isinstance(kind, pa.DataType) and pa.types.is_struct(kind):
            paths = dotted(name, _read(node, name, facts) or (), whole)
        columns += [name] if paths is None else paths
    return tuple(columns)


def _read(node: Node, name: str, facts: Facts) -> Fields:
    """Return the fields that the scan's filters and later operators read."""
    read = live_fields(node, name, facts)
    for each in node.operator.where if isinstance(node.operator, Scan) else ():
        read = union(read, fields_read(each, name))
    return read


def _least(known: Mapping[str, ColumnType]) -> tuple[str, ...]:
    """Return one narrow column, so that rows can be counted if no column is read."""
    plain = (n for n, kind in known.items() if isinstance(kind, pa.DataType) and pa.types.is_primitive(kind))
    found = next(plain, None) or next(iter(known), None)
    return () if found is None else (found,)


# ---- columns between operators ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keep(Step):
    """Drop columns of an operator's inputs that neither this operator nor any later one reads.

    Which columns are read is derived from the operators' declared effects, from the output back to the sources. All
    output columns of the pipeline count as read. Inputs that must have the same columns keep the same ones.

    Args:
        columns: for each input, the columns to keep; () keeps all.
    """

    columns: tuple[tuple[str, ...], ...]
    downward = True

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        if len(self.columns) != len(graph.inputs) or not any(self.columns):
            return Refusal("it has other inputs")
        live = needs_each(graph, facts.live.get(id(graph)))
        for child, names, needed in zip(graph.inputs, self.columns, live, strict=True):
            if not names:
                continue
            schema = child.schema
            if schema is None or needed is None or not set(names) < set(schema):
                return Refusal("its columns are unknown, or all are kept")
            if lost := sorted(needed.intersection(schema) - set(names)):
                return Refusal(f"column {lost[0]!r} is read")
            if list(names) != [name for name in schema if name in names]:
                return Refusal("their order differs from the input's")
        if alike(graph) and len({frozenset(names) for names in self.columns}) > 1:
            return Refusal("its inputs have the same columns")
        return None

    def apply(self, graph: Node, facts: Facts) -> Node:
        pairs = zip(graph.inputs, self.columns, strict=True)
        return rebuilt(graph, tuple(only(child, names) if names else child for child, names in pairs), facts)


def unread(node: Node, facts: Facts) -> tuple[tuple[str, ...], ...]:
    """Return, for each input of a node, the columns to keep; () if all columns are read."""
    live = needs_each(node, facts.live.get(id(node)))
    kept: list[tuple[str, ...]] = []
    for child, names in zip(node.inputs, live, strict=True):
        schema = child.schema
        if schema is None or names is None or names >= set(schema):  # unknown, or all are needed
            kept.append(())
        else:
            kept.append(tuple([name for name in schema if name in names]))
    return () if alike(node) and not all(kept) else tuple(kept)


@dataclass(frozen=True)
class DropResults(Step):
    """Do not compute results of expressions that no operator reads.

    Only results that cannot fail are omitted, because the plan must raise every error of the pipeline as written.

    Args:
        results: indices into the operator's ``results``.
    """

    results: tuple[int, ...]
    downward = True

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        operator, live = graph.operator, facts.live.get(id(graph))
        names = operator.results if isinstance(operator, SeparateResults) else ()
        known = bool(self.results) and all(0 <= i < len(names) for i in self.results)
        if not isinstance(operator, SeparateResults) or not known:
            return Refusal("it has no such results")
        for i in self.results:
            name = names[i]
            if live is None or name is None or name in live:
                return Refusal(f"{name} is read")
            if not operator.never_fails(i, graph.inputs[0].schema):
                return Refusal(f"nothing reads {name}, but they may fail on some row")
        fewer = operator.without(self.results)
        return Refusal("no result would be left") if fewer is not None and not fewer.results else None

    def apply(self, graph: Node, facts: Facts) -> Node:
        assert isinstance(graph.operator, SeparateResults)
        fewer = graph.operator.without(self.results)
        return graph.inputs[0] if fewer is None else rebuilt(graph, graph.inputs, facts, fewer)


@dataclass(frozen=True)
class KeepOrder(Step):
    """Restore the column order of the pipeline as written wherever the order affects results. This is the last step."""

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        return None

    def apply(self, graph: Node, facts: Facts) -> Node:
        """Return the graph with columns in the order of the pipeline as written, wherever the order affects results.

        The order affects the output, functions of whole rows, expressions that select by type, and caches. It is also
        restored before a node after which the columns are unknown. Selections that the optimizer inserted are removed
        if they select all columns or if another such selection follows.
        """
        written = graphs.schemas(facts.logical)
        done: dict[int, Node] = {}
        for node in graphs.walk(graph):
            inputs = [done[id(child)] for child in node.inputs]
            if is_inserted(node, facts):
                below, schema = inputs[0], node.inputs[0].schema
                if schema is not None and tuple(schema) == node.projection:
                    done[id(node)] = below
                    continue
                if is_inserted(below, facts):
                    inputs = list(below.inputs)
            elif facts.ordinal(node) is not None and len(node.logical.inputs) == len(inputs):
                sees = node.effects.reads is None or node.storage is not None
                for i, child in enumerate(node.inputs):
                    lost = node.schema is None and child.schema is not None
                    if sees or lost:
                        names = _wanted(child.schema, written[id(node.logical.inputs[i])])
                        inputs[i] = only(inputs[i], names) if names else inputs[i]
            done[id(node)] = with_inputs(node, tuple(inputs), facts)
        top, names = done[id(graph)], _wanted(graph.schema, written[id(facts.logical)])
        return only(top.inputs[0] if is_inserted(top, facts) else top, names) if names else top


def _wanted(rewritten: Schema, written: Schema) -> tuple[str, ...]:
    """Return the names in the order as written if the rewritten order differs; otherwise ()."""
    if rewritten is None or written is None or list(rewritten) == list(written) or set(rewritten) != set(written):
        return ()
    return tuple(written)
