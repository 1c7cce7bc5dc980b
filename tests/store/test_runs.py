"""Runs with cache(): the same rows as without, computed once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.dlpack import from_dlpack

import cedar
from cedar import col
from cedar.core.cursor import Keys
from cedar.store.cache import Store
from cedar.store.place import INSIDE
from tests.store.toy_stored import entries
from tests.toy_entries import Key
from tests.toy_runs import run


class Counted:
    """Notes each call in a file, so that calls in other processes count too."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, x: int) -> Any:
        with open(self.path, "a") as file:
            file.write(".")
        return np.full((2, 2), x)

    @property
    def calls(self) -> int:
        return Path(self.path).stat().st_size if Path(self.path).exists() else 0


@pytest.fixture
def files(tmp_path: Path) -> str:
    (tmp_path / "in").mkdir()
    for i in range(3):
        table = pa.table({"x": range(i * 20, i * 20 + 20), "s": [f"s{j}" if j % 3 else None for j in range(20)]})
        pq.write_table(table, tmp_path / "in" / f"{i}.parquet", row_group_size=5)
    return str(tmp_path / "in" / "*.parquet")


def build(files: str, fn: Callable[..., Any], where: str | None) -> cedar.Pipeline:
    p = cedar.read_parquet(files).map(fn, "x", into="t")
    return (p.cache(where) if where else p).filter(col("x") % 7 != 0).shuffle(seed=3).batch(4)


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_a_directory_serves_every_executor(executor: str, files: str, tmp_path: Path) -> None:
    fn = Counted(str(tmp_path / "calls"))
    expected = [run(build(files, Counted(str(tmp_path / "other")), None).loader(epoch=e))[0] for e in (0, 1)]
    where = str(tmp_path / "kept")
    loader = build(files, fn, where).loader(executor=executor, workers=2)
    assert [run(loader)[0], run(loader)[0]] == expected
    sampled = fn.calls - 60  # the rows that fixed the types
    assert 0 <= sampled <= 64
    for other in ("threads", "inline"):
        assert run(build(files, fn, where).loader(executor=other))[0] == expected[0]
    assert fn.calls <= 60 + 3 * 64, "only the samples were computed again"


@pytest.mark.heavy
@pytest.mark.parametrize("where", ["memory", "kept"])
def test_plans_share_entries_with_the_pipeline_as_written(where: str, files: str, tmp_path: Path) -> None:
    where = where if where == "memory" else str(tmp_path / where)
    fn = Counted(str(tmp_path / "calls"))

    def piped(where: str | None) -> cedar.Pipeline:
        p = cedar.read_parquet(files).map(fn, "x", into="t").filter(col("x") % 2 == 0)
        return (p.cache(where) if where else p).select("t", "x").shuffle(seed=1).batch(4)

    expected = [run(piped(None).loader(plan="off", epoch=e))[0] for e in (0, 1, 2)]
    for plans in (("auto", "off"), ("off", "auto")):
        for plan in plans:
            loader = piped(where).loader(plan=plan)
            assert [run(loader)[0] for _ in range(3)] == expected


@pytest.mark.parametrize("damage", [b"", b"x" * 100])
def test_damage_costs_time_alone(damage: bytes, files: str, tmp_path: Path) -> None:
    fn = Counted(str(tmp_path / "calls"))
    where = str(tmp_path / "kept")
    loader = build(files, fn, where).loader()
    run(loader)
    for path in entries(Path(where)):
        path.write_bytes(damage)
    plain = build(files, Counted(str(tmp_path / "other")), None)
    assert run(loader)[0] == run(plain.loader(epoch=1))[0]
    assert len(entries(Path(where))) == 12


