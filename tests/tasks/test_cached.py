"""Rows that are kept: computed once, and never served for other work, other data or other code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from tests.store.toy_counted import Calls, Counting
from tests.store.toy_stored import entries
from tests.toy_runs import run


def places(tmp_path: Path) -> dict[str, str]:
    return {"memory": "memory", "auto": "auto", "folder": str(tmp_path / "kept"), "url": f"file://{tmp_path}/url"}


@pytest.mark.heavy
@pytest.mark.parametrize("where", ["memory", "auto", "folder", "url"])
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_the_second_epoch_calls_nothing(where: str, executor: str, tmp_path: Path) -> None:
    calls = Calls()
    p = cedar.from_source(Counting()).map(calls, "x", dtype=int).cache(places(tmp_path)[where]).shuffle().batch(7)
    loader = p.loader(executor=executor)
    first, _ = run(loader)
    assert calls.n == 60
    second, _ = run(loader)
    assert calls.n == 60
    assert first != second, "the order still changes"
    plain = cedar.from_source(Counting()).map(Calls(), "x", dtype=int).shuffle().batch(7)
    assert first == run(plain.loader())[0]
    assert second == run(plain.loader(epoch=1))[0]


def test_a_folder_serves_another_run_and_a_changed_function_does_not(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(30)}), tmp_path / "a.parquet")
    made: list[Calls] = []

    def build(fn: Any) -> cedar.Pipeline:
        made.append(Calls())  # an object with plain state, as another process would make it
        p = cedar.read_parquet(str(tmp_path / "a.parquet")).map(fn, "x", dtype=int)
        return p.map(made[-1], "x", dtype=int).cache(str(tmp_path / "kept"))

    first = list(build(lambda x: x))
    assert list(build(lambda x: x)) == first
    assert [calls.n for calls in made] == [30, 0]
    assert list(build(lambda x: x * 2)) != first
    assert made[-1].n == 30
    for shift in (1, 5):
        weights = np.array([shift])
        got = [r["x"] for r in build(lambda x: x + int(weights[0]))]  # noqa: B023 - run at once
        assert got == list(range(shift + 1, shift + 31)), "what a function closes over counts"


def test_other_data_are_not_mistaken_for_those_kept(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 1000)):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"x": pa.array(range(first, first + 30))}), tmp_path / name / "0.parquet")
    kept = str(tmp_path / "kept")
    for first, name in ((0, "a"), (1000, "b")):
        p = cedar.read_parquet(f"{tmp_path}/{name}/*.parquet").map(lambda x: x, "x", dtype=int).cache(kept)
        assert [r["x"] for r in p] == list(range(first, first + 30))
    for first in (0, 500):
        for p in (
            cedar.from_source(Counting(first)),
            cedar.from_items([{"x": i} for i in range(first, first + 60)]),
            cedar.from_arrow(pa.table({"x": pa.array(range(first, first + 60), pa.int64())})),
        ):
            made = p.map(lambda x: x, "x", dtype=int).cache(kept)
            assert [r["x"] for r in made] == list(range(first, first + 60))


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_two_sources_of_a_pipeline_keep_apart(where: str, tmp_path: Path) -> None:
    a, b = (cedar.from_source(Counting(first)).cache(places(tmp_path)[where]) for first in (0, 1000))
    assert [r["x"] for r in cedar.concat(a, b)] == [*range(60), *range(1000, 1060)]


def test_expressions_that_print_alike_keep_apart(tmp_path: Path) -> None:
    for middle in (50, 51):
        listed = [*range(0, 20, 2), middle, *range(100, 120)]
        p = cedar.from_source(Counting()).filter(col("x").is_in(listed)).cache(str(tmp_path))
        assert [r["x"] for r in p] == [*range(0, 20, 2), middle]


def test_random_maps_above_a_cache_draw_anew(tmp_path: Path) -> None:
    def noisy(x: int, rng: np.random.Generator) -> float:
        return x + rng.random()

    kept = cedar.from_source(Counting()).cache(str(tmp_path)).map(noisy, "x", random=True, dtype=float)
    loader = kept.loader()
    first, second = ([r["x"] for r in loader] for _ in range(2))
    assert first != second
    plain = cedar.from_source(Counting()).map(noisy, "x", random=True, dtype=float)
    assert [r["x"] for r in plain.loader(epoch=1)] == second


def test_a_damaged_entry_is_made_again(tmp_path: Path) -> None:
    p = cedar.from_source(Counting()).map(lambda x: x + 1, "x", dtype=int).cache(str(tmp_path))
    expected = list(p)
    kept = entries(tmp_path)
    assert len(kept) == 6
    for number, path in enumerate(kept):
        path.write_bytes(b"" if number % 2 else path.read_bytes()[:-40])
    damaged = [path.stat().st_size for path in kept]
    assert list(p) == expected
    assert all(path.stat().st_size > size for path, size in zip(kept, damaged, strict=True))


def test_an_entry_carries_its_skips() -> None:
    def picky(x: int) -> int:
        if x % 10 == 3:
            raise ValueError
        return x

    p = cedar.from_source(Counting()).map(picky, "x", dtype=int, on_error=cedar.Skip()).cache("memory").batch(5)
    loader = p.loader()
    first, _ = run(loader)
    second, _ = run(loader)
    assert first == second
    assert loader.report().skipped == {"map(picky)": 12}
