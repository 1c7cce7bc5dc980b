"""Recovery: workers die, hang or do not start; the rows are the same, and what kills them is named."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cedar
from cedar import col
from cedar.executors import processes
from cedar.executors.processes import forkserver
from cedar.executors.processes.pool import Pool

WORKERS = 2


@pytest.fixture(scope="module", autouse=True)
def pool() -> Pool:
    return processes.warm(WORKERS)


def numbers(n: int = 200) -> cedar.Pipeline:
    return cedar.from_items([{"x": i} for i in range(n)])


def loader(pipeline: cedar.Pipeline, executor: Any = "processes", **options: Any) -> cedar.Loader:
    return pipeline.loader(executor=executor, workers=WORKERS, plan="off", **options)


def rows(loader: cedar.Loader) -> list[int]:
    with loader:
        return [x for batch in loader for x in batch["x"].tolist()]


def but(*left_out: int) -> list[int]:
    return [x for x in range(200) if x not in left_out]


# ---- rows that end the process ---------------------------------------------------------------------------------------


def hungry() -> None:
    """Takes all the memory that it may, without a MemoryError: the process is ended as a kernel would end it."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    held = []
    try:
        while True:
            held.append(bytearray(8 << 20))
    except MemoryError:
        os.kill(os.getpid(), signal.SIGKILL)


ENDS: dict[int, Any] = {70: lambda: ctypes.string_at(0), 120: hungry, 133: lambda: os._exit(3)}
HOW = {70: "killed by SIGSEGV", 120: "killed by SIGKILL", 133: "exit code 3"}


def test_three_rows_that_end_processes_are_skipped_and_named(tmp_path: Path) -> None:
    def ends(x: int) -> int:
        if x in ENDS:
            ENDS[x]()
        return x

    policy = cedar.Skip(quarantine=str(tmp_path), max_count=3)
    bad = loader(numbers().map(ends, "x", dtype=int, on_error=policy).batch(10))
    assert rows(bad) == but(*ENDS)
    lines = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    assert [(line["row"], line["operator"]) for line in lines] == [(x, "map(ends)") for x in ENDS]
    assert all(HOW[line["row"]] in line["error"] for line in lines)
    report = bad.report()
    assert report.skipped == {"map(ends)": 3}
    assert report.restarts == len(report.deaths) <= 9  # one each, and two more
    for x, how in HOW.items():
        assert any(how in death and f"row {x}," in death and "map(ends)" in death for death in report.deaths)
    assert report.recovery is not None
    assert f"restarts: {report.restarts}" in str(report)


def test_without_a_policy_the_first_of_them_ends_the_run() -> None:
    def ends(x: int) -> int:
        return os._exit(3) if x in (81, 83) else x

    twice = numbers().filter(col("x") % 2 == 1).flat_map(lambda x: [x, x + 50], "x", dtype=int)
    with pytest.raises(cedar.RowError, match=r"map\(ends\) failed: WorkerKilled: exit code 3") as caught:
        rows(loader(twice.map(ends, "x", dtype=int).batch(10)))
    error = caught.value
    assert error.row is not None
    assert (error.row.row, error.row.sub, error.row.epoch) == (31, 1, 0)  # 31 + 50 comes before 81
    assert error.site is not None
    assert error.site.function == "test_without_a_policy_the_first_of_them_ends_the_run"


def test_rows_of_a_vectorised_function_are_tried_one_by_one() -> None:
    def ends(table: pa.Table) -> pa.Table:
        return os._exit(3) if 77 in table["x"].to_pylist() else table

    bad = loader(numbers().map_batches(ends, "x", on_error=cedar.Skip()).batch(10))
    assert rows(bad) == but(77)
    assert bad.report().restarts == 3


def test_a_batch_goes_as_a_whole() -> None:
    def ends(x: Any) -> Any:
        return os._exit(3) if 77 in x else x

    bad = loader(numbers().batch(10).map(ends, "x", dtype=int, on_error=cedar.Skip()))
    assert rows(bad) == but(*range(70, 80))
    assert bad.report().restarts == 3


