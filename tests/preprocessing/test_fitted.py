"""fit: what is learned and applied, compared with numpy and polars; the same in every order, on any rank."""

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cedar
from cedar.core import block
from cedar.pipeline.surveying import survey
from cedar.preprocessing import MinMaxScaler, Quantiles, StandardScaler, Vocabulary, steps
from cedar.preprocessing import fitted as fitted_module

NUMBERS = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6), st.just(math.nan)), min_size=1, max_size=60)


@given(values=NUMBERS, part=st.sampled_from([7, 1000]))
@settings(max_examples=30, deadline=None)
def test_like_numpy(values: list[float | None], part: int) -> None:
    rows = cedar.from_arrow(pa.table({"a": pa.array(values, pa.float64()), "b": pa.array(values, pa.float64())}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block, "_FRAME_ROWS", part)
        fitted = cedar.fit(rows, StandardScaler("a"), MinMaxScaler("b"))
    known = np.array([v for v in values if v is not None and not math.isnan(v)])
    if len(known):
        assert fitted["a"]["mean"] == pytest.approx(known.mean(), rel=1e-9, abs=1e-6)
        assert fitted["a"]["std"] == pytest.approx(known.std(), rel=1e-6, abs=1e-6)
        assert (fitted["b"]["min"], fitted["b"]["max"]) == (known.min(), known.max())
    found = rows.apply(fitted).to_polars()
    assert found.schema == {"a": pl.Float32, "b": pl.Float32}
    for name in "ab":
        assert found[name].is_null().to_list() == [v is None for v in values]
    assert found["b"].drop_nulls().drop_nans().is_between(0, 1).all()


def test_a_column_that_does_not_vary_becomes_zero() -> None:
    rows = cedar.from_items([{"x": 5, "y": 5}] * 3)
    assert list(rows.apply(cedar.fit(rows, StandardScaler("x"), MinMaxScaler("y")))) == [{"x": 0.0, "y": 0.0}] * 3


@pytest.mark.parametrize("drawn", [100, 10**6])
def test_quantiles_have_about_as_many_rows_each(monkeypatch: pytest.MonkeyPatch, drawn: int) -> None:
    from cedar.preprocessing import steps

    monkeypatch.setattr(steps, "_MAX_SAMPLE", drawn)
    monkeypatch.setattr(block, "_FRAME_ROWS", 300)
    values = np.random.default_rng(0).lognormal(size=2000)
    rows = cedar.from_arrow(pa.table({"x": values}))
    fitted = cedar.fit(rows, Quantiles("x", bins=4))
    counts = np.bincount([row["x"] for row in rows.apply(fitted)])
    assert len(counts) == 4
    assert abs(counts - 500).max() < (2 if drawn > 2000 else 200)
    if drawn > 2000:
        assert fitted["x"]["borders"] == np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    few = cedar.from_items([{"x": None}, {"x": 1.0}, {"x": 1.0}])
    assert [row["x"] for row in few.apply(cedar.fit(few, Quantiles("x")))] == [None, 0, 0]


@pytest.mark.parametrize(
    ("values", "bins"),
    [
        (pa.array([True, None, False, False]), [1, None, 0, 0]),
        (pa.array([Decimal("1.5"), None, Decimal("-2.25"), Decimal(9)]), [0, None, 0, 1]),
        (pa.nulls(3), [None, None, None]),
    ],
)
def test_quantiles_of_what_other_scalers_take(values: pa.Array, bins: list[int | None]) -> None:
    rows = cedar.from_arrow(pa.table({"x": values}))
    fitted = cedar.fit(rows, Quantiles("x", bins=2))
    for executor in ("inline", "processes"):
        assert [row["x"] for row in rows.apply(fitted).loader(executor=executor, workers=1)] == bins
    assert repr(fitted) == "<Fitted: Quantiles of x>"


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_the_same_on_any_rank_and_below_any_shuffle(monkeypatch: pytest.MonkeyPatch, rank: int | None) -> None:
    rows = cedar.from_items([{"x": math.sin(i), "c": f"w{i % 7 * i % 5}"} for i in range(500)])
    want = cedar.fit(rows, StandardScaler("x"), Vocabulary("c"))
    if rank is not None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
    assert cedar.fit(rows.shuffle(seed=1), StandardScaler("x"), Vocabulary("c")) == want


def test_saved_as_json_and_read_again(tmp_path: Path) -> None:
    rows = cedar.from_items([{"x": 0.1 * i, "y": i, "c": "ab"[i % 2], "l": [i, None], "q": i} for i in range(20)])
    steps = (
        StandardScaler("x"),
        MinMaxScaler(["y"]),
        Vocabulary("c", min_count=2, null="own"),
        Vocabulary("l"),
        Quantiles("q", 3),
    )
    fitted = cedar.fit(rows, *steps)
    fitted.save(tmp_path / "fitted.json")
    assert json.loads((tmp_path / "fitted.json").read_text())["cedar"] == "fitted 1"
    again = cedar.Fitted.load(tmp_path / "fitted.json")
    assert again == fitted
    assert rows.apply(again).to_arrow() == rows.apply(fitted).to_arrow()
    assert again["c"].size == 4
    for text in (
        "",
        "[]",
        '{"cedar": "other"}',
        '{"cedar": "fitted 1", "steps": [{"is": "Mine", "with": {}, "learned": {}}]}',
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(cedar.SourceError, match="is not a file of fitted preprocessors"):
            cedar.Fitted.load(tmp_path / "bad.json")


def test_applied_to_other_rows_and_in_batches() -> None:
    train = cedar.from_items([{"x": 1.0, "c": "a"}, {"x": 3.0, "c": "a"}, {"x": 2.0, "c": "b"}])
    fitted = cedar.fit(train, StandardScaler("x"), Vocabulary("c", min_count=2))
    (batch,) = cedar.from_items([{"x": 2.0, "c": "new"}, {"x": 3.0, "c": None}]).apply(fitted).batch(2).loader()
    assert batch["c"].tolist() == [0, 0]
    assert batch["x"].tolist() == pytest.approx([0.0, 1.2247449])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: cedar.fit(p), "takes a pipeline and preprocessors"),
        (lambda p: cedar.fit(p, StandardScaler("z")), "no column 'z'"),
        (lambda p: cedar.fit(p, StandardScaler("x"), MinMaxScaler("x")), "two steps for column 'x'"),
        (lambda p: cedar.fit(p, StandardScaler("c")), "not numbers"),
        (lambda p: cedar.fit(p, StandardScaler("i")), "infinite"),
        (lambda p: cedar.fit(p.batch(2), StandardScaler("x")), "gives batches"),
        (lambda p: cedar.fit(p.sample(n=2), StandardScaler("x")), "fit after sample"),
        (lambda _: StandardScaler([]), "at least one column"),
        (lambda _: Quantiles("x", 1), r"Quantiles\(bins\) is 1"),
        (lambda _: Vocabulary("x", null="zero"), "null='zero'"),  # type: ignore[arg-type]
        (lambda _: Vocabulary("x", min_count="2"), r"Vocabulary\(min_count\) is .2."),  # type: ignore[arg-type]
        (lambda _: Vocabulary("x", max_size=0), r"Vocabulary\(max_size\) is 0"),
    ],
)
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(cedar.PipelineError, match=message):
        make(cedar.from_items([{"x": 1.0, "c": "a", "i": math.inf}]))


