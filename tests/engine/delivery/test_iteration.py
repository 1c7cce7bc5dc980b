"""One ``for``: how it ends, and what supersedes it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest

import cedar
from cedar import PipelineError
from cedar.operators.instances import Instances
from tests.engine.delivery.few_rows import rows, xs


def test_a_second_loop_supersedes_the_first() -> None:
    loader = rows().batch(5).loader()
    first = iter(loader)
    next(first)
    assert xs(list(loader)) == xs(list(rows().batch(5).loader()))
    with pytest.raises(PipelineError, match="superseded"):
        next(first)
    second = iter(loader)
    next(second)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(PipelineError, match="superseded: .* a state was loaded"):
        next(second)


def test_a_signal_while_a_constructor_is_waited_for_loses_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    p = rows().batch(2)
    expected, at = xs(list(p.loader())), iter(range(100))

    def interrupted(_: Any) -> None:
        if next(at) == 3:
            raise KeyboardInterrupt  # as a handler does, while another thread makes an instance of a class

    got: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(Instances, "leave", interrupted)
        loader = p.loader()
        with pytest.raises(KeyboardInterrupt):
            for batch in loader:
                got += xs([batch])
    state = loader.state_dict()
    assert (len(got), state["step"]) == (3, 3)
    again = p.loader()
    again.load_state_dict(state)
    assert got + xs(list(again)) == expected


class Slow:
    """Loading it takes a while."""

    def __init__(self) -> None:
        time.sleep(0.3)

    def __call__(self, x: int) -> int:
        time.sleep(0.01)
        return x


def test_an_iteration_that_ends_as_garbage_ends_nothing_of_the_next_one() -> None:
    loader = cedar.from_items([{"x": i} for i in range(200)]).map(Slow, "x", dtype=int).batch(10).loader(workers=6)

    def train() -> None:
        held = iter(loader)
        next(held)
        raise RuntimeError("of the user's step")

    failed: RuntimeError | None = None
    try:
        train()
    except RuntimeError as error:
        failed = error  # holds the frame, and with it the iterator
    got = []
    for batch in loader:
        got += batch["x"].tolist()
        if failed is not None:
            time.sleep(0.05)  # the threads of this loop make instances, or wait for one
            failed = None
    assert got == list(range(200))


@pytest.mark.heavy
@pytest.mark.parametrize("device", [None, "meta"])
def test_a_forked_child_ends_nothing_of_the_parents(device: Any) -> None:
    script = textwrap.dedent(f"""
        import faulthandler, os, sys, threading, cedar
        p = cedar.from_items([{{"x": i}} for i in range(4000)]).map(lambda x: x, "x", dtype=int).batch(10)
        loader = p.loader(executor="threads", workers=2, device={device!r}, format="torch")
        loop = iter(loader)
        next(loop)
        loader.read(0)
        parts = loader._epochs.parts
        pool = parts.run.runner.executor
        for lock in [pool._shutdown_lock, parts.job.instances._changed]:  # as another thread may hold them at the fork
            threading.Thread(target=lock.acquire).start()
        if child := os.fork():
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        faulthandler.dump_traceback_later(20, exit=True)
        try:
            next(loop)
        except cedar.CedarError as error:
            assert "was forked" in str(error), error
        else:
            os._exit(3)
        loop.close()
        loader.close()
        again = p.loader(executor="inline", format="torch")
        assert len(list(again)) == 400
        assert len(loader.read(1)["x"]) == 10
        os._exit(0)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
