"""unique: one row of each value, wherever the rows are, compared with polars."""

import math
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
from cedar import col
from cedar.pipeline import repeats
from cedar.pipeline.repeats import ValueHashes, find_repeats
from cedar.testing import assert_resumable

VALUES = {
    "int": st.integers(0, 5),
    "float": st.sampled_from([0.0, -0.0, 1.5, math.nan]),
    "text": st.sampled_from(["", "a", "b"]),
    "list": st.lists(st.integers(0, 1), max_size=2),
    "struct": st.fixed_dictionaries({"a": st.integers(0, 1), "b": st.sampled_from("xy")}),
    "bytes": st.binary(max_size=1),
}
KINDS = {
    "int": pl.Int64, "float": pl.Float64, "text": pl.String, "list": pl.List(pl.Int64),
    "struct": pl.Struct({"a": pl.Int64, "b": pl.String}), "bytes": pl.Binary,
}  # fmt: skip


def xs(pipeline: cedar.Pipeline, **options: Any) -> list[int]:
    return [row["x"] for row in pipeline.loader(executor="inline", **options)]


def shards(folder: Path, ids: list[int], files: int = 3) -> cedar.Pipeline:
    for number, part in enumerate(np.array_split(np.arange(len(ids)), files)):
        table = pa.table({"x": part, "id": [ids[i] for i in part]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=20)
    return cedar.read_parquet(str(folder / "*.parquet"))


@given(data=st.data(), kind=st.sampled_from(sorted(VALUES)), keep=st.sampled_from(["first", "last", "none"]))
@settings(max_examples=40, deadline=None)
def test_like_polars(data: st.DataObject, kind: str, keep: Any) -> None:
    values = data.draw(st.lists(st.one_of(st.none(), VALUES[kind]), max_size=40))
    other = data.draw(st.lists(st.integers(0, 1), min_size=len(values), max_size=len(values)))
    frame = pl.DataFrame({"x": range(len(values)), "v": pl.Series(values, dtype=KINDS[kind]), "o": other})
    for subset in (["v"], ["v", "o"]):
        want = frame.unique(subset, keep=keep, maintain_order=True)["x"].to_list()
        assert sorted(xs(cedar.from_polars(frame).unique(subset, keep=keep))) == sorted(want)


def test_all_columns_by_default() -> None:
    rows = [{"x": 1, "y": 2}, {"x": 1, "y": 3}, {"x": 1, "y": 2}]
    assert list(cedar.from_items(rows).unique()) == rows[:2]


@pytest.mark.parametrize("memory", [1, 24 * 50, 1 << 30])
def test_beyond_the_budget_on_disk(tmp_path: Path, memory: int) -> None:
    ids = np.random.default_rng(0).integers(0, 120, 300).tolist()
    pipeline = shards(tmp_path, ids)
    frame = pl.DataFrame({"x": range(300), "id": ids})
    for keep in ("first", "last", "none"):
        found = find_repeats(pipeline.given, ("id",), keep, None, memory)  # type: ignore[arg-type]
        gone = 300 - len(frame.unique("id", keep=keep))  # type: ignore[arg-type]
        assert len(found.dropped.numbers("key")) == gone


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_same_rows_at_any_world_size_and_in_every_epoch(tmp_path: Path, world: int) -> None:
    ids = np.random.default_rng(1).integers(0, 100, 300).tolist()
    firsts = sorted({value: x for x, value in reversed(list(enumerate(ids)))}.values())
    batches = shards(tmp_path, ids).shuffle(seed=1).unique("id").batch(4, last="keep")
    loaders = [batches.loader(rank=rank, world=world, executor="inline") for rank in range(world)]
    for _ in range(2):
        assert sorted(int(x) for loader in loaders for batch in loader for x in batch["x"]) == firsts


def test_resumes(tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(0, 40, 90).tolist()
    assert_resumable(
        shards(tmp_path, ids).unique("id").shuffle(seed=1).batch(4), executors=["inline", "threads"], stops=3
    )


@pytest.mark.heavy
def test_in_other_processes(tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(0, 40, 90).tolist()
    assert_resumable(shards(tmp_path, ids).unique("id").batch(4), executors=["inline", "processes"], stops=2)


def test_above_and_below_other_operators(tmp_path: Path) -> None:
    ids = np.random.default_rng(3).integers(0, 50, 200).tolist()
    frame = pl.DataFrame({"x": range(200), "id": ids})
    pipeline = shards(tmp_path, ids).filter(col("x") % 2 == 1).with_columns(k=col("id") % 7)
    for plan in ("off", "auto"):
        found = pipeline.unique("k").map(lambda x: x + 1, "x")
        want = frame.filter(pl.col("x") % 2 == 1).unique(pl.col("id") % 7, maintain_order=True)["x"] + 1
        assert xs(found, plan=plan) == want.to_list()
    items = cedar.from_items([{"x": i, "l": [i % 3, i % 5]} for i in range(30)]).explode("l")
    assert [row["l"] for row in items.unique("l")] == [0, 1, 2, 3, 4]
    both = cedar.concat(cedar.from_items([{"x": 1}, {"x": 2}]), cedar.from_items([{"x": 2}, {"x": 3}]))
    assert xs(both.unique("x")) == [1, 2, 3]


def test_the_pass_is_made_once_for_ranks_and_later_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    survey: Any = vars(repeats)["survey"]
    monkeypatch.setattr(repeats, "survey", lambda *args: passes.append(1) or survey(*args))
    pipeline = shards(tmp_path, [1, 2, 1, 3] * 10)
    assert (
        xs(pipeline.unique("id")) == xs(pipeline.unique("id")) == xs(shards(tmp_path, [1, 2, 1, 3] * 10).unique("id"))
    )
    assert len(passes) <= 2  # the files were written again meanwhile
    before = len(passes)
    assert len(xs(shards(tmp_path, [1, 2, 4, 3] * 10).unique("id"))) == 4
    assert len(passes) == before + 1


def test_hashes_of_row_keys_that_meet_are_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[int] = []
    meet = repeats._overlap
    monkeypatch.setattr(repeats, "_overlap", lambda *args: (len(met) < 2 and not met.append(1)) or meet(*args))
    found = find_repeats(shards(tmp_path, [1, 1, 2, 2, 5]).given, ("id",), "first", None)
    assert found.seed == 2
    assert len(found.dropped.numbers("key")) == 2


def test_rows_that_fail_count_for_nothing() -> None:
    def checked(x: int) -> int:
        if x == 0:
            raise ValueError("bad")
        return x

    rows = cedar.from_items([{"x": x, "v": v} for x, v in [(0, 1), (1, 1), (2, 1), (3, 2)]]).map(checked, "x")
    with pytest.raises(cedar.RowError, match="bad"):
        list(rows.unique(["v", "x"]))
    kept = rows.filter(lambda x: x != 2, "x").unique("v")
    assert xs(kept, on_error=cedar.Skip()) == [1, 3]


def test_loaders_with_other_policies_do_not_share_a_survey() -> None:
    def checked(x: int) -> int:
        if x == 0:
            raise ValueError("bad")
        return x

    rows = cedar.from_items([{"x": x} for x in range(9_000)]).map(checked, "x").unique("x")
    with rows.loader(on_error=cedar.Skip(), executor="inline") as tolerant:
        kept = iter(tolerant)
        assert next(kept)["x"] == 1
        with pytest.raises(cedar.RowError, match="bad"), rows.loader(executor="inline") as strict:
            list(strict)
        assert len(list(kept)) == 8_998


@pytest.mark.parametrize(
    ("below", "message"),
    [
        (lambda p: p.sample(n=2), "unique after sample"),
        (lambda p: p.map(lambda x, rng: rng.random(), "x", random=True), "other values in each epoch"),
        (lambda p: p.shuffle().take(3), "after a shuffle or mix"),
        (lambda p: p.repeat(2), "every row several times"),
        (lambda p: cedar.mix([(p, 0.5), (p, 0.5)]), "leaves out other rows"),
        (lambda p: p.batch(2), "its input gives batches"),
    ],
)
def test_rows_that_differ_from_epoch_to_epoch(below: Any, message: str) -> None:
    with pytest.raises(cedar.PipelineError, match=message) as caught:
        below(cedar.from_items([{"x": i} for i in range(5)])).unique("x")
    assert __file__ in str(caught.value)
    assert caught.value.fix


def test_random_values_that_unique_does_not_look_at() -> None:
    rows = cedar.from_items([{"x": i % 2, "y": 0.0} for i in range(6)])
    assert xs(rows.map(lambda y, rng: rng.random(), "y", random=True).unique("x")) == [0, 1]


def test_bad_arguments() -> None:
    rows = cedar.from_items([{"x": 1}])
    with pytest.raises(cedar.PipelineError, match="keep='all'"):
        rows.unique("x", keep="all")  # type: ignore[arg-type]
    with pytest.raises(cedar.PipelineError, match="no column 'y'"):
        rows.unique("y").count()
    with pytest.raises(cedar.PipelineError, match="Python objects"):
        cedar.from_items([{"x": object()}]).unique("x").count()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 7, 1 << 40, (1 << 63) + 1, (1 << 64) - 1]), st.integers(0, 2)), max_size=40
    ),
    st.sampled_from(["first", "last", "any", "none"]),
)
def test_hashes_whose_first_bits_are_the_same_are_told_apart(values: list[tuple[int, int]], keep: Any) -> None:
    seen: dict[tuple[int, int], list[int]] = {}
    for row, value in enumerate(values):
        seen.setdefault(value, []).append(row)
    wanted = {"first": [r[0] for r in seen.values()], "last": [r[-1] for r in seen.values()]}
    wanted |= {"any": wanted["first"], "none": [r[0] for r in seen.values() if len(r) == 1]}
    for memory in (24 * 100, 24 * 7):  # held, and spilled to disk
        with ValueHashes(memory) as sightings:
            for start in range(0, len(values), 5):
                part = values[start : start + 5]
                a, b = (np.array(each, dtype=np.uint64) for each in zip(*part, strict=True))
                sightings.add(a, b, np.arange(start, start + len(part), dtype=np.uint64))
            gone = sightings.dropped(keep)
        assert gone is not None
        assert sorted({*range(len(values))} - set(gone.tolist())) == sorted(wanted[keep])
