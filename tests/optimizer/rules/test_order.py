"""late: plans before and after."""

import io

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from PIL import Image

import cedar
from cedar import Skip, col
from cedar.core.errors import PlanError
from cedar.operators import image
from cedar.optimizer.rewrite import rewrite
from cedar.optimizer.rules import group_expressions, inexact, late, push_filter
from cedar.plan import graph
from cedar.plan.data import Plan
from cedar.plan.saved import plan_from, text_of
from cedar.plan.steps.step import facts_of
from tests.operators.toy_transforms import Refuse, Unfold
from tests.optimizer.plan_lines import after, decided, line, measured, rewritten, table


def f(x):
    return x


GROWS = {"bytes_in": {1: 10.0, 2: 10.0, 3: 10.0}, "bytes_out": {1: 100.0, 2: 10.0, 3: 10.0}}
SHRINKS = {"bytes_in": {2: 100.0}, "bytes_out": {2: 10.0}}

PICTURES = {"bytes_in": {1: 10.0, 2: 1000.0, 3: 100.0}, "bytes_out": {1: 1000.0, 2: 100.0, 3: 100.0}}
SMALL_AGAIN = {"bytes_in": {1: 10.0, 2: 1000.0, 3: 10.0}, "bytes_out": {1: 1000.0, 2: 10.0, 3: 10.0}}

MOVED = [
    (
        lambda p: p.map(f, "a").map(f, "a").map(f, "b").batch(1024),
        PICTURES,
        "read -> batch -> map(f) -> map(f) -> map(f)",
    ),
    (lambda p: p.map(f, "a").shuffle().filter(col("a") > 1), GROWS, "read -> shuffle -> map(f) -> filter(a > 1)"),
    (lambda p: p.map(f, "a").batch(1024), GROWS, "read -> batch -> map(f)"),
    (lambda p: p.map(f, "a").shuffle().batch(1024), GROWS, "read -> shuffle -> batch -> map(f)"),
    (lambda p: p.map(dict).shuffle(), GROWS, "read -> shuffle -> map(dict)"),
    (lambda p: p.shuffle().map(f, "a").batch(1024), SHRINKS, "read -> map(f) -> shuffle -> batch"),
]


@pytest.mark.parametrize(("make", "sizes", "expected"), MOVED, ids=[e for *_, e in MOVED])
def test_rows_are_moved_about_while_they_are_small(make, sizes, expected):
    p = make(table("a", "b"))
    assert after(p, late, profile=measured(**sizes)) == expected
    assert "bytes a row" in decided(p, late, profile=measured(**sizes))[0]
    assert after(p, late) == line(p.node)


KEPT = [
    (lambda p: p.map(f, "a").map(f, "a").map(f, "b").batch(1024), SMALL_AGAIN, None),
    (lambda p: p.map(f, "a").shuffle(by="a"), GROWS, "groups rows by what it may write"),
    (lambda p: p.map(f, "a").batch(1024, last="pad"), GROWS, "pads batches"),
    (lambda p: p.map(f, "a", on_error=Skip()).shuffle(), GROWS, "may skip rows"),
    (lambda p: p.map(f, "a").filter(lambda a: True, "a", on_error=Skip()).batch(1024), GROWS, None),
    (lambda p: p.flat_map(range, "a").shuffle(), GROWS, None),
    (lambda p: p.map(f, "a").take(2), GROWS, None),
    (lambda p: p.batch(1024).map(f, "a"), SHRINKS, None),
]


@pytest.mark.parametrize(("make", "sizes", "why"), KEPT)
def test_why_an_operator_stays(make, sizes, why):
    def skips(node):
        return getattr(node.logical.operator, "on_error", None) is not None

    p = make(table("a", "b"))
    more = {"profile": measured(**sizes), "skips": skips}
    assert after(p, late, **more) == line(p.node)
    assert [why in d for d in decided(p, late, **more)] == ([True] if why else [])


def test_rows_that_may_be_missing_below_keep_operators_below_batch():
    p = table("a").map(f, "a", on_error=Skip()).map(f, "a").batch(1024)
    sizes = {"bytes_in": {2: 10.0}, "bytes_out": {2: 100.0}}
    skips = {p.node.inputs[0].inputs[0]}
    assert (
        "rows may be skipped below"
        in decided(p, late, profile=measured(**sizes), skips=lambda n: n.logical in skips)[0]
    )


WIDER = col("a").cast(pl.Float64)
HOT = pl.concat_list([col("a") == i for i in range(8)])
WIDENED = [
    ("across shuffle", lambda p: p.with_columns(x=WIDER).shuffle(), "read -> shuffle -> with_columns(x)"),
    ("across batch", lambda p: p.with_columns(x=HOT).batch(1024), "read -> batch -> with_columns(x)"),
    ("across both", lambda p: p.select(x=HOT, b="b").shuffle().batch(1024), "read -> shuffle -> batch -> select(x, b)"),
    ("below filters that do not read it", lambda p: p.with_columns(x=HOT).filter(col("b") > 1).shuffle(),
     "read -> filter(b > 1) -> shuffle -> with_columns(x)"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), [each[1:] for each in WIDENED], ids=[each[0] for each in WIDENED])
