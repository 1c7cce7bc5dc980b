"""Rules that omit what no operator reads, down to fields of struct columns: plans before and after."""

from decimal import Decimal

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import Plan, Skip, col
from cedar.datasets.parquet import read_parquet
from cedar.operators.sample import Sample
from cedar.optimizer.rules import RULES, dead_columns, dead_results, push_filter, scan_columns, scan_filter
from cedar.pipeline.planning import initial_plan
from cedar.plan.graph import Scan
from tests.operators.toy_transforms import AddNoise, Refuse
from tests.optimizer.plan_lines import after, decided, line, rewritten, table


def f(x):
    return x


DROPPED = [
    (lambda p: p.map(f, "a", into="d").shuffle().select("d", "b"),
     "read -> select(a, b) -> map(f) -> select(b, d) -> shuffle -> select(d, b)"),
    (lambda p: p.with_columns(d=col("a") + 1).map(f, "d").select("d"),
     "read -> with_columns(d) -> select(d) -> map(f) -> select(d)"),
    (lambda p: p.shuffle(by="b").map(f, "a").select("a"),
     "read -> select(a, b) -> shuffle -> select(a) -> map(f) -> select(a)"),
    (lambda p: p.map(f, "a").filter(lambda b: True, "b").batch(2).drop("b"),
     "read -> map(f) -> filter(<lambda>) -> select(a, c) -> batch"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), DROPPED, ids=[e for _, e in DROPPED])
def test_dead_columns_go_before_rows_are_held(make, expected):
    assert after(make(table("a", "b", "c")), dead_columns) == expected


def test_with_all_rules_the_source_does_not_read_them():
    p = table("a", "b", "c").map(f, "a", into="d").shuffle().map(f, "d").select("d").batch(2)
    assert after(p, *RULES) == ("read[a] -> map(f) -> select(d) -> shuffle -> map(f) -> select(d) -> batch")
    assert "applied  dead_columns: shuffle(seed=0, window='256MiB'): a dropped below it" in decided(p, *RULES)


KEPT = [
    lambda p: p.map(f, "a").shuffle().batch(2),
    lambda p: p.shuffle().map(dict),
    lambda p: p.map(range, "a", into="l", dtype=list[int]).pack(4),
    lambda p: cedar.zip(p, p.rename({"a": "d", "b": "e", "c": "g"})),
]


@pytest.mark.parametrize("make", KEPT)
def test_what_is_read_or_may_be_read_stays(make):
    p = make(table("a", "b", "c"))
    assert after(p, dead_columns) == line(p.node)


def test_each_user_of_a_shared_pipeline_drops_what_it_does_not_read():
    shared = table("a", "b", "c").map(f, "a")
    p = cedar.zip(shared.shuffle().select("a"), shared.shuffle().select(x="b"))
    assert after(p, dead_columns) == (
        "zip(read -> select(a, b) -> map(f) -> select(a) -> shuffle -> select(a),"
        " read -> select(a, b) -> map(f) -> select(b) -> shuffle -> select(x))"
    )


def test_the_order_of_columns_at_the_end_is_as_written():
    p = table("a", "b", "c").map(f, "b", into="d").map(f, "c", into="a")
    assert after(p, *RULES) == "read[b,c] -> map(f) -> map(f) -> select(a, b, c, d)"


def test_transforms_that_run_as_one_are_not_parted():
    p = table("a", "b", "c").map(AddNoise(), "a", into="d").map(Refuse(1), "d").select("d").batch(2)
    assert "map(AddNoise) -> map(Refuse)" in after(p, dead_columns)


DEAD_RESULTS_DROPPED = [
    (lambda p: p.with_columns(b=col("a") + 1, c=col("a") * 2).select("a", "c"),
     "read -> with_columns(c) -> select(a, c)"),
    (lambda p: p.with_columns(b=col("a") + 1).shuffle().select("a"), "read -> shuffle -> select(a)"),
    (lambda p: p.with_columns(b=col("a")).map(f, "a", into="b"), "read -> map(f)"),
    (lambda p: p.select("a", b=col("a") + 1).batch(2).drop("b"), "read -> select(a) -> batch"),
    (lambda p: p.with_columns(b=col("a") + 1).with_columns(c=col("b") + 1).select("a"), "read -> select(a)"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), DEAD_RESULTS_DROPPED, ids=[e for _, e in DEAD_RESULTS_DROPPED])
def test_results_that_nobody_reads_are_not_computed(make, expected):
    assert after(make(table("a")), dead_results) == expected


DEAD_RESULTS_KEPT = [
    (lambda p: p.map(f, "a", into="b").select("a"), "may have side effects"),
    (lambda p: p.with_columns(b=col("a").cast(pl.Int8)).select("a"), "may fail on some row"),
    (lambda p: p.with_columns(b=col("a") + 1), None),
    (lambda p: p.with_columns(b=col("a") + 1).map(dict), None),
    (lambda p: p.with_columns(b=col("a") + 1).cache("memory").select("a"), None),
]


