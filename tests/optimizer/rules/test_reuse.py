"""Rules that place caches: plans before and after."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import Budget, col
from cedar.optimizer.rules import cache_place
from cedar.optimizer.rules.reuse import layout_place
from cedar.plan.steps.step import CacheLimits
from tests.optimizer.plan_lines import after, decided, line, measured, table

ROWS = 1000
READ = {"cpu": {0: 1e-6}, "columns": {0: {"a": 100.0}}}
PLENTY = CacheLimits(1 << 30)


def f(x):
    return x


def g(x):
    return x


def drawn(x, rng):
    return x


def figures(*operators, **more):
    """Of a source, and of operators above it: (seconds a row, bytes of column a behind it)."""
    cpu = READ["cpu"] | {i: seconds for i, (seconds, _) in operators}
    columns = READ["columns"] | {i: {"a": size} for i, (_, size) in operators}
    return measured(cpu=cpu, columns=columns, rows=dict.fromkeys(cpu, ROWS), **more)


def kept(p, profile, room=PLENTY, rule=cache_place):
    return after(p, rule, profile=profile, keeping=room)


def test_without_figures_a_cache_stays():
    p = table("a", rows=ROWS).map(f, "a").cache()
    assert after(p, cache_place) == line(p.node)
    assert after(p, cache_place, keeping=PLENTY) == line(p.node)


MOVED = [
    ("above what costs", lambda p: p.cache().map(f, "a"), [(2, (1e-3, 100.0))], "read -> map(f) -> cache"),
    ("below what makes rows larger at no cost", lambda p: p.map(f, "a").map(g, "a").cache(),
     [(1, (1e-3, 100.0)), (2, (1e-7, 1e6))], "read -> map(f) -> cache -> map(g)"),
    ("below the first random operator", lambda p: p.cache().map(f, "a").map(drawn, "a", random=True),
     [(2, (1e-3, 100.0)), (3, (1e-3, 100.0))], "read -> map(f) -> cache -> map(drawn)"),
    ("within the operators above a source", lambda p: p.cache().map(f, "a").shuffle().map(g, "a"),
     [(2, (1e-3, 100.0)), (4, (1e-3, 100.0))], "read -> map(f) -> cache -> shuffle -> map(g)"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "seen", "expected"), [each[1:] for each in MOVED], ids=[each[0] for each in MOVED])
def test_rows_are_kept_where_that_saves_most(make, seen, expected):
    p = make(table("a", rows=ROWS))
    assert kept(p, figures(*seen)) == expected
    told = decided(p, cache_place, profile=figures(*seen), keeping=PLENTY)
    assert len(told) == 1
    assert "a row after the first epoch" in told[0]


def test_rows_that_would_not_fit_are_kept_before_they_grow():
    p = table("a", rows=ROWS).map(f, "a").map(g, "a").cache()
    seen = figures((1, (1e-3, 100.0)), (2, (5e-4, 1e5)))
    assert kept(p, seen) == line(p.node)
    assert kept(p, seen, CacheLimits(1 << 20)) == "read -> map(f) -> cache -> map(g)"


GONE = [
    ("reading a row back takes", 1e6, PLENTY),
    ("no memory to store rows", 100.0, CacheLimits(0)),
]


@pytest.mark.parametrize(("why", "size", "room"), GONE)
def test_a_cache_that_saves_nothing_goes(why, size, room):
    p = table("a", rows=ROWS).map(f, "a").cache().batch(2)
    seen = figures((0, (1e-6, size)), (1, (1e-5, size)))
    assert kept(p, seen, room) == "read -> map(f) -> batch"
    assert why in decided(p, cache_place, profile=seen, keeping=room)[0]


STAYS = [
    ("a place that the user named", lambda p: p.cache("memory").map(f, "a"), None),
    ("best where it is", lambda p: p.map(f, "a").cache(), "best where it is: saves"),
    ("across a stream operator", lambda p: p.map(f, "a").shuffle().cache(), None),
    ("two of them", lambda p: p.cache().map(f, "a").cache(), None),
]


@pytest.mark.parametrize(("make", "why"), [each[1:] for each in STAYS], ids=[each[0] for each in STAYS])
def test_why_a_cache_stays(make, why):
    p = make(table("a", rows=ROWS))
    seen = figures((1, (1e-3, 100.0)), (2, (1e-3, 100.0)))
    assert kept(p, seen) == line(p.node)
    told = decided(p, cache_place, profile=seen, keeping=PLENTY)
    assert [why in d for d in told] == ([True] if why else [])


def test_a_source_that_cannot_be_split_keeps_its_cache_where_it_is(tmp_path):
    p = table("a", rows=ROWS).cache().map(f, "a")
    more = {"profile": figures((2, (1e-3, 100.0))), "keeping": PLENTY, "streams": lambda _: True}
    assert after(p, cache_place, **more) == line(p.node)
    assert "it cannot be split" in decided(p, cache_place, **more)[0]


def test_a_cache_is_put_in_only_where_the_budget_says_so():
    p = table("a", rows=ROWS).map(f, "a").batch(2)
    seen = figures((1, (1e-3, 100.0)))
    assert kept(p, seen) == line(p.node)
    wanted = CacheLimits(1 << 30, wanted=True)
    assert kept(p, seen, wanted) == "read -> map(f) -> cache -> batch"
    assert (
        "applied  cache_place: cache('auto'): above map(f)" in decided(p, cache_place, profile=seen, keeping=wanted)[0]
    )
    named = table("a", rows=ROWS).map(f, "a").shuffle().cache("memory")
    assert kept(named, seen, wanted) == line(named.node)


def slow(a):
    return sum(range(2000)) + a


@pytest.mark.heavy
@pytest.mark.parametrize("where", ["auto", None])
def test_every_epoch_gives_the_rows_as_written(where, tmp_path):
    pq.write_table(pa.table({"a": range(400), "b": range(400)}), tmp_path / "t.parquet", row_group_size=50)
    p = cedar.read_parquet(str(tmp_path / "t.parquet"))
    p = p.cache() if where else p
    p = p.map(slow, "a").filter(col("b") % 3 > 0).select("a").shuffle(seed=1).batch(16)
    plan = p.optimize(Budget(cache="64MiB"))
    (told,) = [str(d) for d in plan.decisions if d.rule == "cache_place"]
    assert told.startswith("applied")
    plan.save(tmp_path / "plan.json")
    written = epochs(p, "off")
    assert epochs(p, plan) == written
    assert epochs(p, "auto") == written
    assert epochs(p, cedar.Plan.load(tmp_path / "plan.json", p)) == written


def epochs(p, plan):
    with p.loader(plan=plan, seed=3, workers=2, format="arrow") as loader:
        return [list(loader) for _ in range(3)]


@pytest.fixture
def path(tmp_path):
    pq.write_table(pa.table({"a": range(4), "b": range(4)}), tmp_path / "t.parquet")
    return str(tmp_path / "t.parquet")


def keeping(layout="new", streams=False):
    return {"keeping": CacheLimits(0, layout=layout), "streams": lambda node: streams}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: p.batch(2), "read -> cache -> batch"),
        (lambda p: p.map(f, "a").batch(2), "read -> map(f) -> cache -> batch"),
        (
            lambda p: p.map(f, "a").map(drawn, "a", random=True).map(f, "b"),
            "read -> map(f) -> cache -> map(drawn) -> map(f)",
        ),
        (lambda p: p.map(f, "a").cache("memory"), "read -> map(f) -> cache"),  # where the user said
    ],
)
def test_rows_are_laid_out_above_what_is_the_same_in_every_epoch(make, expected, path):
    p = make(cedar.read_parquet(path))
    assert after(p, layout_place, **keeping()) == expected
    assert after(p, layout_place, **keeping(layout=None)) == after(p)


def test_what_is_laid_out_is_told(path):
    (told,) = decided(cedar.read_parquet(path).map(f, "a").batch(2), layout_place, **keeping())
    assert told == "applied  layout_place: layout('new'): above map(f)"


def test_only_files_that_can_be_split_are_laid_out(path):
    assert after(table("a").batch(2), layout_place, **keeping()) == "read -> batch"
    (told,) = decided(cedar.read_parquet(path).batch(2), layout_place, **keeping(streams=True))
    assert told.startswith("refused  layout_place: layout('new')")
    assert "it cannot be split" in told
