"""Scans: which columns and fields are read, and of which type they are then."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import cedar
from cedar.plan.scan import Scan, chosen_fields, dotted, narrowed, narrowed_type


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