def test_conversions_and_type_widening_come_late(make, expected):
    p = make(table("a", "b"))
    assert after(p, push_filter, late, profile=measured(**GROWS)) == expected


def test_a_narrowing_conversion_comes_early():
    p = table("a", "b").shuffle().with_columns(a=col("a").cast(pl.Int8)).batch(1024)
    assert after(p, late, profile=measured(**SHRINKS)) == "read -> with_columns(a) -> shuffle -> batch"


def whole(a):
    return a * 2


def test_batch_comes_before_vectorised_maps():
    p = table("a", "b").map_batches(whole, "a").batch(1024)
    assert after(p, late, profile=measured(**GROWS)) == "read -> batch -> map_batches"


def test_a_function_on_groups_of_rows_sees_the_same_groups():
    p = table("a", "b").map_batches(whole, "a", size=3).batch(1024)
    assert after(p, late, profile=measured(**GROWS)) == line(p.node)


def test_a_small_gain_is_not_worth_a_task_for_each_batch():
    p = table("a").map(f, "a").batch(2)
    assert after(p, late, profile=measured(**GROWS)) == line(p.node)


def test_what_decodes_moves_above_a_batch_before_anything_is_measured():
    p = table("a").map(Unfold(), "a").map(f, "a").shuffle().batch(4)
    assert after(p, late) == "read -> shuffle -> batch -> map(Unfold) -> map(f)"
    padded = table("a").map(Unfold(), "a").batch(4, last="pad")
    assert after(padded, late) == line(padded.node)
    skipping = table("a").map(Unfold(), "a", on_error=Skip()).batch(4)
    skips = {skipping.node.inputs[0]}
    assert after(skipping, late, skips=lambda node: node.logical in skips) == line(skipping.node)


def test_what_runs_as_one_kernel_with_what_has_moved_goes_along():
    p = table("a").map(Refuse(1), "a").map(Refuse(2), "a").map(Refuse(3), "a").batch(1024)
    sizes = {"bytes_in": {1: 100.0, 2: 80.0, 3: 80.0}, "bytes_out": {1: 80.0, 2: 80.0, 3: 400.0}}
    moved = "read -> batch -> map(Refuse) -> map(Refuse) -> map(Refuse)"
    assert after(p, late, profile=measured(**sizes)) == moved
    assert "one kernel with map(Refuse)" in decided(p, late, profile=measured(**sizes))[-1]
    large = {**sizes, "bytes_in": {1: 1000.0, 2: 80.0, 3: 80.0}}
    stays = "read -> map(Refuse) -> batch -> map(Refuse) -> map(Refuse)"
    assert after(p, late, profile=measured(**large)) == stays
    other = table("a", "b").map(Refuse(1), "a").map(f, "a").map(Refuse(3), "a").batch(1024)
    assert after(other, late, profile=measured(**sizes)) == "read -> map(Refuse) -> map(f) -> batch -> map(Refuse)"


def test_what_decodes_is_run_above_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    p = cedar.from_items([{"x": i, "image": file.getvalue()} for i in range(40)]).map(image.decode(), "image").batch(8)
    with p.loader() as loader:
        got = [batch["x"].tolist() for batch in loader]
        assert "late: map(Decode): above batch(8" in loader.explain().replace("\n", " ")
    assert got == [list(range(i, i + 8)) for i in range(0, 40, 8)]
    assert not caplog.records, "the plan is taken as it is"


def test_what_balance_does_not_need_runs_on_a_ranks_own_rows():
    p = table("a", "b").map(f, "b").map(f, "a").shuffle().batch(4).balance("b")
    assert after(p, late) == "read -> map(f) -> shuffle -> batch -> balance -> map(f)"
    assert "above balance('b') (for a rank's own rows alone)" in decided(p, late)[0]
    assert "balance('b') groups rows by what it may write" in decided(p, late)[-1]
    assert after(p, late, profile=measured(**SHRINKS)) == after(p, late)
    for stays in (
        table("a", "b").map(f, "a").batch(4, last="pad").balance("b"),
        table("a", "b").map(f, "a").batch(4).balance(lambda row: row["b"]),
        table("a", "b").filter(col("a") > 1).batch(4).balance("b"),
        table("a", "b").select("b").batch(4).balance("b"),
    ):
        assert after(stays, late) == line(stays.node)


CALLS = dict.fromkeys(range(1, 6), 1e-4)
QUICK = {"call": CALLS, "wall": CALLS}
SLOW = {"call": CALLS, "wall": {**CALLS, 2: 1.0}}


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


GROUPS_KEPT = [
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


@pytest.mark.parametrize(
    ("make", "figures", "why"), [each[1:] for each in GROUPS_KEPT], ids=[each[0] for each in GROUPS_KEPT]
)
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