def test_a_consumer_that_writes_into_batches_changes_nothing(files: str, tmp_path: Path) -> None:
    for where in ("memory", str(tmp_path / "kept")):
        p = cedar.read_parquet(files).select("x").map(lambda x: np.full(2, x), "x", into="t").cache(where)
        for form in ("numpy", "torch"):
            loader = p.batch(5).loader(format=form)
            for _ in range(2):
                batches = list(loader)
                assert np.array_equal(np.concatenate([np.asarray(b["t"])[:, 0] for b in batches]), np.arange(60))
                assert np.array_equal(np.concatenate([np.asarray(b["x"]) for b in batches]), np.arange(60))
                for batch in batches:
                    batch["t"][:] = -1
                    if form == "torch":
                        batch["x"][:] = -1


def test_rows_one_by_one_may_be_written_too(files: str) -> None:
    p = cedar.read_parquet(files).select("x").map(lambda x: np.full(2, x), "x", into="t").cache("memory")
    loader = p.loader()
    for _ in range(3):
        rows = list(loader)
        assert [row["t"][0] for row in rows] == list(range(60))
        for row in rows:
            row["t"][:] = -1


def test_tables_share_no_memory_with_a_cache(files: str) -> None:
    p = cedar.read_parquet(files).select("x").map(lambda x: np.full(2, x), "x", into="t").cache("memory")
    loader = p.batch(5).loader(format="arrow")
    for _ in range(3):
        tables = list(loader)
        assert [t for table in tables for t, _ in table["t"].to_pylist()] == list(range(60))
        for table in tables:
            from_dlpack(table["t"].chunk(0).values)[:] = -1


def test_functions_above_a_cache_get_arrays_that_they_cannot_write(files: str) -> None:
    def grow(t: Any) -> Any:
        t += 1
        return t

    p = cedar.read_parquet(files).select("x").map(lambda x: np.full(2, x), "x", into="t").cache("memory")
    for changed in (p.map(grow, "t"), p.map_batches(lambda b: grow(b["t"]), "t", format="numpy")):
        with pytest.raises(cedar.RowError, match="read-only"):
            list(changed.batch(5).loader())


def test_skips_come_back_from_a_directory(files: str, tmp_path: Path) -> None:
    def picky(x: int) -> int:
        if x % 10 == 3:
            raise ValueError(x)
        return x

    p = (
        cedar.read_parquet(files)
        .map(picky, "x", dtype=int, on_error=cedar.Skip())
        .cache(str(tmp_path / "kept"))
        .batch(5)
    )
    loader = p.loader()
    first, second = run(loader)[0], run(loader)[0]
    assert first == second
    assert loader.report().skipped == {"map(picky)": 12}
    strict = cedar.read_parquet(files).map(picky, "x", dtype=int).cache(str(tmp_path / "kept"))
    with pytest.raises(cedar.RowError):
        list(strict)


# ---- several processes -----------------------------------------------------------------------------------------------


def hammer(where: str, seed: int, failures: Any) -> None:
    """Reads and writes entries of two groups under a budget for half of them."""
    from cedar.core.block import Block

    rng = np.random.default_rng(seed)
    store = Store(disk=60_000)
    for turn in range(150):
        group, number = ("a", "b")[turn // 50 % 2], int(rng.integers(0, 8))
        value = number + 100 * (group == "b")
        key = Key(group, str(number), (), ("t",))
        found = store.get(key, where)
        if found is None:
            store.put(key, where, [Block({"t": np.full((50, 8), value)}, Keys(np.arange(50)))])
        elif not (found[0].columns["t"] == value).all():
            failures.put(f"{key}: {found[0].columns['t'][0, 0]}")
    for note in store.notes:
        if "is full" not in note:
            failures.put(note)
    if store.rejected:
        failures.put(f"{store.rejected} rejected")


@pytest.mark.heavy
def test_processes_write_and_evict_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    failures = context.SimpleQueue()
    workers = [context.Process(target=hammer, args=(str(tmp_path / "kept"), seed, failures)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 3
    assert failures.empty(), failures.get()
    assert not list((tmp_path / "kept" / INSIDE).glob("*.tmp"))
    assert sum(p.stat().st_size for p in (tmp_path / "kept" / INSIDE).glob("*.arrow")) <= 60_000 + 3 * 6_000
