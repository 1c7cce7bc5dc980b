"""Who holds the GIL, told from functions that wait for something else."""

import sys

import pyarrow as pa
import pytest

import cedar
from cedar.execution import probing
from cedar.execution.binding import Binding
from cedar.operators.base import Env
from cedar.profile import Machine, OperatorProfile, Profile
from tests.operators import toy_transforms
from tests.operators.toy_transforms import Refuse


def test_the_waiting_for_a_run_is_not_that_for_the_call_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for alone, both, share in ((0.4, 0.6, 0.2), (3.0, 3.0, 1.0), (0.0, 1.0, 1.0), (0.0, 0.0, 0.0)):
        monkeypatch.setattr(probing, "_held_up", lambda call, threads, held=(alone, both): held[threads - 1])
        assert probing._share(1e-5, 1e-5, lambda: None, workers=2) == pytest.approx(share)


@pytest.mark.parametrize(
    ("wall", "held_up", "gil"),
    [
        (1e-5, 30.0, 1.0),  # beside a run whose threads take all turns: the function itself does not wait
        (3e-4, 30.0, 0.0),  # it waits as long in the run
        (1e-5, 1.0, 1.0),
        (1e-5, 0.0, 0.0),
    ],
)
def test_long_turns_of_others_are_no_waiting(
    monkeypatch: pytest.MonkeyPatch, wall: float, held_up: float, gil: float
) -> None:
    monkeypatch.setattr(probing, "_held_up", lambda call, threads: held_up * (threads - 1))
    assert probing._share(wall, 1e-5, lambda: None, workers=3) == pytest.approx(gil)


class Made:
    """A map-style dataset; says which items were asked for."""

    def __init__(self) -> None:
        self.asked: set[int] = set()

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, i: int) -> dict[str, int]:
        self.asked.add(i)
        return {"a": sum(range(i % 100))}


@pytest.mark.parametrize(("rows", "probed"), [(Made(), True), ([{"a": i} for i in range(100)], False)])
def test_of_a_dataset_it_is_asked_whether_its_items_hold_the_gil(
    monkeypatch: pytest.MonkeyPatch, rows: object, probed: bool
) -> None:
    root = cedar.from_items(rows).node
    binding = Binding(root, None, Env(sampling=True))
    calls = []

    def held_up(call: object, threads: int) -> float:
        calls.append(call)
        return threads - 1.0

    monkeypatch.setattr(probing, "_held_up", held_up)
    figures = OperatorProfile("from_items", 1, 100, wall=1e-4, cpu=1e-4)
    profile = Profile("", {0: figures}, Machine(2, 1 << 34), workers=2)
    found = probing.with_gil(profile, binding, 2).operators[0]
    assert (found.gil, len(calls) > 0) == ((1.0, True) if probed else (None, False))
    if probed:
        assert isinstance(rows, Made)
        rows.asked.clear()
        calls[0]()  # type: ignore[operator]
        assert rows.asked == set(range(50))  # 5 ms of items of 0.1 ms, and none made beside them


def test_operators_that_run_as_one_kernel_are_asked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"a": pa.array(range(64), pa.int64())})
    p = cedar.from_arrow(rows).map(Refuse(-1), "a").map(Refuse(-2), "a").map(abs, "a", dtype=int)
    binding = Binding(p.node, None, Env(sampling=True))
    figures = {i: OperatorProfile("map", 1, 64, wall=1e-4, cpu=1e-4) for i in range(4)}
    shares = iter((0.25, 0.75))
    monkeypatch.setattr(probing, "_share", lambda wall, cpu, call, workers: call() and next(shares))
    toy_transforms.ran().clear()
    turn = sys.getswitchinterval()
    probed = probing.with_gil(Profile("", figures, Machine(2, 1)), binding, 2)
    assert [probed.operators[i].gil for i in range(4)] == [None, 0.25, 0.25, 0.75]
    assert 2 in toy_transforms.ran(), "as the run makes it"
    assert sys.getswitchinterval() == turn
