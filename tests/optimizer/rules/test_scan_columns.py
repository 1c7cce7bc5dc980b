"""scan_columns: plans before and after."""

import pytest

import cedar
from cedar import col
from cedar.operators.sample import Sample
from cedar.optimizer.rules import RULES, push_filter, scan_columns, scan_filter
from tests.optimizer.plan_lines import after, decided, line, rewritten, table


def f(x):
    return x


READ = [
    (lambda p: p.select("b"), "read[b] -> select(b)"),
    (lambda p: p.map(f, "a").select("a", "c"), "read[a,c] -> map(f) -> select(a, c)"),
    (lambda p: p.map(f, "a", into="b").drop("a", "c"), "read[a] -> map(f) -> drop(a)"),
    (lambda p: p.drop("b"), "read[a,c]"),
    (lambda p: p.rename({"a": "x", "b": "y"}).select("y"), "read[b] -> rename(b -> y) -> select(y)"),
    (lambda p: p.filter(col("b") > 1).select("a"), "read[a,b] -> filter(b > 1) -> select(a)"),
    (lambda p: p.shuffle(by="c").select("a").batch(2), "read[a,c] -> shuffle -> select(a) -> batch"),
    (lambda p: p.apply(Sample("c")).select("a").take(2), "read[a,c] -> sample -> select(a) -> take(2)"),
    (lambda p: p.with_columns(d=col("a") + 1).select("d"), "read[a] -> with_columns(d) -> select(d)"),
    (lambda p: p.cache("memory").map(f, "a").select("a"), "read -> cache -> map(f) -> select(a)"),
    (lambda p: p.select(z=cedar.lit(1)) if hasattr(cedar, "lit") else p.with_columns(z=1).select("z"),
     "read[a] -> with_columns(z) -> select(z)"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), READ, ids=[e for _, e in READ])
def test_a_source_reads_what_is_used(make, expected):
    assert after(make(table("a", "b", "c")), scan_columns) == expected


def test_columns_of_filters_in_the_scan_do_not_leave_it():
    p = table("a", "b", "c").filter(col("b") > 1).select("a")
    assert after(p, push_filter, scan_filter, scan_columns) == "read[a where b > 1] -> select(a)"


def test_two_users_of_a_source_read_the_union():
    shared = table("a", "b", "c")
    p = cedar.zip(shared.select("a"), shared.select(x="b"))
    root, _ = rewritten(p, scan_columns)
    assert line(root) == "zip(read[a,b] -> select(a), read[a,b] -> select(x))"
    assert root.inputs[0].inputs[0] is root.inputs[1].inputs[0]


def test_the_inputs_of_a_concat_keep_the_same_columns():
    wide, items = table("a", "b"), cedar.from_items([{"a": 1, "b": 2}])
    p = cedar.concat(wide, items, table("b", "a")).select("a")
    assert after(p, *RULES) == "concat(read[a], read -> select(a), read[a]) -> select(a)"


def test_an_input_of_unknown_columns_keeps_the_others_whole():
    class Source:
        def splits(self):
            return [0]

        def read(self, split):
            return [{"a": [1], "b": [2]}]

    p = cedar.concat(table("a", "b"), cedar.from_source(Source())).select("a")
    assert after(p, *RULES) == line(p.node)


KEPT = [
    (lambda p: p, None),
    (lambda p: p.map(dict), None),
    (lambda p: p.map(f, "a").batch(2), None),
    (lambda p: cedar.from_items([{"a": 1, "b": 2}]).select("a"), "1 of 2 columns are not used, and the source cannot"),
]


@pytest.mark.parametrize(("make", "why"), KEPT)
def test_why_a_source_reads_all(make, why):
    p = make(table("a", "b", "c"))
    assert after(p, scan_columns) == line(p.node)
    assert [why in d for d in decided(p, scan_columns)] == ([True] if why else [])


def test_rows_that_fail_in_a_column_nobody_reads_are_skipped_as_written(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    p = cedar.read_csv(str(path)).select("a")
    assert after(p, scan_columns) == "read[a] -> select(a)"
    if p.node.inputs[0].operator.source.reports_bad_rows:
        assert "rows may fail in them" in decided(p, scan_columns, skips=lambda n: True)[0]
