"""scan_filter: plans before and after."""

import pytest

import cedar
from cedar import Skip, col
from cedar.optimizer.rules import push_filter, scan_filter
from cedar.plan.scan import Scan
from tests.optimizer.plan_lines import after, decided, line, rewritten, table


def f(x):
    return x


def test_a_filter_becomes_part_of_reading():
    p = table("x", "y").filter(col("y") > 3)
    assert after(p, scan_filter) == "read[* where y > 3]"
    assert decided(p, scan_filter)[0].endswith("into " + p.node.inputs[0].operator.label())


def test_several_filters_keep_their_order():
    p = table("x", "y").map(f, "x").filter(col("y") > 3).shuffle().filter(col("y") < 9).batch(2)
    assert after(p, push_filter, scan_filter) == "read[* where y > 3 and y < 9] -> map(f) -> shuffle -> batch"


def test_the_scan_knows_the_filters_and_the_source_as_written():
    p = table("x", "y").filter(col("y") > 3)
    root, _ = rewritten(p, scan_filter)
    assert isinstance(root.operator, Scan)
    assert root.origin is p.node.inputs[0]
    assert [node.logical for node in root.operator.where] == [p.node]
    assert root.operator.source is p.node.inputs[0].operator.source


def test_every_input_of_a_concat_filters_by_itself():
    p = cedar.concat(table("x"), table("x")).filter(col("x") > 1)
    assert after(p, push_filter, scan_filter) == "concat(read[* where x > 1], read[* where x > 1])"


REFUSED = [
    (lambda p: p.filter(col("x") > 1, on_error=Skip()), "rows may be skipped"),
    (lambda p: cedar.zip(p.filter(col("x") > 1), p.rename({"x": "y"})), "others draw from"),
    (lambda p: p.filter(cedar.col("^x.*$") > 1), "depends on their types"),
]


@pytest.mark.parametrize(("make", "why"), REFUSED, ids=[w for _, w in REFUSED])
def test_why_a_filter_is_not_part_of_reading(make, why):
    p = make(table("x"))
    (decision,) = decided(p, scan_filter, skips=lambda n: getattr(n.logical.operator, "on_error", None) is not None)
    assert why in decision
    assert after(p, scan_filter, skips=lambda n: True) == line(p.node)


def test_sources_that_cannot_select_and_functions_are_left_alone():
    assert decided(cedar.from_items([{"x": 1}]).filter(col("x") > 1), scan_filter) == []
    assert decided(table("x").filter(lambda x: True, "x"), scan_filter) == []


def test_sources_that_are_read_from_their_beginning(tmp_path):
    path = tmp_path / "t.csv.gz"
    import gzip

    path.write_bytes(gzip.compress(b"x\n1\n2\n"))
    p = cedar.read_csv(str(path)).filter(col("x") > 1)
    assert "only be read from their beginning" in decided(p, scan_filter)[0]