def test_the_sample_of_quantiles_does_not_depend_on_how_values_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_MAX_SAMPLE", 50)
    values, found = np.random.default_rng(3).normal(size=1000), []
    for cut in (1, 60, 333, 1000):
        learner = Quantiles("x", bins=5).learner("x")
        for start in range(0, 1000, cut):
            learner.add(pl.Series("x", values[start : start + cut]))
        found.append(learner.learned())
    assert all(each == found[0] for each in found)
    sample = values[np.argsort(np.random.default_rng(0).random(1000))[:50]]
    assert found[0]["borders"] == pytest.approx(np.quantile(sample, [0.2, 0.4, 0.6, 0.8]).tolist())


def test_other_ranks_and_later_runs_find_what_was_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, passes = tmp_path / "x.parquet", []
    monkeypatch.setattr(fitted_module, "survey", lambda *args: passes.append(args[1]) or survey(*args))
    pq.write_table(pa.table({"x": [1.0, 3.0], "c": ["a", "b"]}), path)
    rows = cedar.read_parquet(str(path))
    first = cedar.fit(rows, StandardScaler("x"), Vocabulary("c"))
    again = cedar.fit(cedar.read_parquet(str(path)).shuffle(seed=1), StandardScaler("x"), Vocabulary("c"))
    assert first == again
    assert passes == [["x", "c"]]
    cedar.fit(rows, StandardScaler("x"), Vocabulary("c", min_count=2))
    assert len(passes) == 2
    pq.write_table(pa.table({"x": [1.0, 5.0, 9.0], "c": ["a", "b", "c"]}), path)
    assert cedar.fit(cedar.read_parquet(str(path)), StandardScaler("x"))["x"]["mean"] == 5
    assert len(passes) == 3


def test_a_step_of_ones_own_learns_in_every_run(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, 3.0]}), tmp_path / "x.parquet")
    rows, learned = cedar.read_parquet(str(tmp_path / "x.parquet")), []

    class Own(StandardScaler):
        def learner(self, column: str) -> Any:
            learned.append(column)
            return super().learner(column)

    for _ in range(2):
        cedar.fit(rows, Own("x"))
    assert learned == ["x", "x"]
