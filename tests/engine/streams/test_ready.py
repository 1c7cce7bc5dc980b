"""Rows as they finish: each once, wherever a run is stopped.

CEDAR_CASES sets the number of random pipelines, CEDAR_SEED the first of them.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import cedar
from cedar import col
from cedar.engine.delivery.state import seal
from tests.engine.delivery.test_elastic import Made
from tests.engine.streams.slow_rows import SLOW, same, taken
from tests.engine.streams.test_lanes import Toy, pairs
from tests.how_much import SEED, cases
from tests.toy_pipelines import Source
from tests.toy_runs import run, saved
from tests.waiting import eventually

CASES = cases(20)
GROUP = max(5, CASES // 40)


class Lagging(ThreadPoolExecutor):
    """Threads that take a moment longer for some tasks, by chance."""

    def __init__(self, seed: int, workers: int = 4) -> None:
        super().__init__(workers)
        self._chance = random.Random(seed)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        lag = self._chance.choice([0, 0, 0, 0.002])

        def late() -> Any:
            time.sleep(lag)
            return fn(*args, **kwargs)

        return super().submit(late)


def there(ids: Any) -> bool:
    """Each batch is."""
    return len(ids) > 0


# ---- random pipelines ------------------------------------------------------------------------------------------------


class Anyhow(Toy):
    """A random pipeline with a function per row at its end; the unit is the batch, or the row."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.sources = 0
        self.pipeline, self.rows = self.source()
        if draw.random() < 0.3:
            self.join()
        for _ in range(draw.randint(0, 3)):
            self.grow()
        if draw.random() < 0.2:
            self.pipeline, self.rows = self.pipeline.repeat(2), self.rows * 2
        self.pipeline = self.pipeline.drop("l").map(same, "x", dtype=int)
        self.batched = draw.random() < 0.8
        if self.batched:
            self.pipeline = self.pipeline.batch(draw.randint(1, 9), last="keep")
        if self.batched and draw.random() < 0.3:
            self.pipeline = self.pipeline.map(same, "x").filter(there, "id")
        self.expected = Counter(self.rows)

    def loader(self, **options: Any) -> cedar.Loader:
        return self.pipeline.loader(seed=3, plan=self.draw.choice(["off", "off", "auto"]), **options)


def plain(unit: Any) -> Any:
    return {name: column if isinstance(column, int) else column.tolist() for name, column in unit.items()}