@pytest.mark.parametrize(("make", "why"), DEAD_RESULTS_KEPT)
def test_why_a_result_is_computed(make, why):
    p = make(table("a"))
    assert after(p, dead_results) == line(p.node)
    assert [why in d for d in decided(p, dead_results)] == ([True] if why else [])


def test_rows_on_which_a_dead_result_fails_are_skipped_as_written():
    from cedar.operators.expressions import WithColumns

    p = table("a").apply(WithColumns((("b", col("a").cast(pl.Int8)),), Skip())).select("a")
    assert after(p, dead_results) == line(p.node)


MAY_FAIL = {
    "lists of other lengths": (col("t") + col("u"), 4),
    "decimals beyond 38 digits": (col("d") * col("d"), 5),
    "a time in no calendar": (col("when").dt.month_start(), 5),
    "a row of a list that is not there": (col("t").list.get(1), 4),
    "texts that are not numbers": (col("s").str.to_integer(), 3),
}


@pytest.mark.heavy
@pytest.mark.parametrize("what", MAY_FAIL)
def test_rows_that_a_dead_result_skips_are_skipped_under_any_plan(what):
    """The row on which an expression fails is dropped, whether or not anyone reads the result."""
    expr, left = MAY_FAIL[what]
    data = pa.table(
        {
            "a": range(6),
            "t": [[1, 2]] * 4 + [[1]] * 2,
            "u": [[1, 2]] * 6,
            "d": pa.array([Decimal(2)] * 5 + [Decimal(10**37)], pa.decimal128(38, 0)),
            "when": pa.array([0] * 5 + [2**63 - 1], pa.timestamp("ms")),
            "s": ["1", "x", "3", "", "5", "y"],
        }
    )
    p = cedar.from_arrow(data).with_columns(b=expr).select("a")
    rows = {}
    for plan in ("off", "auto"):
        with p.loader(plan=plan, executor="inline", on_error=Skip()) as loader:
            rows[plan] = [row["a"] for row in loader]
    assert rows["off"] == rows["auto"]
    assert len(rows["off"]) == left


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


SCAN_COLUMNS_KEPT = [
    (lambda p: p, None),
    (lambda p: p.map(dict), None),
    (lambda p: p.map(f, "a").batch(2), None),
    (lambda p: cedar.from_items([{"a": 1, "b": 2}]).select("a"), "1 of 2 columns are not used, and the source cannot"),
]


@pytest.mark.parametrize(("make", "why"), SCAN_COLUMNS_KEPT)
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


B = col("a").struct.field("b")
E = col("a").struct.field("d").struct.field("e")
ROWS = 300


def text(i):
    return "none" if i == 211 else str(i)


@pytest.fixture
def path(tmp_path):
    values = [None if i % 7 == 0 else {"b": i, "c": text(i), "d": {"e": 2 * i, "f": 0.5}} for i in range(ROWS)]
    lists = [[{"x": i, "y": -i}] for i in range(ROWS)]
    pq.write_table(pa.table({"a": values, "l": lists, "y": range(ROWS)}), tmp_path / "t.parquet", row_group_size=5)
    return str(tmp_path / "t.parquet")


def plus(y):
    return y + 1


def whole(a):
    return 1


SCAN_FIELDS_READ = [
    (lambda p: p.with_columns(s=B).select("s"), "read[a.b] -> with_columns(s) -> select(s)"),
    (lambda p: p.select(s=E + B, y="y"), "read[a.b,a.d.e,y] -> select(s, y)"),
    (lambda p: p.select(s=col("a").struct.field("d")), "read[a.d] -> select(s)"),
    (lambda p: p.select(s=col("a").struct.field("d"), e=E), "read[a.d] -> select(s, e)"),
    (lambda p: p.shuffle().map(plus, "y").filter(B > 3).drop("a", "l"),
     "read[a.b,y] -> shuffle -> map(plus) -> filter(a.struct.field_by_namebb > 3) -> drop(a)"),
    (lambda p: p.rename({"a": "k"}).select(s=col("k").struct.field("b")), "read[a.b] -> rename(a -> k) -> select(s)"),
    (lambda p: p.with_columns(a=B).select("a"), "read[a.b] -> with_columns(a) -> select(a)"),
    (lambda p: p.batch(4).with_columns(s=B).select("s"), "read[a.b] -> batch -> with_columns(s) -> select(s)"),
]  # fmt: skip


@pytest.mark.parametrize("make", [make for make, _ in SCAN_FIELDS_READ], ids=[e for _, e in SCAN_FIELDS_READ])
def test_fields_that_nobody_reads_are_not_read(make, path):
    expected = dict(SCAN_FIELDS_READ)[make].replace("field_by_namebb", "field_by_nameb")
    assert after(make(cedar.read_parquet(path)), scan_columns) == expected


