"""sample."""

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import col
from cedar.core.errors import CedarError, PipelineError, RowError
from cedar.operators import sample
from cedar.operators.sample import Sample
from cedar.operators.take import Repeat
from cedar.store import keep
from tests.toy_stream import ListStream, check, context, drain

SEEDS = st.integers(0, 10**6)


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch):
    """Runs of 4 rows, so that a few rows are many runs."""
    monkeypatch.setattr(sample, "RUN", 4)
    monkeypatch.setattr(sample, "_POSITION_INTERVAL", 2)
    monkeypatch.setattr(sample, "_MAX_GAP", 1)


@st.composite
def toys(draw):
    weights = draw(st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.5, 1.0, 7.0]), min_size=1, max_size=30))
    weights[draw(st.integers(0, len(weights) - 1))] = 1.0
    return weights, ListStream(
        {"x": list(range(len(weights))), "w": weights}, seed=draw(SEEDS), known=draw(st.booleans()), marks=[3]
    )


@given(toys(), st.none() | st.integers(0, 40), st.sampled_from([None, "w"]), SEEDS, st.integers(0, 2))
def test_rows_are_drawn_in_order_of_the_input(drawn, n, by, seed, lap):
    weights, source = drawn
    units = check(Sample(by, n=n), [source], seed=seed, lap=lap)
    rows = [key[3] for key, _ in units]
    assert len(rows) == (len(weights) if n is None else n)
    assert rows == sorted(rows)
    assert [row["x"] for _, row in units] == rows
    assert len({key for key, _ in units}) == len(units)
    if by:
        assert all(weights[row] > 0 for row in rows)


@given(toys(), SEEDS)
def test_a_known_count_changes_nothing(drawn, seed):
    weights, source = drawn
    twin = ListStream({"x": list(range(len(weights))), "w": weights}, seed=seed, known=source.count is None)
    for operator in (Sample("w", n=9), Sample(n=9)):
        assert check(operator, [source], opens=0) == check(operator, [twin], opens=0)


def test_shares_follow_the_weights():
    weights = [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 10.0]
    source = ListStream({"w": weights}, late=0)
    stream = Sample("w", n=20_000).stream((source,), context())
    units, _, _ = drain(stream.open([stream.start(), 0]), random.Random(0))
    seen = Counter(key[3] for key, _ in units)
    assert np.array([seen[i] for i in range(8)]) / 1000 == pytest.approx(weights, abs=0.5)


@given(toys(), st.floats(0, 1), st.sampled_from([None, "w"]), SEEDS)
def test_without_replacement_no_row_comes_twice(drawn, fraction, by, seed):
    weights, source = drawn
    there = len(weights) if by is None else sum(w > 0 for w in weights)
    n = round(fraction * there)
    units = check(Sample(by, n=n, replace=False), [source], seed=seed)
    rows = [key[3] for key, _ in units]
    assert len(rows) == n == len(set(rows))
    assert by is None or all(weights[row] > 0 for row in rows)
    if by is None:
        assert [key[3] for key, _ in check(Sample(fraction=fraction, replace=False), [source], seed=seed)] == rows
    with pytest.raises(PipelineError, match="without replacement"):
        stream = Sample(by, n=there + 1, replace=False).stream((source,), context())
        drain(stream.open([stream.start(), 0]), random.Random(0))


def test_heavier_rows_are_drawn_more_often_without_replacement():
    source = ListStream({"w": [1.0] * 20 + [9.0] * 20}, late=0)
    heavy = 0
    for seed in range(40):
        stream = Sample("w", n=10, seed=seed, replace=False).stream((source,), context())
        heavy += sum(key[3] >= 20 for key, _ in drain(stream.open([stream.start(), 0]), random.Random(0))[0])
    assert 330 < heavy < 380, "nine in ten of the first draws, fewer once heavy rows are gone"
    for n in (0, 400):
        assert sample.without_replacement(n, np.array([100] * 4), seed=1).tolist() == [n // 4] * 4


def test_weights_that_look_at_other_rows_are_refused():
    with pytest.raises(PipelineError, match="is not row-wise: sum.. depends on other rows"):
        Sample(col("w") / col("w").sum())


def test_skipped_rows_weigh_as_much_as_the_average():
    source = ListStream({"w": [1.0, 1.0, 1.0, 1.0]}, dead=[1, 2])
    units = check(Sample("w", n=100), [source])
    assert 20 < sum(row is None for _, row in units) < 80


def test_epochs_laps_and_seeds_draw_anew():
    def rows(seed=0, epoch=0, lap=0):
        source = ListStream({"w": [1.0] * 30}, late=0)
        stream = Sample("w", seed=seed).stream((source,), context(epoch=epoch))
        units, _, _ = drain(stream.open([stream.start(), 0], lap), random.Random(0))
        return [key[3] for key, _ in units]

    assert rows() == rows()
    assert rows() != rows(seed=1) != rows(epoch=1) != rows(lap=1) != rows()


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, None])
def test_a_bad_weight_names_its_row(bad):
    source = ListStream({"w": pa.array([1.0] * 9 + [bad]).to_pylist()}, late=0)
    stream = Sample("w").stream((source,), context())
    flow = stream.open([stream.start(), 0])
    for _ in range(2):  # and again: a failed pass is not taken for a complete one
        with pytest.raises(RowError, match="weight") as caught:
            while flow.pull(True) is not None:
                pass
        assert caught.value.row is not None
        assert caught.value.row.row == 9
        flow = stream.open([stream.start(), 0])
    flow.close()
    assert source.open_flows == 0


