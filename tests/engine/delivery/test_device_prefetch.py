"""Copies to a device that end early: errors, breaks, closing; each comes where it belongs and leaves nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cedar
from tests.toy_device import Toy, left_threads, numbers, put_in, xs
from tests.waiting import LIMIT, eventually

pytest.importorskip("torch")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    yield put_in(monkeypatch)
    assert "cedar-device" not in left_threads()


# ---- errors ----------------------------------------------------------------------------------------------------------


def fails_at(bad: int) -> Callable[[int], int]:
    def checked(x: int) -> int:
        if x == bad:
            raise ValueError(f"no {x}")
        return x

    return checked


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_an_error_comes_after_the_batches_before_it_and_names_its_row(toy: Toy, executor: str) -> None:
    p = numbers().batch(4).map(lambda x: x + 0 * fails_at(16)(int(x[0])), "x")
    loader, seen = p.loader(device="cpu", executor=executor), []
    with pytest.raises(cedar.RowError, match="no 16") as caught:
        for batch in loader:
            seen.append(batch["x"].tolist())
            toy.settle()
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert caught.value.row is not None
    assert (caught.value.row.row, caught.value.row.epoch) == (16, 0)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
    assert isinstance(caught.value.__cause__, ValueError)
    assert loader.state_dict()["step"] == 4


def test_a_column_that_cannot_be_copied_is_named(toy: Toy) -> None:
    toy.fails["column"] = 2
    seen: list[Any] = []
    with pytest.raises(
        cedar.PipelineError, match="column 'x' cannot be copied to toy: TypeError: no float64"
    ) as caught:
        seen.extend(xs([batch]) for batch in numbers().batch(4).loader(device="cpu"))
    assert len(seen) == 2
    assert caught.value.row is not None
    assert caught.value.row.row == 8
    assert "cast" in (caught.value.fix or "")


@pytest.mark.parametrize("half", ["begin", "end"])
def test_a_device_that_fails_ends_the_run(toy: Toy, half: str) -> None:
    toy.fails[half] = 3
    seen: list[Any] = []
    loader = numbers().batch(4).loader(device="cpu")
    with pytest.raises(RuntimeError, match="the device is full"):
        seen.extend(xs([batch]) for batch in loader)
    assert len(seen) == 3
    assert loader.state_dict()["step"] == 3
    toy.fails.clear()
    loader.load_state_dict(loader.state_dict())
    assert len(list(loader)) == 7


def test_budgets_count_what_is_handed_over(toy: Toy) -> None:
    p = numbers().map(lambda x: 1 // (x - 6 and x - 21) and x, "x", dtype=int).batch(4)
    for options in ({"format": "torch"}, {"device": "cpu"}):
        loader, seen = p.loader(on_error=cedar.Skip(), **options), []
        for batch in loader:
            toy.settle()
            seen.append(len(batch["x"]))
            assert loader.report().rows == sum(seen)
            assert sum(loader.report().skipped.values()) == (len(seen) > 1) + (len(seen) > 5)
        assert seen == [4, 3, 4, 4, 4, 3, 4, 4, 4, 4]
        loader = p.loader(on_error=cedar.Skip(max_count=1), **options)
        with pytest.raises(cedar.CedarError) as caught:
            list(loader)
        assert loader.state_dict()["step"] == 5, "the second bad row is in batch 5"
        assert caught.value.row is not None
        assert caught.value.row.row == 21


# ---- endings ---------------------------------------------------------------------------------------------------------


def gone() -> bool:
    return eventually(lambda: not left_threads())


def test_close_break_exception_and_letting_go_leave_nothing(toy: Toy) -> None:
    loader = numbers(4000).map(abs, "x", dtype=int).batch(4).loader(device="cpu", executor="threads")
    for _ in loader:
        break
    assert gone()
    stream = iter(loader)
    next(stream)
    loader.close()
    assert gone()
    with pytest.raises(cedar.PipelineError, match="superseded"):
        next(stream)
    with pytest.raises(KeyError):
        for batch in loader:
            batch["nothing"]
    assert gone()
    stream = iter(loader)
    next(stream)
    del stream
    assert gone()
    first, second = iter(loader), iter(loader)
    assert next(first)["x"].tolist() == next(second)["x"].tolist()
    with pytest.raises(cedar.PipelineError, match="superseded"):
        next(first)
    assert next(second)["x"].tolist() == [4, 5, 6, 7]
    del second, first, loader
    assert gone()


def test_an_end_is_not_an_error_of_the_plan(toy: Toy) -> None:
    """Tasks that are dropped at a break fail in the thread: that says nothing of the plan."""
    p = numbers(400).map(abs, "x", into="z", dtype=int).filter(cedar.col("x") >= 0).batch(4)
    loader = p.map(lambda z: time.sleep(0.02) or z, "z").loader(device="cpu", executor="threads", workers=2)
    assert any(decision.applied for decision in loader.plan.decisions), "else nothing can be given up"
    for _, _ in zip(range(3), loader, strict=False):
        pass
    assert gone()
    assert not [note for note in loader.report().notes if "error" in note]
    assert any(decision.applied for decision in loader.plan.decisions)


def test_close_from_another_thread_wakes_the_caller(toy: Toy) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def stuck(x: int) -> int:
        if x == 4:
            entered.set()
            go_on.wait(LIMIT)
        return x

    loader = (
        numbers().map(stuck, "x", dtype=int).batch(4).loader(device="cpu", executor="threads", workers=1, plan="off")
    )

    def end() -> None:
        entered.wait(LIMIT)
        time.sleep(0.05)
        loader.close()
        go_on.set()

    ender = threading.Thread(target=end)
    ender.start()
    with pytest.raises(cedar.CedarError):
        list(loader)
    ender.join(LIMIT)
    assert gone()
