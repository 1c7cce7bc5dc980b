"""Calls of the user's functions for a plan that is being made next to the run."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cedar.engine.background_calls import Calls, RunOver, start_background_thread


def test_calls_are_made_where_they_are_asked_for_until_the_run_ends() -> None:
    calls = Calls(inline=False)
    assert calls.run(threading.get_ident) == threading.get_ident()
    assert not calls.over
    calls.end()
    assert calls.over
    with pytest.raises(RunOver):
        calls.run(int)


def test_what_only_the_runs_own_thread_may_call_waits_until_it_looks_in() -> None:
    calls, found = Calls(inline=True), []

    def asks() -> None:
        found.append(calls.run(threading.get_ident))
        for work in (lambda: 1 // 0, lambda: next(_timed_out())):
            try:
                calls.run(work)
            except (ZeroDivisionError, TimeoutError) as error:
                found.append(str(error))

    thread = start_background_thread(asks)
    while thread.is_alive():
        calls.serve()
        thread.join(0.001)
    assert found == [threading.get_ident(), "integer division or modulo by zero", "the function's own"]
    calls.end()
    with pytest.raises(RunOver):
        calls.run(int)


def _timed_out() -> Any:
    raise TimeoutError("the function's own")