@pytest.mark.parametrize(
    ("columns", "operator", "text"),
    [
        ({"w": [0.0, 0.0]}, Sample("w"), "all rows are zero"),
        ({"w": []}, Sample(n=3), "no rows"),
        ({"w": [1e308, 1e308]}, Sample("w"), "their sum is infinite"),
        ({"w": ["1", "2"]}, Sample("w"), "not numbers"),
        ({"w": [[1], [2]]}, Sample("w"), "not numbers"),
        ({"w": [1.0]}, Sample("v"), "no column 'v'"),
        ({"w": [1.0, 0.0]}, Sample("w", n=2, replace=False), "cannot draw 2 rows without replacement from 1"),
    ],
)
def test_bad_input(columns, operator, text):
    stream = operator.stream((ListStream(columns),), context())
    with pytest.raises(CedarError, match=text):
        drain(stream.open([stream.start(), 0]), random.Random(0))


def test_an_endless_input_is_an_error():
    endless = Repeat().stream((ListStream({"w": [1]}),), context())
    with pytest.raises(PipelineError, match="needs an input that ends"):
        Sample(n=3).stream((endless,), context()).open([0, 0])


def test_counts_schema_and_arguments():
    unknown = ListStream({"w": [1]}, known=False)
    assert Sample().stream((unknown,), context()).count is None
    assert Sample(n=3).stream((unknown,), context()).count == 3
    assert Sample("w").effects().reads == frozenset({"w"})
    with pytest.raises(PipelineError, match="no column 'v'"):
        Sample("v").schema({"w": pa.float64()})
    with pytest.raises(PipelineError, match="before batch"):
        Sample().batched(True)
    with pytest.raises(PipelineError, match="name of a column"):
        Sample([1, 2])
    with pytest.raises(PipelineError, match="integer"):
        Sample(n=-1)
    for fraction in ("0.1", True, math.nan, math.inf, -0.5):
        with pytest.raises(PipelineError, match="a share of the rows"):
            Sample(fraction=fraction)
    assert Sample(fraction=np.float32(0.5)).fraction == 0.5


def test_nothing_from_nothing():
    assert check(Sample(), [ListStream({"w": []})]) == []


def drawn_rows(p: cedar.Pipeline, state: Any = None, **options: Any) -> tuple[list[int], Any, int]:
    """Six batches, the state after three of them, and how many rows were read for them."""
    loader = p.loader(executor="inline", **options)
    if state is not None:
        loader.load_state_dict(state)
    got = []
    for number, batch in enumerate(loader, 1):
        got += batch["id"].tolist()
        if number == 3:
            saved = loader.state_dict()
        if number == 6:
            break
    return got, saved, loader.report().rows_read


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("options", [{}, {"n": 3000, "replace": False}])
def test_a_resume_does_not_read_the_first_pass_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: bool, options: Any
) -> None:
    monkeypatch.setattr(sample, "RUN", 256)
    rows = 4096
    table = pa.table({"id": range(rows), "w": [1.0 + i % 5 for i in range(rows)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=256)

    def pipeline(weights: Any = "w") -> cedar.Pipeline:
        p = cedar.read_parquet(str(tmp_path))
        return (p if counted else p.filter(lambda i: i >= 0, "id")).sample(weights, **options).batch(64)

    whole, state, read = drawn_rows(pipeline())
    assert read == 2 * rows
    rest, _, read = drawn_rows(pipeline(), state)
    assert rest[:192] == whole[192:]
    assert read == rows
    for other, changes in ((pipeline(col("w") * 2), {}), (pipeline(), {"epoch": 1}), (pipeline(), {"seed": 1})):
        assert drawn_rows(other, **changes)[2] == 2 * rows
    pq.write_table(table.slice(1), tmp_path / "a.parquet", row_group_size=256)
    assert drawn_rows(pipeline())[2] == 2 * (rows - 1)


@pytest.mark.parametrize("body", [b"", b"\1" + b"\0" * 7, b"\xff" * 8, b"123"])
def test_a_stored_pass_that_is_none_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    pq.write_table(pa.table({"id": range(640), "w": [1.0] * 640}), tmp_path / "a.parquet")
    p = cedar.read_parquet(str(tmp_path / "*.parquet")).sample("w").batch(64)
    monkeypatch.setattr(sample, "RUN", 256)
    names: list[str] = []
    monkeypatch.setattr(sample, "save", lambda _place, name, _write: names.append(name))
    whole = drawn_rows(p)
    assert whole[2] == 2 * 640

    def write(sink: Any) -> dict[str, Any]:
        sink.write(body)
        return {"rows": 640, "noted": []}

    assert keep.save(keep.user_place(), names[0], write)
    assert drawn_rows(p) == whole


@pytest.mark.parametrize("again", [False, True])
def test_a_plan_of_a_sample_is_checked_on_few_rows(again):
    rows = cedar.from_items([{"x": i, "y": i} for i in range(1000)]).map(abs, "y", dtype=int)
    p = rows.filter(col("x") % 9 > 0).sample(n=200, replace=again).select("x").batch(50)
    with p.loader(executor="inline") as loader:
        planned = [batch["x"].tolist() for batch in loader]
        assert "cannot be computed as written" not in loader.explain()
    assert planned == [batch["x"].tolist() for batch in p.loader(executor="inline", plan="off")]
