"""Stages: how many rows a task gets, and arrays that are written into the memory of their batch, once."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import cedar
from cedar.core import buffers
from cedar.engine.streams import stage
from tests.engine.delivery.test_elastic import Made
from tests.toy_pipelines import Source

ROWS, BATCH, SHAPE = 90, 16, (512, 1024)  # half a MB a row: a batch is larger than a task


def picture(x: int) -> npt.NDArray[np.uint8]:
    return np.full(SHAPE, x, np.uint8)


def odd_one_out(x: int) -> npt.NDArray[np.uint8]:
    if x == 37:
        raise ValueError("no picture")
    return picture(x)


def of_two_types(x: int) -> npt.NDArray[Any]:
    """Some rows fit once they are converted."""
    return np.full(SHAPE, x, np.float16 if x % 5 == 1 else np.float32)


SCRATCH = np.empty(SHAPE, np.uint8)


def of_one_array(x: int) -> npt.NDArray[np.uint8]:
    SCRATCH[:] = x
    return SCRATCH


def itself(a: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return a


def numbers(fn: Any = picture, **options: Any) -> cedar.Pipeline:
    return cedar.from_items([{"x": i} for i in range(ROWS)]).map(fn, "x", into="a", **options)


def rows(loader: cedar.Loader) -> list[list[int]]:
    """Of each batch, the value of each row, of which all items are alike."""
    found = []
    for batch in loader:
        a = np.asarray(batch["a"])
        assert a.flags.c_contiguous
        assert a.flags.writeable
        assert (a == a[:, :1, :1]).all()
        found.append(a[:, 0, 0].tolist())
        a[:] = 255  # the caller's own
    return found


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each batch that was put together, whether its rows lay there already."""
    found: list[bool] = []
    plain = buffers.joined

    def joined(arrays: Any) -> Any:
        whole = plain(arrays)
        found.append(whole is not None)
        return whole

    monkeypatch.setattr(buffers, "joined", joined)
    return found


@pytest.mark.parametrize("format", ["numpy", "torch"])
def test_rows_lie_in_their_batch_once_their_size_is_known(joins: list[bool], format: str) -> None:
    pipeline = numbers().drop("x").batch(BATCH, last="keep")
    with pipeline.loader(executor="threads", workers=2, plan="off", format=format) as loader:
        if format == "torch":
            pytest.importorskip("torch")
        expected = [list(range(ROWS))[i : i + BATCH] for i in range(0, ROWS, BATCH)]
        assert rows(loader) == expected
    assert joins
    assert all(joins)


def test_small_rows_are_put_together_as_before(joins: list[bool]) -> None:
    pipeline = cedar.from_items([{"x": i} for i in range(ROWS)]).map(lambda x: np.full(8, x), "x", into="a").batch(4)
    with pipeline.loader(executor="threads", workers=2, plan="off") as loader:
        assert [batch["a"][:, 0].tolist() for batch in loader][-1] == [88, 89]
    assert not any(joins)


def test_the_first_batch_of_an_epoch_waits_for_no_task_of_the_next() -> None:
    gate = threading.Event()
    gate.set()

    def waits(x: int) -> int:
        if x >= 16:
            gate.wait(60)
        return x

    pipeline = cedar.from_source(Made(0, [8] * 10, known=True)).map(waits, "id", dtype=int).batch(8)
    with pipeline.loader(executor="threads", workers=2, plan="off") as loader:
        assert len(list(loader)) == 10
        gate.clear()
        epoch = iter(loader)
        assert next(epoch)["id"].tolist() == list(range(8))  # both threads wait by now
        assert not gate.is_set()
        gate.set()
        assert len(list(epoch)) == 9


def test_rows_that_come_while_a_task_works_keep_the_other_worker_busy() -> None:
    begun, second = threading.Event(), threading.Event()

    class Later(Source):
        def read(self, split: Any) -> Any:
            assert not split.part or begun.wait(60)
            return super().read(split)

    def works(x: int) -> int:
        if x == 0:
            begun.set()
            assert second.wait(60), "nothing works on the rows of the second split"
        elif x >= 1000:
            second.set()
        return x

    pipeline = cedar.from_source(Later(0, [8] * 2, known=True)).map(works, "id", dtype=int).batch(8)
    with pipeline.loader(executor="threads", workers=2, plan="off") as loader:
        assert [batch["id"].tolist() for batch in loader] == [list(range(8)), list(range(1000, 1008))]


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["threads", "inline"])
@pytest.mark.parametrize(
    "pipeline",
    [
        numbers().batch(BATCH),
        numbers().shuffle(seed=1, window=20).map(itself, "a").batch(BATCH),
        numbers().map(itself, "a").map(itself, "a").batch(BATCH, last="keep"),
        numbers().filter(lambda x: x % 3 > 0, "x").map(itself, "a").batch(BATCH),
        numbers(of_two_types).batch(BATCH),
        numbers(odd_one_out, on_error=cedar.Skip()).batch(BATCH, last="keep"),
        numbers(odd_one_out, on_error=cedar.Skip(refill=True)).batch(BATCH, last="keep"),
        numbers().repeat(2).batch(BATCH),
        numbers().take(50).map(itself, "a").batch(BATCH, last="pad"),
    ],
)
def test_the_rows_are_those_of_the_pipeline_wherever_they_were_written(pipeline: cedar.Pipeline, executor: str) -> None:
    with pipeline.loader(executor="inline", plan="off") as loader:
        expected = [batch["a"][:, 0, 0].tolist() for batch in loader]
    with pipeline.loader(executor=executor, workers=3, plan="off") as loader:
        assert rows(loader) == expected
        loader.set_epoch(0)
        state = None
        for _, _ in zip(range(2), loader, strict=False):
            state = loader.state_dict()
    assert state is not None
    with pipeline.loader(executor=executor, workers=3, plan="off") as loader:
        loader.load_state_dict(state)
        assert rows(loader) == expected[2:]