def stopped_often(toy: Anyhow, **options: Any) -> list[Any]:
    """All that a rank gets, stopped and resumed at random places."""
    got: list[Any] = []
    state = None
    while True:
        with toy.loader(order="any", **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
                loader.set_epoch(state["epoch"])  # the rest of it, be it nothing
            for unit in islice(loader, toy.draw.choice([1, 3, 8, 1000])):
                got.append(plain(unit))
                state = saved(loader)
            if loader.epoch == 1:
                return got


def each_once(toy: Anyhow, lagging: Lagging) -> None:
    world = toy.draw.choice([1, 1, 2, 3])
    got: list[Any] = []
    for rank in range(world):
        got += stopped_often(toy, executor=lagging, rank=rank, world=world)
    rows = got if toy.batched else [{name: [value] for name, value in row.items()} for row in got]
    assert pairs(rows) == toy.expected


@pytest.mark.heavy
@pytest.mark.parametrize("group", range(-(-CASES // GROUP)))
def test_each_row_comes_once_wherever_a_run_is_stopped(group: int) -> None:
    for number in range(group * GROUP, min(CASES, (group + 1) * GROUP)):
        with Lagging(number) as lagging:
            each_once(Anyhow(SEED + number), lagging)


# ---- what it does ----------------------------------------------------------------------------------------------------


class Late(Source):
    """Whose split 9 is there once a file is."""

    def __init__(self, file: Path) -> None:
        super().__init__(0, [10] * 20, known=True)
        self._file = file

    def read(self, split: Any) -> Any:
        assert split.part != 9 or eventually(self._file.exists)
        return super().read(split)


def gated(gate: Path, opens: int = -1, source: Source | None = None) -> cedar.Pipeline:
    """Row 70 waits for a file, which row ``opens`` makes."""

    def passes(x: int) -> int:
        if x == opens:
            gate.touch()
        assert x != 70 or eventually(gate.exists)
        return x

    splits = source or Made(0, [10] * 20, known=True)  # no task has rows of two
    return cedar.from_source(splits).select(x=col("id") // 1000 * 10 + col("id") % 1000).map(passes, "x").batch(10)


def test_a_slow_row_holds_up_no_other(tmp_path: Path) -> None:
    pipeline = gated(tmp_path / "gate", opens=190)
    with pipeline.loader(order="any", executor="threads", workers=2, plan="off") as loader:
        assert len(loader) == 20
        came = taken(run(loader)[0])
    assert sorted(came) == list(range(200))
    assert came.index(70) > came.index(120)
    with pipeline.loader(executor="threads", workers=2, plan="off") as loader:
        assert taken(run(loader)[0]) == list(range(200))


def test_a_slow_row_holds_up_no_split_that_is_read_meanwhile(tmp_path: Path) -> None:
    pipeline, came = gated(tmp_path / "gate", opens=190, source=Late(tmp_path / "read")), []
    with pipeline.loader(order="any", executor="threads", workers=3, plan="off") as loader:
        for step, batch in enumerate(loader):
            came += batch["x"].tolist()
            if step == 7:  # of all rows before the split but those that wait behind the slow one in its task
                (tmp_path / "read").touch()
    assert sorted(came) == list(range(200))
    assert came.index(70) > came.index(120)


def test_a_slow_row_in_another_process_holds_up_no_split_that_is_to_be_read(tmp_path: Path) -> None:
    pipeline = gated(tmp_path / "gate", opens=190)
    with pipeline.loader(order="any", executor="processes", workers=2, plan="off") as loader:
        came = taken(run(loader)[0])
    assert sorted(came) == list(range(200))
    assert came.index(70) > came.index(120)


def test_a_state_beside_a_row_that_is_held_up_is_small_and_goes_on_with_it(tmp_path: Path) -> None:
    pipeline = gated(tmp_path / "gate")
    with pipeline.loader(order="any", executor="threads", workers=2, plan="off") as loader:
        first, state = run(loader, 12)
        (tmp_path / "gate").touch()
    assert len(json.dumps(state)) < 2048
    assert 70 not in taken(first)
    with pipeline.loader(order="any", executor="inline", plan="off") as loader:
        loader.load_state_dict(state)
        rest, _ = run(loader)
    assert sorted(taken(first) + taken(rest)) == list(range(200))


def test_ranks_have_as_many_batches_of_rows_of_their_own() -> None:
    parts = []
    for rank in range(3):
        with SLOW.loader(order="any", executor="threads", workers=2, rank=rank, world=3, plan="off") as loader:
            parts.append(run(loader)[0])
            with SLOW.loader(executor="inline", rank=rank, world=3) as exact:
                assert Counter(taken(parts[-1])) == Counter(taken(run(exact)[0]))
    assert [len(part) for part in parts] == [7, 7, 7]


def test_steps_cut_epochs_of_rows_as_they_are_done() -> None:
    with SLOW.loader(order="any", executor="threads", workers=2, steps=7, plan="off") as loader:
        got = [x for _ in range(3) for batch in loader for x in batch["x"].tolist()]
    assert len(got) == 210
    assert sorted(got[:200]) == list(range(200))


def test_copies_to_a_device_stand_where_the_caller_stands() -> None:
    options: dict[str, Any] = {"order": "any", "executor": "threads", "workers": 2, "plan": "off", "device": "cpu"}
    with SLOW.loader(**options) as loader:
        first, state = run(loader, 5)
    with SLOW.loader(**options) as loader:
        loader.load_state_dict(state)
        rest, _ = run(loader)
    assert sorted(taken(first) + taken(rest)) == list(range(200))


def test_slices_of_one_batch_come_in_order() -> None:
    with SLOW.loader(order="any", executor="threads", split_batches=True, rank=1, world=2) as loader:
        assert "slices of the same batches" in loader.explain()
        assert taken(run(loader)[0]) == [x for x in range(200) if x % 10 >= 5]


# ---- what it refuses -------------------------------------------------------------------------------------------------


def test_a_state_is_of_one_kind_of_order() -> None:
    states = {}
    for order in ("any", "exact"):
        with SLOW.loader(order=order, executor="inline") as loader:
            states[order] = run(loader, 2)[1]
    for order, other in (("any", "exact"), ("exact", "any")):
        with (
            SLOW.loader(order=order, executor="inline") as loader,
            pytest.raises(cedar.ResumeError, match=f'saved with order="{other}"'),
        ):
            loader.load_state_dict(states[other])


def test_another_number_of_ranks_is_refused_in_the_middle_of_an_epoch() -> None:
    states = []
    for rank in range(2):
        with SLOW.loader(order="any", executor="inline", rank=rank, world=2) as loader:
            states.append(run(loader, 2)[1])
    with (
        SLOW.loader(order="any", executor="inline", rank=0, world=1) as loader,
        pytest.raises(cedar.ResumeError, match="cannot continue on another number of ranks"),
    ):
        loader.load_state_dict(states)


@pytest.mark.heavy
def test_positions_that_somebody_changed_are_refused_or_harmless() -> None:
    with SLOW.loader(order="any", executor="threads", workers=2, plan="off") as loader:
        state = run(loader, 12)[1]
    entry = state["open"]["0"]
    (counted, ready, none), skip = entry["deal"]
    draw = random.Random(5)
    for _ in range(200):
        changed = json.loads(json.dumps(ready))
        inner = changed[0][0]
        odd = draw.choice([None, -1, 3, [], [[3, 1]], [[0, 400]], [5, 5], [190, 195], "x", 1 << 61])
        inner[draw.randrange(5)] = odd
        entry["deal"] = [[counted, changed, none], skip]
        state.pop("check", None)
        with SLOW.loader(order="any", executor="inline", plan="off") as loader:
            try:
                loader.load_state_dict(seal(state))
                list(loader)
            except cedar.CedarError:
                pass
