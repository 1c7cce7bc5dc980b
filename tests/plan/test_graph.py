"""The logical graph: each node once, sharing kept, whose line an error is of, and what stands for a pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar import col
from cedar.plan import graph
from cedar.plan.graph import Node, Scan, chosen_fields, dotted, narrowed, narrowed_type
from tests.plan.toy_plans import decode, rows, written


def zipped() -> cedar.Pipeline:
    """Two selections of one shared map."""
    shared = rows().map(decode, "x", into="u", dtype=int)
    return cedar.zip(shared.select("u"), shared.select("y"))


def test_every_node_comes_once_and_behind_its_inputs() -> None:
    nodes = list(graph.walk(zipped().node))
    assert [node.operator.name for node in nodes] == ["read", "map", "select", "select", "zip"]
    assert all(nodes.index(child) < i for i, node in enumerate(nodes) for child in node.inputs)
    known = {id(nodes[2])}
    assert list(graph.walk(nodes[-1], known)) == [*nodes[:2], *nodes[3:]]
    assert graph.sources(nodes[-1]) == nodes[:1]


def test_what_is_replaced_is_replaced_wherever_it_is_shared() -> None:
    root = zipped().node
    other = rows(3).map(decode, "x", into="u", dtype=int).node
    made = graph.replace(root, lambda node: other if node.operator.name == "map" else None)
    assert made.inputs[0].inputs[0] is made.inputs[1].inputs[0] is other
    assert graph.replace(root, lambda node: None) is root


def test_equal_labels_are_numbered() -> None:
    p = rows().take(3).take(3)
    assert list(graph.labels(p.node).values()) == ["from_arrow(20 rows)", "take(3)", "take(3) #2"]


def test_an_order_is_known_by_operators_connections_and_their_parameters_alone() -> None:
    assert graph.topology(written().node) == graph.topology(written().node)
    assert graph.topology(rows(3).batch(2).node) == graph.topology(rows(9).batch(2).node), "not by the data"
    a, b = rows().select("x"), rows().select("x")
    pipelines = [
        rows().batch(2), rows().batch(3), rows().shuffle(seed=1), rows().shuffle(seed=2), rows().take(2).batch(2),
        cedar.concat(a, b), cedar.concat(a, a), cedar.zip(a, b.rename({"x": "y"})),
    ]  # fmt: skip
    assert len({graph.topology(p.node) for p in pipelines}) == len(pipelines)


def test_code_is_known_by_functions_and_expressions_without_their_data() -> None:
    def closing(value: object) -> Any:
        return rows().map(lambda x: (x, value)[0], "x", dtype=int)

    assert graph.code_digest(closing([1]).node) == graph.code_digest(closing([2, 3]).node)
    assert graph.code_digest(rows().filter(col("x") > 1).node) != graph.code_digest(rows().filter(col("y") > 1).node)
    assert graph.calls_functions(closing(1).take(2).node)
    assert not graph.calls_functions(rows().filter(col("x") > 1).node)


def test_errors_name_the_line_that_built_the_operator() -> None:
    node = rows().take(3).node
    unprepared = pytest.raises(cedar.PipelineError, match=r"take\(3\) cannot be prepared: KeyError: 'x'")
    with unprepared as caught, graph.at_site(node):
        raise KeyError("x")
    assert caught.value.site is node.site
    assert node.site is not None
    assert node.site.file == __file__
    with pytest.raises(cedar.PlanError) as plain, graph.at_site(node):
        raise cedar.PlanError("no")
    assert plain.value.site is node.site
    with pytest.raises(cedar.PipelineError, match=r"take\(3\) takes 1 input.s., not 2"):
        Node(node.operator, (node, node), node.site)


def test_a_column_of_the_dotted_name_wins():
    kind = pa.struct([("b", pa.int64()), ("c", pa.int64())])
    assert dotted("a", [("b",)], {"a": kind}) == ["a.b"]
    assert dotted("a", [("b",)], {"a": kind, "a.b": pa.int64()}) is None
    assert dotted("a", [("b",), ("c",)], {"a": kind}) is None
    assert dotted("a.x", [("b",)], {"a.x": kind}) is None


STRUCT = pa.struct([("b", pa.int64()), ("c", pa.string()), ("d", pa.struct([("e", pa.int8()), ("f", pa.bool_())]))])


def test_fields_are_chosen_of_columns_and_a_whole_column_wins():
    assert chosen_fields(["a.b", "a.d.e", "y"], ["a", "y"]) == {"a": ["b", "d.e"], "y": None}
    assert chosen_fields(["a.b", "a"], ["a"]) == chosen_fields(["a", "a.b"], ["a"]) == {"a": None}
    assert chosen_fields(["a.b"], ["a", "a.b"]) == {"a.b": None}


def test_a_type_is_narrowed_in_the_order_of_the_source():
    assert narrowed_type(STRUCT, ["d.f", "b"]) == pa.struct([("b", pa.int64()), ("d", pa.struct([("f", pa.bool_())]))])
    assert narrowed_type(STRUCT, ["d", "d.e"]) == pa.struct([STRUCT.field("d")])
    assert narrowed_type(STRUCT, None) == STRUCT
    assert narrowed_type(pa.list_(STRUCT), ["b"]) == pa.list_(STRUCT)


def test_a_column_is_narrowed_and_its_nulls_stay():
    rows = [{"b": 1, "c": "x", "d": {"e": 1, "f": True}}, None, {"b": None, "c": None, "d": None}]
    column = pa.array(rows, STRUCT)
    kind = narrowed_type(STRUCT, ["b", "d.f"])
    for made, wanted in ((narrowed(column, kind), rows), (narrowed(column.slice(1), kind), rows[1:])):
        assert made.type == kind
        assert made.to_pylist() == [
            None if row is None else {"b": row["b"], "d": row["d"] and {"f": row["d"]["f"]}} for row in wanted
        ]
    assert narrowed(column, pa.struct([("z", pa.int64())])) is column
    assert narrowed(np.arange(3), kind).tolist() == [0, 1, 2]


def test_a_scan_has_the_columns_that_leave_it_in_their_order():
    source = cedar.from_arrow(pa.table({"x": [1], "y": ["a"]})).node.operator.source
    assert list(Scan(source).schema()) == ["x", "y"]
    assert Scan(source, ("y",)).schema() == {"y": Scan(source).schema()["y"]}
    assert list(Scan(source, ("y", "x")).schema()) == ["y", "x"]
