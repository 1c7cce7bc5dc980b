"""Transforms in pipelines: types, errors and groups."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar import Skip
from cedar.core.columns import TensorType
from cedar.core.errors import PipelineError, RowError
from cedar.operators import recsys
from cedar.operators.algebra import algebra_of
from tests.operators.recsys.toy_columns import log
from tests.toy_sessions import sessions


def transformed(p):
    return (
        p.map(recsys.FirstX(3), "a")
        .map(recsys.SigridHash(1, 1000), "a")
        .map(recsys.NGram(2), "a", "b", into="grams")
        .map(recsys.Enumerate(), "b", into="places")
        .map(recsys.ComputeScore("jaccard_similarity"), "a", "b", into="near")
        .map(recsys.Onehot((10.0, 30.0)), "row", into="hot")
    )


@pytest.mark.parametrize("place", ["rows", "batches"])
@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_transforms_give_the_same_with_groups_and_without(place, executor):
    batches = {}
    for mark in (True, False):
        p = log().dedup([["a", "b"]]) if mark else log()
        p = transformed(p).batch(16) if place == "rows" else transformed(p.batch(16))
        with p.loader(executor=executor, workers=2) as loader:
            batches[mark] = list(loader)
    for one, other in zip(batches[True], batches[False], strict=True):
        assert one["a"].expand() == {"a": other["a"], "b": other["b"]}
        for name in ("grams", "places"):
            assert one[name] == other[name]
        assert np.array_equal(one["near"], other["near"])
        assert np.array_equal(one["hot"], other["hot"])


def test_schemas_know_what_transforms_make():
    assert transformed(log()).schema == {
        "session": pa.int64(), "row": pa.int64(), "a": pa.large_list(pa.int64()), "b": pa.large_list(pa.int64()),
        "grams": pa.large_list(pa.int64()), "places": pa.large_list(pa.int64()), "near": pa.float32(),
        "hot": TensorType((3,), "float32"),
    }  # fmt: skip


def test_transforms_run_on_unique_rows_of_their_group():
    seen = []

    class Watched(recsys.Enumerate):
        def columns(self, *columns):
            seen.append(len(columns[0]))
            return super().columns(*columns)

    p = cedar.from_arrow(sessions(64, 8, 1.0)).dedup([["a"]]).map(Watched(), "a").batch(64)
    with p.loader(plan="off", executor="inline") as loader:
        (batch,) = loader
    assert seen[-1] == 8
    assert batch["a"].unique < 8  # lists of equal length are equal now
    seen.clear()
    p = cedar.from_arrow(sessions(64, 8, 1.0)).map(Watched(), "a").dedup([["a"]], session="session").batch(64)
    with p.loader(executor="inline") as loader:
        list(loader)
    assert seen[-1] == 8  # the optimizer groups first


def test_what_they_do_to_a_value_is_declared():
    marks = {
        "per-value": [recsys.SigridHash(0, 5), recsys.PositiveModulus(5), recsys.Bucketize((1,)), recsys.Clamp(0, 1),
                      recsys.BoxCox(0.0), recsys.Logit(), recsys.MapId({1: 1})],
        "length": [recsys.FirstX(2)],
        None: [recsys.Enumerate(), recsys.NGram(2), recsys.Cartesian(), recsys.Onehot((1,))],
    }  # fmt: skip
    for algebra, transforms in marks.items():
        assert [algebra_of(transform) for transform in transforms] == [algebra] * len(transforms)
    p = log().map(recsys.SigridHash(0, 5), "a").map(recsys.FirstX(2), "a")
    assert not p.node.operator.effects().per_row
    assert p.node.operator.label() == "map(FirstX)"


def test_rows_without_a_result_are_blamed_or_skipped():
    p = cedar.from_items([{"x": 1.0}, {"x": -1.0}, {"x": 2.0}])
    with pytest.raises(RowError, match=r"map\(BoxCox\): BoxCox of -1.0") as raised:
        list(p.map(recsys.BoxCox(1.0), "x"))
    assert raised.value.row.row == 1
    assert raised.value.site is not None
    assert [row["x"] for row in p.map(recsys.BoxCox(1.0), "x", on_error=Skip())] == [0.0, 1.0]
    with pytest.raises(RowError, match="BoxCox of -1.0"):
        list(p.batch(3).map(recsys.BoxCox(1.0), "x"))
    marked = log().dedup([["a", "b"]]).map(recsys.Cartesian(most=20), "a", "b", into="c", on_error=Skip()).batch(8)
    plain = log().map(recsys.Cartesian(most=20), "a", "b", into="c", on_error=Skip()).batch(8)
    with marked.loader() as one, plain.loader() as other:
        assert [batch["row"].tolist() for batch in one] == [batch["row"].tolist() for batch in other]
        assert one.report().skipped == other.report().skipped != {}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda p: p.map(recsys.Cartesian(), "a"), "it reads 2 columns, not 1"),
        (lambda p: p.map(recsys.FirstX(2)), "it reads 1 column, not 0"),
        (lambda p: p.map(recsys.NGram(2)), "it reads at least one column"),
        (lambda p: p.map(recsys.FirstX(2), "a", into=("a", "b")), "it writes one column, not 2"),
        (lambda p: p.map(recsys.FirstX(2), "a", dtype=int), "a transform does not accept it"),
        (lambda p: p.map(recsys.FirstX(2), "a", random=True), "a transform does not accept it"),
        (lambda p: p.map(recsys.FirstX(2), "row").schema, "FirstX takes lists, not int64"),
        (lambda p: p.map(recsys.FirstX(2), "x").schema, "no column 'x'"),
    ],
)
def test_pipelines_that_do_not_fit_a_transform(build, message):
    with pytest.raises(PipelineError) as raised:
        build(log())
    assert message in str(raised.value)


def test_a_type_that_only_a_run_can_tell_is_checked_there():
    p = cedar.from_items([{"x": 1}]).map(lambda x: x, "x").map(recsys.FirstX(2), "x")
    with pytest.raises(PipelineError, match="FirstX takes lists") as raised:
        list(p)
    assert raised.value.site is not None