def test_fields_of_filters_in_the_scan_are_read_too(path):
    p = cedar.read_parquet(path).filter(E > 3).select(s=B)
    assert "read[a.b,a.d.e where" in after(p, push_filter, scan_filter, scan_columns)


WHOLE = [
    lambda p: p.select("a"),
    lambda p: p.map(whole, "a", into="s").select("s"),
    lambda p: p.select(s=B.fill_null(0), n=col("a").is_null()),
    lambda p: p.select(col("a").struct.field("b", "c")).select("b"),
    lambda p: cedar.concat(p.select("a"), p.select("a")).select(s=B),
    lambda p: p.select("a").cache("memory").select(s=B),
]


@pytest.mark.parametrize("make", WHOLE)
def test_a_column_that_is_read_as_a_whole_stays_whole(make, path):
    assert "a." not in after(make(cedar.read_parquet(path)), scan_columns).partition("]")[0]


def test_fields_inside_lists_are_read_with_their_list(path):
    inside = col("l").list.eval(pl.element().struct.field("x"))
    assert after(cedar.read_parquet(path).select(s=inside), scan_columns) == "read[l] -> select(s)"


def test_a_source_that_knows_no_fields_gives_whole_columns():
    p = cedar.from_arrow(pa.table({"a": [{"b": 1, "c": 2}], "y": [1]})).select(s=B)
    assert after(p, scan_columns) == "read[a] -> select(s)"


@pytest.mark.parametrize("columns", [("a.b",), ("a.d.e", "a.b", "y"), ("y", "a.d"), ("a.c", "l")])
def test_a_scan_knows_the_types_that_are_read(columns, path):
    source = read_parquet(path)
    assert Scan(source, columns).schema() == source.select(columns).schema()


def test_fields_that_the_user_chose_are_all_there_is(path):
    p = cedar.read_parquet(path, columns=["a.b", "a.d.e", "y"])
    given = p.select("a").batch(10)
    assert rows(given, "off") == rows(given, given.optimize())
    assert after(p.select(s=B), scan_columns) == "read[a.b] -> select(s)"


def rows(p, plan):
    with p.loader(plan=plan, seed=3, workers=2, format="arrow") as loader:
        return list(loader)


RUNS = [
    lambda p: p.with_columns(s=B + E).select("s", "y"),
    lambda p: p.shuffle(seed=1).map(plus, "y").with_columns(s=B).select("s", "y"),
    lambda p: p.map(plus, "y").filter(E > 100).with_columns(s=B).drop("a", "l"),
    lambda p: p.filter(E > 100).select("y"),
    lambda p: p.filter(B.fill_null(0) % 3 == 0).shuffle(seed=2).filter(E > 9).select(s=E, y="y"),
    lambda p: cedar.zip(p.select(s=B), p.select("y").map(plus, "y")),
]


@pytest.mark.heavy
@pytest.mark.parametrize("make", RUNS)
def test_runs_give_the_rows_as_written(make, path, tmp_path):
    p = make(cedar.read_parquet(path)).batch(16, last="keep")
    plan = p.optimize()
    assert any("a." in d.what for d in plan.decisions) or line(plan.root).startswith("read[y")
    written = rows(p, "off")
    assert rows(p, plan) == written
    plan.save(tmp_path / "plan.json")
    assert rows(p, Plan.load(tmp_path / "plan.json", p)) == written
    assert resumed(p, plan, "off", 2) == written[2:]
    assert resumed(p, "off", plan, 2) == written[2:]


def resumed(p, first, then, batches):
    """What comes after some batches of one plan, from its state under another."""
    with p.loader(plan=first, seed=3, workers=2, format="arrow") as loader:
        rest = iter(loader)
        for _ in range(batches):
            next(rest)
        state = loader.state_dict()
    with p.loader(plan=then, seed=3, workers=2, format="arrow") as loader:
        loader.load_state_dict(state)
        return list(loader)


@pytest.mark.heavy
def test_a_block_that_runs_as_written_fits_the_others(path):
    """The filter by a cast fails where it runs first, so some splits are read whole, and their rows meet the others."""

    def even(y):
        return y % 2 == 0

    number = col("a").struct.field("c").cast(pl.Int64) >= 0
    p = cedar.read_parquet(path).filter(even, "y").filter(number).shuffle(seed=1).select(s=B, y="y")
    p = p.batch(16, last="keep")
    assert after(p, *RULES).startswith("read[a.b,a.c,y where")
    assert rows(p, initial_plan(p.node)) == rows(p, "off")


def test_audits_compare_the_fields_that_are_read(path, caplog):
    p = cedar.read_parquet(path).with_columns(y=col("y") + 1).filter(E > 3).shuffle(seed=1).select(s=B, y="y")
    p = p.batch(16, last="keep")
    assert rows(p, initial_plan(p.node)) == rows(p, "off")
    assert not caplog.records
