"""NumericEnvironment: what it holds, where it is set, and what a state and a plan make of it."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
import threadpoolctl

import cedar
from cedar.core import numeric
from cedar.core.errors import PlanError, ResumeError
from cedar.core.numeric import NumericEnvironment, flushes, hold_threads
from cedar.plan.data import Plan
from tests.toy_runs import saved


def blas() -> int:
    """Threads of NumPy's library, as the process has them."""
    return next(int(lib["num_threads"]) for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas")


@pytest.fixture
def three() -> Any:
    """The process computes with three threads."""
    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        yield


def rows(n: int = 12) -> cedar.Pipeline:
    return cedar.from_items([{"x": i} for i in range(n)])


def of_task(_: int) -> int:
    return blas()


# ---- what is set, and put back ---------------------------------------------------------------------------------------


def test_variables_of_libraries_say_how_many_threads(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert (NumericEnvironment.of_caller().blas, NumericEnvironment.of_caller().openmp) == (1, 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "6,2")
    assert (NumericEnvironment.of_caller().blas, NumericEnvironment.of_caller().openmp) == (6, 6)
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    assert (NumericEnvironment.of_caller().blas, NumericEnvironment.of_caller().openmp) == (2, 6)


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_functions_have_one_thread_and_the_trainer_its_own(executor, three):
    between = set()
    for batch in rows().map(of_task, "x", dtype=int).batch(3).loader(executor=executor, workers=2):
        assert set(batch["x"].tolist()) == {1}
        between.add(blas())
    assert between == ({3} if executor == "inline" else {1})  # the same between any two batches
    assert blas() == 3


def test_a_run_without_functions_leaves_the_process_alone(three):
    for _ in rows().with_columns(y=cedar.col("x") + 1).batch(3).loader(executor="threads"):
        assert blas() == 3


def test_those_who_hold_may_overlap(three):
    first, second = hold_threads(NumericEnvironment()), hold_threads(NumericEnvironment())
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert blas() == 1
    second.__exit__(None, None, None)
    assert blas() == 3


def test_what_a_task_sets_in_its_thread_is_put_back():
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such mode")
    try:
        assert flushes()
        with NumericEnvironment(openmp=torch.get_num_threads() + 1, flush=False).entered():
            assert not flushes()
            inside = torch.get_num_threads()
        assert flushes()
        assert inside == torch.get_num_threads() + 1
    finally:
        torch.set_flush_denormal(False)


def test_a_library_that_comes_within_a_task_has_the_task_done_again(monkeypatch):
    came = []
    monkeypatch.setattr(numeric, "arrived", lambda: len(came))
    monkeypatch.setattr(NumericEnvironment, "set", lambda self: [lambda: None] * bool(came))
    assert NumericEnvironment().run(lambda: came.append(1) or len(came) if not came else "again") == "again"


# ---- states and plans ------------------------------------------------------------------------------------------------


def test_a_state_brings_its_environment(monkeypatch):
    p = rows().map(of_task, "x", dtype=int).batch(3)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with p.loader(executor="inline") as loader:
        assert set(next(iter(loader))["x"].tolist()) == {2}
        state = saved(loader)
        assert "2 threads of BLAS" in str(loader.report())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with p.loader(executor="inline") as loader:
        loader.load_state_dict(state)
        assert {v for batch in loader for v in batch["x"].tolist()} == {2}


def test_what_a_state_cannot_bring_is_a_warning():
    p = rows().map(abs, "x", dtype=int).batch(3)
    loader = p.loader()
    state = loader.state_dict()
    state.pop("check")
    state["numeric"] |= {"polars": state["numeric"]["polars"] + 1, "matmul": "medium"}
    from cedar.engine.delivery.state import seal

    with pytest.warns(UserWarning, match="POLARS_MAX_THREADS=.*set_float32_matmul_precision"):
        p.loader().load_state_dict(seal(state))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p.loader().load_state_dict(loader.state_dict())


@pytest.mark.parametrize("found", [7, {}, {"blas": 1}, "one"])
def test_a_damaged_environment_is_refused_by_name(found, tmp_path):
    from cedar.engine.delivery.state import seal

    p = rows().map(abs, "x", dtype=int).batch(3)
    state = p.loader().state_dict()
    state.pop("check")
    with pytest.raises(ResumeError, match="numeric environment"):
        p.loader().load_state_dict(seal(state | {"numeric": found}))
    path = tmp_path / "plan.json"
    p.loader(plan="off").plan.save(path)
    text = path.read_text()
    import json

    path.write_text(json.dumps(json.loads(text) | {"numeric": found}))
    with pytest.raises(PlanError, match="numeric environment"):
        Plan.load(path, p)


def test_a_plan_keeps_the_environment(tmp_path, monkeypatch):
    p = rows().map(of_task, "x", dtype=int).batch(3)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    p.loader(plan="off").plan.save(tmp_path / "plan.json")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = Plan.load(tmp_path / "plan.json", p)
    assert plan.numeric is not None
    assert plan.numeric.blas == 2
    with p.loader(plan=plan, executor="inline") as loader:
        assert {v for batch in loader for v in batch["x"].tolist()} == {2}


# ---- classes ---------------------------------------------------------------------------------------------------------


class Slow:
    """Counts how many are made at a time."""

    now = most = made = 0
    threads: set[int] = set()

    def __init__(self) -> None:
        Slow.now += 1
        Slow.made += 1
        Slow.most = max(Slow.most, Slow.now)
        time.sleep(0.01)
        Slow.now -= 1

    def __call__(self, x: int) -> int:
        time.sleep(0.001)
        return x


def test_one_instance_is_made_at_a_time():
    Slow.most = Slow.made = 0
    with rows(400).map(Slow, "x", dtype=int).batch(4).loader(executor="threads", workers=6, plan="off") as loader:
        assert sum(len(batch["x"]) for batch in loader) == 400
    assert Slow.most == 1
    assert Slow.made > 1


def test_a_constructor_may_run_a_pipeline_with_classes():
    class Inner:
        def __call__(self, x: int) -> int:
            return x + 1

    class Outer:
        def __init__(self) -> None:
            inner = rows(40).map(Inner, "x", dtype=int).batch(4)
            self.total = sum(int(b["x"].sum()) for b in inner.loader(executor="threads", workers=3))

        def __call__(self, x: int) -> int:
            return self.total + x

    with rows(8).map(Outer, "x", dtype=int).batch(4).loader(executor="threads", workers=2) as loader:
        assert [x for batch in loader for x in batch["x"].tolist()] == [820 + i for i in range(8)]
