"""Copies to a device that end early: errors, breaks, closing; each comes where it belongs and leaves nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cedar
from cedar.engine.delivery.device_prefetch import AHEAD
from cedar.engine.delivery.formats import CudaMover, PlainMover, make_mover, on_tensors
from tests.toy_device import Toy, left_threads, numbers, put_in, xs
from tests.toy_runs import plain
from tests.waiting import LIMIT, eventually

torch: Any = pytest.importorskip("torch")


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


# ---- copies that arrive, and states meanwhile ------------------------------------------------------------------------


# ---- what arrives ----------------------------------------------------------------------------------------------------


def test_every_kind_of_column_arrives_as_it_was(toy: Toy) -> None:
    rows = [
        {
            "x": i,
            "text": f"t{i}",
            "list": list(range(i % 3)),
            "words": ["a"] * (i % 2),
            "nested": {"a": float(i), "b": {"c": [i] * (i % 4)}},
            "lists": [[i], [i, i]][: i % 3],
            "g": [i // 4] * 3,
            "h": [i // 4],
        }
        for i in range(40)
    ]
    p = cedar.from_items(rows).dedup([["g", "h"]]).batch(8)
    there = list(p.loader(device="cpu"))
    here = list(p.loader(format="torch"))
    assert toy.count("end") == 5
    assert isinstance(there[0]["g"], cedar.InverseKeyedJaggedTensor)
    assert there[0]["g"] is there[0]["h"], "one group under two names is copied once"
    for moved, kept in zip(there, here, strict=True):
        assert list(moved) == list(kept)
        for name in set(rows[0]) - {"g", "h"}:
            assert plain(moved[name]) == plain(kept[name])
        assert moved["g"] == kept["g"]


def test_a_shared_tensor_is_copied_once() -> None:
    tensor, calls = torch.arange(3), []
    found = on_tensors({"a": tensor, "b": {"c": tensor}, "s": ["text"]}, lambda t: calls.append(t) or t + 1, "toy")
    assert len(calls) == 1
    assert found["a"] is found["b"]["c"]
    assert found["s"] == ["text"]


def test_two_batches_are_ahead_and_no_more(toy: Toy) -> None:
    stream = iter(numbers().batch(4).loader(device="cpu"))
    for number in range(5):
        assert next(stream)["x"].tolist() == list(range(4 * number, 4 * number + 4))
        toy.wait("begin", number + AHEAD)
        time.sleep(0.01)  # a thread that does not stop at two continues now
        assert toy.count("begin") == number + 1 + AHEAD
        assert toy.count("end") == number + 1
    assert toy.threads == {"begin": {"cedar-device"}, "end": {threading.current_thread().name}}


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_all_executors_deliver_the_same(toy: Toy, executor: str) -> None:
    p = numbers().map(lambda x: x + 1, "x").shuffle(seed=1).batch(4)
    with p.loader(device="cpu", executor=executor, workers=2) as loader:
        assert [xs(list(loader)) for _ in range(2)] == [
            xs(list(p.loader(executor="inline", epoch=epoch))) for epoch in range(2)
        ]


def test_rows_stay_python_values(toy: Toy) -> None:
    assert next(iter(numbers().loader(device="cpu"))) == {"x": 0, "y": 0.0}
    assert toy.log == []


class Items:
    """Rows of several splits: ranks have something to share."""

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"x": index}


# ---- states ----------------------------------------------------------------------------------------------------------

_STATES: dict[str, tuple[Callable[[], cedar.Pipeline], dict[str, Any]]] = {
    "shuffled": (lambda: numbers().shuffle(seed=3, window=16).batch(4), {}),
    "filtered": (lambda: numbers().filter(cedar.col("x") % 3 > 0).batch(4, last="keep"), {}),
    "steps": (lambda: numbers().shuffle().batch(4), {"steps": 7}),
    "short of steps": (lambda: numbers(12).shuffle().batch(4), {"steps": 7}),
    "lanes": (
        lambda: cedar.from_items(Items()).filter(lambda x: x % 3 != 0, "x").batch(4, last="keep", local=True),
        {"rank": 1, "world": 2},
    ),
    "slices": (lambda: numbers().batch(8), {"rank": 1, "world": 2, "split_batches": True}),
    "skips": (
        lambda: numbers().map(lambda x: 1 // (x % 5) and x, "x", on_error=cedar.Skip(), dtype=int).batch(4),
        {},
    ),
    "refilled": (
        lambda: numbers().map(lambda x: 1 // (x // 8 % 2) and x, "x", on_error=cedar.Skip(refill=True), dtype=int)
        .batch(4, last="keep"),
        {},
    ),
}  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("case", _STATES)
def test_a_state_says_what_was_received_not_what_was_copied_ahead(toy: Toy, case: str) -> None:
    make, options = _STATES[case]
    here, there = make().loader(format="torch", **options), make().loader(device="cpu", **options)
    states, batches = [there.state_dict()], []

    def describe(loader: cedar.Loader) -> dict[str, Any]:
        # where counts are unknown, one place has several names in a state, with a device or without
        return {k: v for k, v in loader.state_dict().items() if case != "lanes" or k not in ("open", "check")}

    assert describe(here) == describe(there)
    for epoch in range(2):
        for kept, moved in zip(here, there, strict=True):
            assert plain(moved["x"]) == plain(kept["x"])
            toy.settle()  # the device is as far ahead as it gets of what the state may say
            assert describe(there) == describe(here)
            if not epoch:
                states.append(there.state_dict())
                batches.append(moved["x"].tolist())
        assert describe(there) == describe(here)
    for number in range(len(batches)) if case == "lanes" else (0, 1, len(batches) // 2):
        again = make().loader(device="cpu", **options)
        again.load_state_dict(states[number])
        assert xs(list(again)) == batches[number:]


def test_a_break_starts_the_epoch_again_and_a_state_goes_on(toy: Toy) -> None:
    whole = xs(list(numbers().shuffle().batch(4).loader(executor="inline")))
    with numbers().shuffle().batch(4).loader(device="cpu") as loader:
        for _, _ in zip(range(3), loader, strict=False):
            state = loader.state_dict()
        assert xs(list(loader)) == whole
        loader.load_state_dict(state)
        assert xs(list(loader)) == whole[3:]
        loader.set_epoch(0)
        assert xs(list(loader)) == whole


def test_ranks_that_change_in_number_go_on(toy: Toy) -> None:
    p = numbers(48).shuffle(seed=2).batch(4)
    seen: list[int] = []
    states = []
    for rank in range(2):
        stream = iter(loader := p.loader(device="cpu", rank=rank, world=2))
        seen += [x for _ in range(2) for x in next(stream)["x"].tolist()]
        toy.settle()
        states.append(loader.state_dict())
        loader.close()
    for rank in range(3):
        loader = p.loader(device="cpu", rank=rank, world=3)
        loader.load_state_dict(states)
        seen += [x for batch in loader for x in batch["x"].tolist()]
    assert sorted(seen) == sorted(set(seen))
    assert len(seen) >= 48 - 8  # the rest does not fill three ranks


# ---- batches again ---------------------------------------------------------------------------------------------------


def test_read_and_commit_go_through_the_device(toy: Toy) -> None:
    with numbers().shuffle().batch(4).loader(device="cpu") as loader:
        stream = iter(loader)
        batches = [next(stream) for _ in range(3)]
        assert plain(loader.read(1)) == plain(batches[1])
        assert plain(loader.read(7)["x"]) == plain(numbers().shuffle().batch(4).loader(format="torch").read(7)["x"])
        loader.commit(1)
        with pytest.raises(cedar.PipelineError, match="committed"):
            loader.read(1)
        assert [*xs(batches), *xs(list(stream))] == xs(list(numbers().shuffle().batch(4).loader()))


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "nonsense"}, "device='nonsense' is not a torch device"),
        ({"device": object()}, "is not a torch device"),
        ({"device": "cpu", "format": "arrow"}, "device= needs format"),
        pytest.param(
            {"device": "cuda:1"},
            "torch finds no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
)
def test_what_is_no_device(options: dict[str, Any], message: str) -> None:
    with pytest.raises(cedar.PipelineError, match=message) as caught:
        numbers().batch(4).loader(**options)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_the_format_is_torch_where_a_device_is_given() -> None:
    assert isinstance(next(iter(numbers().batch(4).loader(device="cpu")))["x"], torch.Tensor)
    assert make_mover("cpu") is None
    assert make_mover(torch.device("meta")) == PlainMover(torch.device("meta"))


def test_a_device_without_memory() -> None:
    batches = list(numbers().batch(4).loader(device="meta"))
    assert [(b["x"].device.type, tuple(b["x"].shape)) for b in batches] == [("meta", (4,))] * 10


def test_the_order_of_what_is_asked_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned, copied on the side stream, then the event; the caller's stream waits before it uses the tensors."""
    log: list[Any] = []
    entered: list[Any] = []

    class Within:
        def __init__(self, what: Any) -> None:
            self.what = what

        def __enter__(self) -> None:
            entered.append(self.what)

        def __exit__(self, *error: object) -> None:
            entered.pop()

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def record_event(self) -> str:
            log.append(("record", self.name))
            return "copied"

        def wait_event(self, event: str) -> None:
            log.append(("wait", self.name, event))

    class Tensor:
        dtype = "float32"

        def __init__(self, kind: str) -> None:
            self.device = torch.device(kind)

        def detach(self) -> None: ...

        def pin_memory(self) -> Tensor:
            log.append(("pin", [str(getattr(e, "name", e)) for e in entered]))
            return self

        def to(self, device: Any, non_blocking: bool) -> Tensor:
            log.append(("copy", str(device), non_blocking))
            return Tensor("cuda:1")

        def record_stream(self, stream: Stream) -> None:
            log.append(("used", stream.name))

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("caller"))
    monkeypatch.setattr(torch.cuda, "device", Within)
    monkeypatch.setattr(torch.cuda, "stream", Within)
    mover = CudaMover(1)
    begun = mover.begin({"x": Tensor("cpu"), "s": ["text"]})
    assert log == [("pin", ["cuda:1", "side"]), ("copy", "cuda:1", True), ("record", "side")]
    assert entered == []
    log.clear()
    assert mover.end(begun)["s"] == ["text"]
    assert log == [("wait", "caller", "copied"), ("used", "caller")]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda() -> None:
    p = cedar.from_items([{"x": i, "l": [i] * (i % 3), "s": str(i)} for i in range(400)]).shuffle().batch(8)
    assert isinstance(make_mover("cuda"), CudaMover)
    kept = list(p.loader(format="torch"))
    for batch, here in zip(p.loader(device="cuda"), kept, strict=True):
        assert batch["x"].device.type == batch["l"].values.device.type == "cuda"
        assert (batch["x"] * 2).tolist() == (here["x"] * 2).tolist()  # on the caller's stream, without its own wait
        assert batch["l"].to_list() == here["l"].to_list()
        assert batch["s"] == here["s"]


def test_arrays_that_torch_has_not_stay() -> None:
    import numpy as np

    dates = np.array(["2024-01-01"], "M8[D]")
    assert on_tensors({"a": (dates, torch.arange(2))}, lambda t: t + 1, "toy")["a"][0] is dates


def test_whatever_a_function_returned_arrives_with_its_tensors_moved(toy: Toy) -> None:
    from collections import UserDict

    p = numbers(8).batch(4)
    x, (more, word) = next(iter(p.map(lambda b: (b["x"], [UserDict(y=b["x"] * 2), "s"])).loader(device="cpu")))
    assert toy.count("end") >= 1
    assert isinstance(x, torch.Tensor)
    assert torch.equal(more["y"], x * 2)
    assert word == "s"
    (x,) = next(iter(p.select("x").loader(device="cpu", format="tuple")))
    assert x.tolist() == [0, 1, 2, 3]
    rows = next(
        iter(cedar.from_items([{"x": 1.0}]).batch(1, collate=torch.utils.data.default_collate).loader(device="cpu"))
    )
    assert rows["x"].tolist() == [1.0]
