"""Sampling: which rows and sessions stay."""

from __future__ import annotations

import pyarrow as pa
import pytest

import cedar
from cedar.core.errors import PipelineError
from cedar.operators import recsys
from tests.operators.recsys.toy_columns import log
from tests.toy_sessions import sessions


def rows_of(p, **options):
    with p.loader(**options) as loader:
        return [row["row"] for row in loader]


def test_a_sample_is_fixed_by_seed_and_epoch_and_not_by_the_plan():
    p = log(4000).apply(recsys.Sampling(0.3)).shuffle(seed=1)
    expected = rows_of(p, plan="off", executor="inline")
    assert rows_of(p, executor="processes", workers=2) == expected
    assert 0.25 < len(expected) / 4000 < 0.35
    assert set(rows_of(p, epoch=1)) != set(expected) != set(rows_of(p, seed=1))
    assert rows_of(log(100).apply(recsys.Sampling(0.0))) == []
    assert rows_of(log(100).apply(recsys.Sampling(1.0))) == list(range(100))


@pytest.mark.parametrize("kind", ["ids", "names"])
def test_sessions_stay_whole(kind):
    table = sessions(4000, 8, 0.9)
    if kind == "names":
        table = table.set_column(0, "session", pa.array([f"s{i}" for i in table["session"].to_pylist()]))
    kept = set(rows_of(cedar.from_arrow(table).apply(recsys.Sampling(0.3, by="session"))))
    whole = [sum(8 * s + i in kept for i in range(8)) for s in range(500)]
    assert set(whole) == {0, 8}
    assert 100 < whole.count(8) < 200


def test_rows_to_keep_stay():
    p = cedar.from_items([{"row": i, "click": i % 10 == 0 or None, "n": i % 5} for i in range(1000)])
    kept = rows_of(p.apply(recsys.Sampling(0.1, keep="click")))
    assert set(range(0, 1000, 10)) < set(kept)
    assert 130 < len(kept) < 260
    assert set(rows_of(p.apply(recsys.Sampling(0.0, keep="n")))) == {i for i in range(1000) if i % 5}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda p: p.apply(recsys.Sampling(1.5)), "the rate must be between 0 and 1"),
        (lambda p: p.apply(recsys.Sampling(0.5, by="x")).schema, "no column 'x'"),
        (lambda p: p.apply(recsys.Sampling(0.5, by="a")).schema, "not integers or strings"),
        (lambda p: p.apply(recsys.Sampling(0.5, keep="a")).schema, "not booleans"),
        (lambda p: list(p.batch(2).apply(recsys.Sampling(0.5))), "it samples rows, not batches"),
    ],
)
def test_samples_that_cannot_be(build, message):
    with pytest.raises(PipelineError) as raised:
        build(log())
    assert message in str(raised.value)
