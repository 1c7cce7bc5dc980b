"""split: parts that follow from row keys, or from the values of a column."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cedar
from cedar import col
from cedar.testing import assert_resumable

THREE = {"a": 0.5, "b": 0.3, "c": 0.2}


def xs(pipeline: cedar.Pipeline, **options: object) -> list[int]:
    return [row["x"] for row in pipeline.loader(executor="inline", **options)]  # type: ignore[arg-type]


def write(folder: Path, **files: list[int]) -> cedar.Pipeline:
    for name, values in files.items():
        pq.write_table(
            pa.table({"x": values, "user": [v // 3 for v in values]}), folder / f"{name}.parquet", row_group_size=7
        )
    return cedar.read_parquet(str(folder / "*.parquet"))


@given(rows=st.integers(0, 400), seed=st.integers(0, 5), by=st.sampled_from([None, "u"]))
@settings(max_examples=20, deadline=None)
def test_each_row_is_in_one_part_and_no_part_is_empty(rows: int, seed: int, by: str | None) -> None:
    items = [{"x": i, "u": i // 3} for i in range(rows)]
    pipeline = cedar.from_items(items) if rows else cedar.from_arrow(pa.table({"x": pa.array([], pa.int64()), "u": []}))
    parts = {name: xs(part) for name, part in pipeline.split(THREE, by=by, seed=seed).items()}
    assert sorted(chain.from_iterable(parts.values())) == list(range(rows))
    units = rows if by is None else len({i // 3 for i in range(rows)})
    assert sum(bool(part) for part in parts.values()) == min(3, units)
    if by is not None:
        users = [{x // 3 for x in part} for part in parts.values()]
        assert sum(map(len, users)) == len(set().union(*users))


def test_fractions_are_about_what_was_asked_for() -> None:
    parts = cedar.from_arrow(pa.table({"x": range(100_000)})).split({"train": 0.9, "val": 0.1})
    assert abs(parts["val"].count() / 100_000 - 0.1) < 0.005


def test_the_length_is_known_before_a_run(tmp_path: Path) -> None:
    files = write(tmp_path, one=list(range(100)), two=list(range(100, 250)))
    for part in files.split(THREE).values():
        with part.batch(4).loader() as loader:
            assert len(loader) == len(list(loader))
    for above in (files.shuffle(seed=1), files.map(lambda x: x + 1, "x").shuffle(), files.map(lambda row: row)):
        for part in above.split(THREE).values():
            with part.batch(4).loader() as loader:
                assert len(loader) == len(list(loader))
    inner = files.split({"a": 0.5, "b": 0.5})["a"].split({"a": 0.5, "b": 0.5}, seed=1)["b"]
    assert len(inner.loader()) == len(xs(inner)) > 0
    filtered = files.split(THREE)["a"].filter(col("x") % 2 == 0)
    with filtered.loader(counts="exact") as loader:
        assert len(loader) == len(list(loader))


def test_files_may_be_added_moved_and_removed(tmp_path: Path) -> None:
    before = {name: xs(part) for name, part in write(tmp_path, b=list(range(200))).split(THREE).items()}
    more = write(tmp_path, a=list(range(1000, 1100)), c=list(range(2000, 2100)))
    after = {name: xs(part) for name, part in more.split(THREE).items()}
    for name, values in before.items():
        assert set(values) <= set(after[name])
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (tmp_path / "b.parquet").rename(moved / "b.parquet")
    assert {n: xs(p) for n, p in cedar.read_parquet(str(moved / "*.parquet")).split(THREE).items()} == before


def test_files_as_rows(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text(str(number))
    parts = cedar.read_files(str(tmp_path / "*.txt")).split(THREE)
    found = {name: [int(row["bytes"]) for row in part] for name, part in parts.items()}
    assert sorted(chain.from_iterable(found.values())) == list(range(60))
    assert {name: len(part.loader()) for name, part in parts.items()} == {n: len(f) for n, f in found.items()}


def test_lines_without_known_counts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,u\n" + "".join(f"{i},{i % 5}\n" for i in range(300)))
    rows = cedar.read_csv(str(tmp_path / "a.csv"))
    for by in (None, "u"):
        assert sorted(x for part in rows.split(THREE, by=by).values() for x in xs(part)) == list(range(300))


@pytest.mark.parametrize("by", [None, "user"])
def test_parts_are_the_same_in_every_epoch_and_wherever_the_shuffle_is(tmp_path: Path, by: str | None) -> None:
    files = write(tmp_path, one=list(range(300)))
    want = {name: sorted(xs(part)) for name, part in files.split(THREE, by=by).items()}
    for pipeline in (files.shuffle(seed=3), files.repeat(2), files.with_columns(y=col("x")).filter(col("x") >= 0)):
        for name, part in pipeline.split(THREE, by=by).items():
            with part.loader(executor="inline") as loader:
                for _ in range(2):
                    assert sorted({row["x"] for row in loader}) == want[name]


@pytest.mark.parametrize("by", [None, "user"])
@pytest.mark.parametrize("world", [2, 3])
def test_at_any_world_size(tmp_path: Path, by: str | None, world: int) -> None:
    files = write(tmp_path, one=list(range(150)), two=list(range(150, 300)))
    part = files.shuffle(seed=1).split(THREE, by=by)["a"]
    want = sorted(xs(part))
    batches = part.batch(4, last="keep")
    loaders = [batches.loader(rank=rank, world=world, executor="inline") for rank in range(world)]
    assert sorted(int(x) for loader in loaders for batch in loader for x in batch["x"]) == want


def test_explode_and_flat_map_keep_their_side_of_a_split() -> None:
    rows = cedar.from_items([{"x": i, "items": [i, i, i]} for i in range(200)])
    below = rows.split(THREE)["b"].explode("items")
    above = rows.explode("items").split(THREE)["b"]
    for pipeline in (below, above):
        with pipeline.loader(plan="off") as plain, pipeline.loader(executor="inline") as planned:
            assert [r["items"] for r in plain] == [r["items"] for r in planned]
    assert len({row["x"] for row in above}) > len({row["x"] for row in below})  # items are their own rows


@pytest.mark.parametrize("by", [None, "u"])
def test_resumes(by: str | None) -> None:
    rows = cedar.from_items([{"x": i, "u": i // 2} for i in range(60)]).shuffle(seed=2)
    part = rows.split(THREE, by=by)["a"]
    assert_resumable(part.batch(4), executors=["inline", "threads"])


def test_rows_that_fail_are_skipped_in_one_part() -> None:
    def checked(x: int) -> int:
        if x % 10 == 0:
            raise ValueError(x)
        return x

    parts = cedar.from_items([{"x": i} for i in range(100)]).map(checked, "x").split(THREE)
    skipped = 0
    for part in parts.values():
        with part.loader(on_error=cedar.Skip(), executor="inline") as loader:
            assert all(row["x"] % 10 for row in loader)
            skipped += sum(loader.report().skipped.values())
    assert skipped == 10


def test_values_of_any_type_can_be_split_by() -> None:
    for values in ([None, 1, 2], [None, "a", "b"], [0.0, -0.0, 1.5], [[1], [1], [2]], [True, False, None]):
        rows = cedar.from_items([{"x": i, "v": values[i % 3]} for i in range(90)])
        first, second = (list(part) for part in rows.split({"a": 0.5, "b": 0.5}, by="v").values())
        assert not any(a["v"] == b["v"] for a in first for b in second)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"a": 0.9, "b": 0.2}, "add up to 1.1"),
        ({"a": 0.9}, "add up to 0.9"),
        ({"a": 1.0, "b": 0.0}, "not a number above 0"),
        ({}, "add up to 0"),
        ([0.9, 0.1], "a dict of names and fractions"),
    ],
)
def test_bad_fractions(parts: object, message: str) -> None:
    with pytest.raises(cedar.PipelineError, match=message) as caught:
        cedar.from_items([{"x": 1}]).split(parts)  # type: ignore[arg-type]
    assert __file__ in str(caught.value)


def test_columns_and_batches() -> None:
    rows = cedar.from_items([{"x": 1}])
    with pytest.raises(cedar.PipelineError, match="no column 'y'"):
        list(rows.split(THREE, by="y")["a"])
    with pytest.raises(cedar.PipelineError, match="before batch"):
        rows.batch(2).split(THREE)


def test_explaining_a_split_reads_nothing_and_says_that_counts_are_unknown() -> None:
    read: list[int] = []

    def rows() -> Iterator[dict[str, int]]:
        read.append(1)
        return iter([{"x": i} for i in range(30)])

    part = cedar.from_iterable(rows).split(THREE)["a"]
    assert "split('a')" in part.explain()
    assert "unknown number of rows" in part.explain()
    assert part.count() == len(xs(part))


@pytest.mark.heavy
def test_parts_are_written_and_cached(tmp_path: Path) -> None:
    files = write(tmp_path, one=list(range(100)))
    for name, part in files.map(lambda x: x, "x").cache(str(tmp_path / "cache")).split(THREE).items():
        written = part.write(str(tmp_path / name), executor="processes", workers=2)
        assert sorted(xs(cedar.read_parquet(written.files))) == sorted(xs(part))


@pytest.mark.parametrize("copies", ["sample", "balance_classes", "concat", "mix", "repeat"])
def test_copies_of_a_row_are_in_one_part(copies: str) -> None:
    rows = cedar.from_items([{"x": i, "y": int(i < 20)} for i in range(200)])
    copied = {
        "sample": lambda: rows.sample(col("y") + 1),
        "balance_classes": lambda: rows.balance_classes("y"),
        "concat": lambda: cedar.concat(rows, rows.with_columns(y=col("y") + 1)),
        "mix": lambda: cedar.mix([(rows, 1), (rows.with_columns(y=col("y") + 1), 1)], stop="all"),
        "repeat": lambda: rows.repeat(2),
    }[copies]()
    parts = copied.split({"train": 0.6, "val": 0.4})
    train, val = ({x for epoch in (0, 1) for x in xs(part, epoch=epoch)} for part in parts.values())
    assert train
    assert val
    assert not train & val