def test_many_rows_in_flight_are_told_apart() -> None:
    async def ends(x: int) -> int:
        return os._exit(3) if x == 77 else x

    assert rows(loader(numbers().map(ends, "x", dtype=int, on_error=cedar.Skip()).batch(10))) == but(77)


def test_an_item_of_a_dataset_that_ends_the_process() -> None:
    class Items:
        def __len__(self) -> int:
            return 200

        def __getitem__(self, i: int) -> dict[str, int]:
            return os._exit(3) if i == 100 else {"x": i}

    bad = loader(cedar.from_items(Items()).batch(10), on_error=cedar.Skip())
    assert rows(bad) == but(100)
    assert "row 100" in bad.report().deaths[-1]


def test_a_file_that_ends_every_reader_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cedar.executors.recovery.task._MAX_SAME_DEATHS", 3)

    class Bad:
        def splits(self) -> list[Any]:
            return [cedar.datasets.base.Split(file=i, rows=10, bytes=80) for i in range(3)]

        def read(self, split: Any) -> list[pa.Table]:
            if split.file == 1:
                os._exit(3)
            return [pa.table({"x": range(10)})]

        def url(self, file: int) -> str:
            return f"file-{file}.bin"

    with pytest.raises(cedar.SourceError, match=r"reading file-1.bin crashed the worker 3 times: exit code 3"):
        rows(loader(cedar.from_source(Bad()).map(abs, "x", dtype=int).batch(10)))


def test_a_task_that_dies_too_often_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cedar.executors.recovery.recovery._MAX_DEATHS_OF_TASK", 4)

    class Ends:
        def __init__(self) -> None:
            os._exit(3)

        def __call__(self, x: int) -> int:
            return x

    with pytest.raises(cedar.WorkerError, match=r"workers died 4 times.*no single row is to blame"):
        rows(loader(numbers(40).map(Ends, "x", dtype=int).batch(10)))


@pytest.mark.heavy
def test_workers_that_do_not_start_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    processes.close()  # a warm worker of another test would do the work
    monkeypatch.setattr(forkserver, "_CODE", "import os; os._exit(7)")
    bad = numbers().map(abs, "x", dtype=int).batch(10).loader(executor="processes", workers=1, plan="off")
    with pytest.raises(cedar.WorkerError, match=r"do not start: it could not be started \(exit code 7\)"):
        rows(bad)
    monkeypatch.undo()
    assert processes.warm(1).submit(abs, -2).result() == 2


def test_a_batch_that_is_read_again_does_not_end_this_process() -> None:
    def ends(x: int) -> int:
        return os._exit(3) if x == 77 else x

    with loader(numbers().map(ends, "x", dtype=int, on_error=cedar.Skip()).batch(10)) as bad:
        whole = [batch["x"].tolist() for batch in bad]
        bad.set_epoch(0)
        assert bad.read(7)["x"].tolist() == whole[7] == [70, 71, 72, 73, 74, 75, 76, 78, 79]


# ---- workers that are killed -----------------------------------------------------------------------------------------


def test_a_task_that_was_lost_is_done_again_and_counted_once(pool: Pool, tmp_path: Path) -> None:
    def first_time(x: int) -> int:
        if x == 50 and not (tmp_path / "seen").exists():
            (tmp_path / "seen").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    bad = loader(numbers().map(first_time, "x", dtype=int).shuffle(seed=1).batch(10))
    whole = rows(loader(numbers().map(abs, "x", dtype=int).shuffle(seed=1).batch(10), "inline"))
    assert rows(bad) == whole
    report = bad.report()
    assert report.restarts == 1
    assert "SIGKILL" in report.deaths[0]
    assert "run again" in report.deaths[0]


def test_draws_are_the_same_in_a_second_attempt(tmp_path: Path) -> None:
    def draws(x: int, rng: Any) -> int:
        if x == 50 and not (tmp_path / "seen").exists():
            (tmp_path / "seen").touch()
            os._exit(1)
        return int(rng.integers(1 << 40))

    drawn = numbers().map(draws, "x", random=True, dtype=int).batch(10)
    assert rows(loader(drawn)) == rows(loader(drawn, "inline"))
