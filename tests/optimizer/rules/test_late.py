"""late: plans before and after."""

import io

import numpy as np
import polars as pl
import pytest
from PIL import Image

import cedar
from cedar import Skip, col
from cedar.operators import image
from cedar.optimizer.rules import late, push_filter
from tests.operators.toy_transforms import Refuse, Unfold
from tests.optimizer.plan_lines import after, decided, line, measured, table


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
