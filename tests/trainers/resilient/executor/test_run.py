"""Lists are carried out without tags; gradients are bitwise the same any code that did the work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cedar.simulate import one_f_one_b, zero_bubble
from cedar.trainers.resilient.data import FinalError
from cedar.trainers.resilient.executor import Executor, FinishedWork, Waiting
from cedar.trainers.resilient.model import Signature
from cedar.trainers.resilient.planner import Problem, plan
from cedar.trainers.resilient.schedule import Worker, grid, validate
from tests.trainers.resilient.toy_grid import MODEL, Tokens, engine, once
from tests.trainers.resilient.toy_transport import StrictNetwork, StrictTransport

WORKERS = list(grid(2, 2))


def problem(dead: frozenset[Worker] = frozenset(), **more: object) -> Problem:
    return Problem(2, 2, 3, dead, tied=(0, 1), **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fault_free() -> dict[int, torch.Tensor]:
    torch.set_num_threads(1)
    found, _ = once(plan(problem()).schedule)
    return {worker.stage: result.gradient for worker, result in found.items()}


def reference(stage: int) -> torch.Tensor:
    """The gradients by one process, without schedules, in the canonical order."""
    first, last = engine(0), engine(1)
    total = torch.zeros((first, last)[stage].layout.size)
    shared = first.layout.tied
    for replica in range(2):
        for micro_batch in range(3):
            key = replica, micro_batch
            sent = first.forward(0, key, Tokens().inputs(0, key), None)
            last.forward(0, key, sent, Tokens().targets(0, key))
            first.backward_input(key, last.backward_input(key, None))
            rows = first.backward_weight(key), last.backward_weight(key)
            total[shared:] += rows[stage][shared:]
            total[:shared] += rows[0][:shared]
            total[:shared] += rows[1][:shared]
    return total


def test_the_grid_is_bitwise_equal_to_one_process(fault_free: dict[int, torch.Tensor]) -> None:
    for stage in range(2):
        assert torch.equal(fault_free[stage], reference(stage))


@settings(max_examples=10)
@given(dead=st.sampled_from(WORKERS), mode=st.sampled_from(["sync", "staggered"]), memory=st.sampled_from([None, 1, 2]))
def test_gradients_do_not_depend_on_who_worked(
    fault_free: dict[int, torch.Tensor], dead: Worker, mode: str, memory: int | None
) -> None:
    schedule = plan(problem(frozenset({dead}), mode=mode, memory=memory)).schedule
    found, fifo = once(schedule)
    facts = validate(schedule)
    for worker, result in found.items():
        assert torch.equal(result.gradient, fault_free[worker.stage])
    for (source, to), expected in facts.channels.items():
        sent = [shape for a, b, shape in fifo.log if (a, b) == (source, to) and shape == (2, 5, 8)]
        assert len(sent) == len(expected)


@pytest.mark.parametrize("make", [one_f_one_b, zero_bubble])
def test_the_baselines_give_the_same_gradients(fault_free: dict[int, torch.Tensor], make: object) -> None:
    found, _ = once(make(problem()))  # type: ignore[operator]
    assert all(torch.equal(result.gradient, fault_free[worker.stage]) for worker, result in found.items())


def test_fast_sums_are_equal_up_to_rounding(fault_free: dict[int, torch.Tensor]) -> None:
    found, _ = once(plan(problem(frozenset({Worker(1, 0)}))).schedule, reduction="fast")
    for worker, result in found.items():
        assert torch.allclose(result.gradient, fault_free[worker.stage], atol=1e-6)
    peers = [result.gradient for worker, result in found.items() if worker.stage == 0]
    assert torch.equal(*peers)


def test_untied_stages_reduce_alone() -> None:
    model = replace(MODEL, tied=False)
    whole, _ = once(plan(Problem(2, 2, 3)).schedule, model)
    less, _ = once(plan(Problem(2, 2, 3, frozenset({Worker(0, 0)}))).schedule, model)
    assert all(torch.equal(less[worker].gradient, whole[worker].gradient) for worker in less)


def test_finished_work_is_not_done_again(fault_free: dict[int, torch.Tensor]) -> None:
    """The boundary logs: of a step that is redone, survivors compute only what the dead worker had."""
    kept = {worker: FinishedWork(0) for worker in WORKERS}
    once(plan(problem()).schedule, kept=kept)
    dead = Worker(1, 1)
    schedule = plan(problem(frozenset({dead}))).schedule
    lost = {(1, m) for m in range(3)}
    for worker, instructions in schedule.work.items():
        mine = {(d.replica, d.micro_batch) for d in instructions if d.kind == "F"}
        kept[worker].drop_unfinished(mine, logs=True)
        assert kept[worker].done == (mine - lost if worker.stage == 1 else mine)
        assert kept[worker].outputs
    found, _ = once(schedule, kept=kept)
    assert all(torch.equal(result.gradient, fault_free[worker.stage]) for worker, result in found.items())


def test_without_logs_or_with_other_routes_work_is_forgotten() -> None:
    kept = {worker: FinishedWork(0) for worker in WORKERS}
    once(plan(problem()).schedule, kept=kept, reduction="fast")
    one = kept[Worker(0, 0)]
    one.drop_unfinished({(0, 0), (0, 1)}, logs=True)  # 0.2 is in the sum, and another process works it now
    assert one.done == set()
    two = kept[Worker(0, 1)]
    two.drop_unfinished({(1, 0), (1, 1), (1, 2)}, logs=False)
    assert two.done == set()


def test_unequal_stages_are_told_before_anything_is_sent() -> None:
    schedule = plan(Problem(2, 1, 1)).schedule
    worker, fifo, mine = Worker(0, 0), StrictNetwork(), engine(0)
    mine.outputs = Signature((3, 5, 8), torch.float32)
    executor = Executor(worker, mine, StrictTransport(fifo, worker, Waiting(0, lambda: 0, 5)), Tokens())
    with pytest.raises(FinalError) as error:  # a repeated step would fail again
        executor.run(schedule, 0, FinishedWork(0))
    assert error.value.fix == "return activations of the same shape for all micro-batches"
    assert not fifo.log
