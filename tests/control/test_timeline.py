"""Where the time of a run went: sums that hold, one rate, and what limits a run, by its name."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import cedar
from cedar import col
from cedar.control.timeline import DATA, IDLE, START, TRAINER, Part, Recording, Spent, TaskTime, Timeline
from cedar.datasets.base import Chunk, Split

LABELS = {0: "read", 1: "filter(a)", 2: "map(f)"}
NEAR = 0.03  # of the time


def task(parts: dict[Part, Spent], began: float = 0.0, crowded: float = 0.0) -> TaskTime:
    spent = [(part, each.wall, each.cpu) for part, each in parts.items()]
    return TaskTime(spent, began, sum(wall for _, wall, _ in spent), crowded)


def timeline(*tasks: TaskTime, seconds: float = 10.0, trains: float = 0.0, workers: float = 2) -> Timeline:
    """Of a run with one delivery, after which the trainer works for a while, and asks for the end."""
    found = Timeline()
    found.begin(100.0, workers)
    for each in tasks:
        found.add(each)
    found.give(100.0 + seconds - trains)
    found.asked = 100.0 + seconds
    found.give(100.0 + seconds)
    return found


# ---- the account -----------------------------------------------------------------------------------------------------


def test_both_sums_hold() -> None:
    chain = task({("operator", (1, 2)): Spent(6.0, 6.0), ("gather", ()): Spent(1.0, 1.0)}, 100.5)
    found = timeline(task({("read", (0,)): Spent(3.0, 1.0)}, 102.0), chain, trains=4.0)
    assert found.loader() == {START: 2.0, "compiling": 0.0, DATA: 4.0, TRAINER: 4.0}
    lines = found.workers(LABELS, {1: 1.0, 2: 3.0}, inline=False)
    assert [(str(line), line.seconds) for line in lines] == [
        ("filter(a) -> map(f): filter(a) 25%, map(f) 75%", 6.0), ("read", 3.0), ("gathering rows", 1.0), (IDLE, 10.0),
    ]  # fmt: skip
    assert found.operators(lines, LABELS) == {"map(f)": 4.5, "read": 3.0, "filter(a)": 1.5}
    alone = timeline(chain, trains=2.0, workers=1).workers(LABELS, {}, inline=True)
    assert [(line.label, line.seconds) for line in alone[-2:]] == [(TRAINER, 2.0), ("between tasks", 1.0)]
    assert str(alone[0]) == "filter(a) -> map(f)", "nothing looked inside: no shares are made up"


@pytest.mark.parametrize("every", [1, 10])
def test_the_time_of_the_loaders_thread_is_counted_between_asking_and_having(every: int) -> None:
    found = Timeline()
    found.begin(0.0, 1, every)
    for now in range(20):
        sum(range(20_000))
        found.give(now)
        counted = found.own
        sum(range(20_000))
        found.ask(now)
    assert counted > 0
    assert found.own == counted, "what the trainer does is not the loader's"


def test_compiling_is_no_part_of_the_start_and_each_iteration_has_one() -> None:
    found = Timeline()
    for began in (0.0, 50.0):
        found.begin(began, 1)
        found.compiling += 1.0
        found.add(task({("read", (0,)): Spent(1.0, 1.0)}, began + 3.0))
        found.give(began + 5.0)
    assert found.loader() == {START: 4.0, "compiling": 2.0, DATA: 4.0, TRAINER: 0.0}


def test_tasks_are_kept_one_by_one_only_where_somebody_asks_and_never_more_than_asked_for() -> None:
    assert timeline(task({})).recording is None
    found = Timeline(recording=(recording := Recording(2)))
    for began in range(5):
        found.add(task({("read", (0,)): Spent(1.0, 1.0)}, float(began)))
    assert [span.began for span in recording.tasks()] == [3.0, 4.0]
    assert len(found.parts) == 1


@pytest.mark.parametrize(
    ("parts", "options", "name", "why"),
    [
        ({("operator", (2,)): Spent(18, 17)}, {}, "map(f)", "1.7 of 2 core(s) busy; more cores would help"),
        ({("operator", (2,)): Spent(19, 9.5)}, {}, "map(f)", "with the GIL, processes would help; 0.9 of 2"),
        ({("read", (0,)): Spent(19, 0.5)}, {}, "read", "or a lock, more workers would help; 0.1 of 2"),
        ({("convert", ()): Spent(19, 0.5)}, {}, "converting batches", "0.1 of 2 core(s) busy"),
        ({("import", ()): Spent(19, 0.5)}, {}, "importing libraries", "once in each process"),
        ({("compile", ()): Spent(19, 19)}, {}, "compiling functions", "once in each process"),
        ({("read", (0,)): Spent(1, 1)}, {"trains": 9.5}, TRAINER, "batches are ready"),
        ({("operator", (2,)): Spent(19, 9.5)}, {"crowded": 9.0}, "map(f)", "other programs have the cores"),
        ({("gather", ()): Spent(9, 9), ("read", (0,)): Spent(2, 2)}, {}, "gathering rows", "1.1 of 2"),
        ({("read", (0,)): Spent(1, 1)}, {"began": 108.0}, START, "8.00 of 10.00 s"),
    ],
)  # fmt: skip
def test_what_limits_a_run_is_named(parts: dict[Part, Spent], options: dict[str, Any], name: str, why: str) -> None:
    seconds = {key: options.pop(key) for key in ("trains",) if key in options}
    found = timeline(task(parts, **{"began": 100.0, **options}), **seconds).bottleneck(LABELS, cores=2)
    assert (found[0], why in found[1]) == (name, True), found
    assert next(iter(parts))[0] in ("read", "operator") or "would help" not in found[1]


def test_a_loader_that_does_everything_itself_and_a_cold_cache_are_named() -> None:
    found = timeline(task({("read", (0,)): Spent(1.0, 1.0)}, 100.0))
    assert found.bottleneck(LABELS, 2, filling=True)[1].endswith("cache() is cold: later epochs do without it")
    found.own = 9.0
    assert found.bottleneck(LABELS, 2)[0] == "the loader's thread"
    found = timeline(task({("import", ()): Spent(9.5, 9.5)}, 100.0))
    found.own = 9.9  # the loader's thread imports them
    assert found.bottleneck(LABELS, 2)[0] == "importing libraries"
    assert Timeline().bottleneck(LABELS, 2) == ("none measured", "")


# ---- real runs -------------------------------------------------------------------------------------------------------


def nap(x: int) -> int:
    time.sleep(0.004)
    return x


class Slow:
    """A source on a slow disk."""

    def splits(self) -> list[Split]:
        return [Split(0, 10 * i, 10 * i + 10, 10) for i in range(8)]

    def read(self, split: Split) -> Iterator[Chunk]:
        time.sleep(0.05)
        yield Chunk({"x": pa.array(range(10))})

    def identity(self) -> str:
        return "slow"

    def url(self, file: int) -> str:
        return "slow"


def report(pipeline: cedar.Pipeline, executor: str, train: float = 0.0) -> Any:
    with pipeline.loader(executor=executor, workers=2, plan="off") as loader:
        for _ in loader:
            time.sleep(train)
        found = loader.report()
        assert f"RUN    {found.summary}" in re.sub(r"\n +", " ", loader.explain()), "one rate"
    assert found.summary.startswith(f"{found.rows / found.seconds:,.0f} rows/s")
    workers = 1 if executor == "inline" else 2
    # A task that waits for a core at the end of the run adds to its worker's time what no delivery counts.
    assert sum(line.seconds for line in found.workers_time) == pytest.approx(workers * found.seconds, rel=4 * NEAR)
    assert sum(found.loader_time.values()) == pytest.approx(found.seconds, rel=NEAR)
    return found


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_the_parts_of_a_run_sum_to_the_time_of_its_workers(executor: str) -> None:
    rows = cedar.from_items([{"x": i} for i in range(100)])
    p = rows.filter(col("x") >= 0).with_columns(y=col("x") * 2).map(nap, "x").batch(10)
    report(p, executor)  # workers start, and import what the code needs: longer than a short run takes
    found = report(p, executor)
    assert found.operators["map(nap)"] >= 0.4
    if executor != "processes":  # which may take longer to start than this run takes
        assert found.bottleneck == "map(nap)"


def test_a_slow_source_and_a_slow_trainer_are_told_apart() -> None:
    list(cedar.from_source(Slow()))  # what is imported once is no part of it
    slow = report(cedar.from_source(Slow()).batch(10), "threads")
    assert slow.operators[slow.bottleneck] >= 0.4
    assert slow.bottleneck.startswith("from_source")
    assert "waits for storage, a network or a lock, more workers would help" in slow.summary
    assert report(cedar.from_items([{"x": 1}] * 40).batch(4), "threads", train=0.05).bottleneck == TRAINER


def test_work_below_a_cache_counts_for_its_operators() -> None:
    pipeline = cedar.from_items([{"x": i} for i in range(50)]).map(nap, "x", dtype=int).cache("memory").batch(10)
    list(pipeline.loader(executor="threads", workers=2, plan="off"))  # imports, which may take longer than the function
    with pipeline.loader(executor="threads", workers=2, plan="off") as loader:
        for epoch in range(2):
            list(loader)
            found = loader.report()
            assert found.operators["map(nap)"] >= 0.2, epoch
            assert found.operators["from_items(list of 50)"] < found.operators["map(nap)"]
            assert ("cache() is cold" in found.summary) == (epoch == 0)
    assert found.bottleneck == "map(nap)"


def test_each_member_of_a_chain_gets_what_was_measured_of_it(tmp_path: Any) -> None:
    rows = cedar.from_items([{"x": float(i)} for i in range(1000)])
    files = rows.write_parquet(str(tmp_path / "rows"))
    parts = [cedar.read_parquet(files) for _ in range(4)]
    heavy = cedar.concat(*parts).with_columns(y=col("x") + 1).with_columns(z=col("y").sin().cos().tan().exp().sin())
    found = report(heavy.batch(100), "inline")
    (chain,) = (line for line in found.workers_time if " -> " in line.label)
    assert list(chain.shares) == ["with_columns(y)", "with_columns(z)"]
    assert sum(chain.shares.values()) == pytest.approx(1)
    assert found.operators["with_columns(z)"] == pytest.approx(chain.shares["with_columns(z)"] * chain.seconds)


def test_rows_of_an_iterator_are_read_by_somebody() -> None:
    def items() -> Iterator[dict[str, int]]:
        for i in range(20):
            time.sleep(0.01)
            yield {"x": i}

    found = report(cedar.from_iterable(items).batch(5), "threads")
    assert found.operators[found.bottleneck] >= 0.15
    assert found.bottleneck.startswith("from_iterable")
