"""Rules about operators that run as one kernel: plans before and after."""

import pyarrow as pa
import pytest

import cedar
from cedar import Skip, col
from cedar.core.errors import PlanError
from cedar.operators import image
from cedar.optimizer.rewrite import rewrite
from cedar.optimizer.rules import group_expressions, inexact
from cedar.plan import graph
from cedar.plan.data import Plan
from cedar.plan.saved import plan_from, text_of
from cedar.plan.steps.facts import facts_of
from tests.optimizer.plan_lines import after, decided, line, measured, rewritten, table

CALLS = dict.fromkeys(range(1, 6), 1e-4)
QUICK = {"call": CALLS, "wall": CALLS}
SLOW = {"call": CALLS, "wall": {**CALLS, 2: 1.0}}


def f(x):
    return x


GROUPED = [
    (lambda p: p.with_columns(x=col("a") + 1).map(f, "b").with_columns(y=col("c") + 1),
     "read -> with_columns(x) -> with_columns(y) -> map(f)"),
    (lambda p: p.filter(col("a") > 1).map(f, "b").map(f, "b").with_columns(y=col("c") + 1),
     "read -> filter(a > 1) -> with_columns(y) -> map(f) -> map(f)"),
    (lambda p: p.batch(2).with_columns(x=col("a") + 1).map(f, "b").with_columns(y=col("c") + 1),
     "read -> batch -> with_columns(x) -> with_columns(y) -> map(f)"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), GROUPED, ids=[e for _, e in GROUPED])
def test_expressions_come_together(make, expected):
    p = make(table("a", "b", "c"))
    assert after(p, group_expressions, profile=measured(**QUICK)) == expected
    assert "us a block" in decided(p, group_expressions, profile=measured(**QUICK))[0]
    assert after(p, group_expressions) == line(p.node)


KEPT = [
    ("next to operators that take long", lambda p: p.with_columns(x=col("a") + 1).map(f, "b").with_columns(y=col("c")),
     SLOW, "it would save 100 of 1,000,200 us a block"),
    ("reads what is between", lambda p: p.with_columns(x=col("a") + 1).map(f, "b").with_columns(y=col("b")), QUICK, ""),
    ("rows are dropped between",
     lambda p: p.with_columns(x=col("a") + 1).filter(f, "b").with_columns(y=col("c")), QUICK, ""),
    ("rows are skipped between",
     lambda p: p.with_columns(x=col("a") + 1).map(f, "b", on_error=Skip()).filter(f, "b").with_columns(y=col("c")),
     QUICK, ""),
    ("nothing to join", lambda p: p.map(f, "b").with_columns(y=col("c")), QUICK, ""),
    ("across a stream operator",
     lambda p: p.with_columns(x=col("a") + 1).shuffle().with_columns(y=col("c")), QUICK, ""),
    ("what makes rows larger",
     lambda p: p.with_columns(x=col("a") + 1).map(f, "b").with_columns(y=col("c")),
     QUICK | {"bytes_in": {3: 8.0}, "bytes_out": {3: 80.0}}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("make", "figures", "why"), [each[1:] for each in KEPT], ids=[each[0] for each in KEPT])
def test_why_an_expression_stays(make, figures, why):
    p = make(table("a", "b", "c"))
    assert after(p, group_expressions, profile=measured(**figures)) == line(p.node)
    assert [why in d for d in decided(p, group_expressions, profile=measured(**figures))] == ([True] if why else [])


pytest.importorskip("numba")


def files(*operators, into="image"):
    p = cedar.from_arrow(pa.table({"bytes": pa.array([b"", b""])})).map(image.decode(), "bytes", into="image")
    for operator in operators:
        p = p.map(operator, "image", into=into)
    return p


def changed(pipeline, **options):
    return [n.operator.label() for n in graph.walk(rewritten(pipeline, inexact, **options)[0])
            if not getattr(n.operator, "exact", True)]  # fmt: skip


APPLIES = [
    [image.resize(8)], [image.random_resized_crop(8)], [image.horizontal_flip(), image.resize((8, 8))],
    [image.crop(0, 0, 4, 4), image.resize(8, interpolation="bicubic"), image.grayscale()],
]  # fmt: skip


@pytest.mark.parametrize("operators", APPLIES)
def test_decoding_below_resampling_may_be_scaled(operators):
    p = files(*operators)
    assert changed(p, exact=False) == ["map(Decode)"]
    (told,) = decided(p, inexact, exact=False)
    assert told.startswith("applied  inexact: map(Decode): JPEG files at 1/2, 1/4 or 1/8, where R")


def test_nothing_is_inexact_unless_asked_for():
    assert changed(files(image.resize(8)), exact=True) == []
    assert decided(files(image.resize(8)), inexact, exact=True) == []


INEXACT_KEPT = [
    [image.resize(8, antialias=False)], [image.resize(8, interpolation="nearest")], [image.horizontal_flip()],
    [image.grayscale(), image.resize(8)],
]  # fmt: skip


@pytest.mark.parametrize("operators", INEXACT_KEPT)
def test_where_it_does_not_apply(operators):
    assert changed(files(*operators), exact=False) == []


def test_others_that_need_the_whole_image_get_it():
    assert changed(files(image.resize(8), into="small"), exact=False) == []
    p = files()
    both = cedar.zip(p.map(image.resize(8), "image"), p.rename({"image": "b", "bytes": "c"}))
    assert changed(both, exact=False) == []


def test_a_saved_plan_says_so_and_needs_leave():
    p = files(image.resize((8, 8)))
    done = rewrite(facts_of(p.node, p.node, lambda node: False, exact=False), (inexact,))
    plan = Plan(p.node, done.root, done.decisions, sweeps=done.sweeps)
    assert "map(Decode), not exact" in str(plan)
    loaded = plan_from(text_of(plan), p)
    assert [getattr(n.operator, "exact", True) for n in graph.walk(loaded.root)] == [True, False, True]
    with pytest.raises(PlanError, match="within a tolerance"):
        p.loader(plan=loaded)
    p.loader(plan=loaded, exact=False)
