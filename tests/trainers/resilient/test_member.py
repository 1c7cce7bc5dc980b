"""One worker among the others: what it is to do, and the state that it gives to who joins."""

from __future__ import annotations

import pytest
import torch

from cedar.trainers.resilient.executor import Waiting
from cedar.trainers.resilient.member import Pending, digest, receive_state, send_state
from cedar.trainers.resilient.model import State
from cedar.trainers.resilient.schedule import Costs, Worker
from tests.trainers.resilient.toy_grid import JOB
from tests.trainers.resilient.toy_transport import StrictNetwork, StrictTransport


def test_a_job_says_what_is_planned_for() -> None:
    assert JOB.problem(frozenset(), Costs(forward=2)).costs.forward == 2


def state(version: int, factor: float = 1.0) -> State:
    return State(version, version - 1, *(factor * torch.arange(4.0) + at for at in range(3)))


@pytest.mark.parametrize(
    "pending",
    [None, Pending(state(6, 0.5), torch.ones(4), 0.25, line=3), Pending(state(6), torch.full((4,), 2.0), None, line=1)],
    ids=["settled", "clipped", "skipped"],
)
def test_who_joins_gets_a_state_bit_for_bit_and_the_step_that_may_be_undone(pending: Pending | None) -> None:
    network, waiting = StrictNetwork(), Waiting(0, lambda: 0, 5)
    old, new = Worker(1, 0), Worker(1, 1)
    send_state(StrictTransport(network, old, waiting), new, state(7), pending)
    found, undo = receive_state(StrictTransport(network, new, waiting), old, torch.zeros(4))
    assert alike(found, state(7))
    assert (undo is None) is (pending is None)
    if undo is not None and pending is not None:
        assert alike(undo.state, pending.state)
        assert torch.equal(undo.gradient, pending.gradient)
        assert (undo.scale, undo.line) == (pending.scale, pending.line)


def alike(one: State, other: State) -> bool:
    tensors = all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("master", "first", "second"))
    return tensors and (one.version, one.updates) == (other.version, other.updates)


def test_a_digest_is_of_every_bit_of_the_weights() -> None:
    one, zeros = state(7), torch.zeros(4)
    assert digest(one) == digest(State(9, 9, one.master.clone(), zeros, zeros))
    assert digest(one) != digest(State(7, 6, torch.nextafter(one.master, zeros + 9), one.first, one.second))


@pytest.mark.parametrize("pending", [False, True])
def test_a_worker_joins_a_stage_without_trained_parameters(pending: bool) -> None:
    network, waiting, nothing = StrictNetwork(), Waiting(0, lambda: 0, 5), torch.zeros(0)
    old, new, empty = Worker(1, 0), Worker(1, 1), State(7, 6, nothing, nothing, nothing)
    undo = Pending(State(6, 5, nothing, nothing, nothing), nothing, 1.0, line=3) if pending else None
    send_state(StrictTransport(network, old, waiting), new, empty, undo)
    found, found_undo = receive_state(StrictTransport(network, new, waiting), old, nothing)
    assert alike(found, empty)
    assert (found_undo is not None) is pending
