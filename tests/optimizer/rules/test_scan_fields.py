"""scan_columns down to the fields of struct columns: plans before and after, and the rows of runs."""

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import Plan, col
from cedar.datasets.parquet import read_parquet
from cedar.optimizer.rules import RULES, push_filter, scan_columns, scan_filter
from cedar.pipeline.planning import initial_plan
from cedar.plan.scan import Scan
from tests.optimizer.plan_lines import after, line

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


READ = [
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


@pytest.mark.parametrize("make", [make for make, _ in READ], ids=[e for _, e in READ])
def test_fields_that_nobody_reads_are_not_read(make, path):
    expected = dict(READ)[make].replace("field_by_namebb", "field_by_nameb")
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