def test_an_array_is_taken_as_it_is_returned_though_the_next_call_changes_it() -> None:
    with numbers(of_one_array).batch(BATCH).loader(executor="inline", plan="off") as loader:
        assert rows(loader)[0] == list(range(BATCH))


@pytest.mark.parametrize(
    "parts",
    [
        lambda a: [a[:1], a[2:]],  # a gap
        lambda a: [a[2:], a[:2]],  # another order
        lambda a: [a[:2], a[2:].copy()],  # other memory
        lambda a: [a[:2], a[2:, :1]],  # other shapes
        lambda a: [a[:2], a[2:].view(np.uint8).reshape(2, 16)],  # other types
        lambda a: [a[::2], a[1::2]],
        lambda a: [a.copy()],
    ],
)
def test_arrays_that_do_not_follow_each_other_are_not_joined(parts: Any) -> None:
    assert buffers.joined(parts(np.arange(8, dtype=np.int64).reshape(4, 2))) is None


def test_read_only_parts_make_a_read_only_whole() -> None:
    whole = np.arange(8).reshape(4, 2)
    whole.flags.writeable = False
    found = buffers.joined([whole[:2], whole[2:]])
    assert found is not None
    assert found.tolist() == whole.tolist()
    assert not found.flags.writeable


@pytest.mark.parametrize("plan", ["auto", "off"])  # as written, no operator is measured separately
def test_the_next_epoch_begins_with_the_task_size_that_was_measured(plan: Any) -> None:
    loader = cedar.from_items(list(range(4000))).map(abs, "item", into="y").batch(4).loader(workers=2, plan=plan)
    flows: list[int] = []
    begin = stage.StageFlow._top_up

    def note(flow: stage.StageFlow, wait: bool) -> None:
        first = not flow._begun
        begin(flow, wait)
        if first and flow._stream.per_row:
            flows.append(flow._rows)

    with pytest.MonkeyPatch.context() as patch, loader:
        patch.setattr(stage.StageFlow, "_top_up", note)
        list(loader)
        list(loader)
    assert flows[0] == 16
    assert flows[-1] > 16


def test_tasks_grow_with_the_time_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [64.0]
    monkeypatch.setattr(stage, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    stream: Any = SimpleNamespace(tasks=SimpleNamespace(runner=None), per_row=True)
    source: Any = None
    flow = stage.StageFlow(stream, source, [0, 0])
    assert flow._rows == 16
    clock[0] += 1 / 16  # a twentieth of it: the code that waits for the first batch waits for those before it
    flow._adapt(16, 0.001, 100)
    assert flow._rows == 50
    clock[0] += 10
    flow._adapt(32, 0.002, 100)
    assert flow._rows == 200
    flow._adapt(128, 0.008, 100)
    flow._adapt(512, 0.032, 100)
    flow._adapt(1024, 0.064, 100)
    assert flow._rows == 1600  # 100 ms
    flow._adapt(1600, 1.0, 100)
    assert 400 < flow._rows < 600, "one task that was interrupted counts a quarter"


def test_tasks_end_when_the_names_of_the_module_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    held = iter(cedar.from_items([{"x": i} for i in range(40)]).batch(4).loader(executor="inline"))
    next(held)
    for name in ("Result", "_running"):  # as at interpreter exit
        monkeypatch.setattr(stage, name, None)
    held.close()  # type: ignore[attr-defined]


# ---- where another plan can continue ---------------------------------------------------------------------------------


def double(x: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return x * 2


def some(x: int) -> bool:
    return x % 7 != 3


def twice(x: int) -> list[int]:
    return [x, x]


def one_file() -> cedar.Pipeline:
    return cedar.from_numpy({"x": np.arange(2_000)})  # one window


SWITCHES = {
    "batches": lambda: one_file().batch(10).map(double, "x"),
    "fewer rows": lambda: one_file().filter(some, "x").batch(10).map(double, "x"),
    "more rows": lambda: one_file().flat_map(twice, "x").batch(10).map(double, "x"),
    "two inputs": lambda: cedar.concat([one_file(), one_file()]).batch(10).map(double, "x"),
}


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("rank", [None, 0, 1])
@pytest.mark.parametrize("kind", SWITCHES)
def test_another_plan_takes_over_after_a_few_batches(kind: str, rank: int | None, executor: str) -> None:
    ranks = {} if rank is None else {"rank": rank, "world": 2}
    whole = [batch["x"].tolist() for batch in SWITCHES[kind]().loader(plan="off", format="numpy", **ranks)]
    loader = SWITCHES[kind]().loader(plan="off", executor=executor, workers=2, format="numpy", **ranks)
    plans: Any = loader._epochs.job.plans
    found, waited = [], 0
    for batch in loader:
        found.append(batch["x"].tolist())
        if len(found) in (20, 50):
            plans._schedule_switch(plans.current, "")
        waited = waited + 1 if plans._next else 0
        assert waited <= 30  # the tasks in progress
    assert found == whole
    loader.close()


def test_a_window_of_a_shuffle_is_not_begun_again() -> None:
    read: list[int] = []

    def note(x: int) -> int:
        read.append(x)
        return x

    pipeline = one_file().map(note, "x", into="y").shuffle(seed=1).batch(10).map(double, "x")
    with pipeline.loader(plan="off", workers=2) as loader:
        plans: Any = loader._epochs.job.plans
        for number, _ in enumerate(loader):
            if number == 20:
                read.clear()
                plans._schedule_switch(plans.current, "")
    assert not read
