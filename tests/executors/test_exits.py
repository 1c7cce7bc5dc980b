"""A program that leaves a loader in any way ends with nothing on stderr."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.how_much import LONG

pytestmark = pytest.mark.heavy

SCRIPT = """
import os, signal, sys, threading, time
import cedar

how, executor = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it

def slow(x):
    time.sleep(0.002 if executor != "threads" or x < 1000 else 0.5)  # a task of these would take many minutes
    return x

pipeline = cedar.from_items([{"x": i} for i in range(20_000)]).map(slow, "x", dtype=int).batch(4)
loader = pipeline.loader(executor=executor, workers=2)

def consume():
    for batch in loader:
        pass

if how == "break":
    for batch in loader:
        break
elif how == "exit":
    for batch in loader:
        sys.exit(0)
elif how == "exception":
    try:
        for batch in loader:
            raise KeyError
    except KeyError:
        pass
elif how == "interrupt":
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        consume()
    except KeyboardInterrupt:
        pass
elif how == "notebook":
    import torch  # with which Python takes modules apart before generators
    held = iter(loader)
    next(held)
elif how in ("thread", "late"):
    if how == "late":  # the program's last hook takes long, so that the thread sees that its tasks were cancelled
        threading._threading_atexits.insert(0, lambda: time.sleep(1))
    threading.Thread(target=consume, daemon=True).start()
    time.sleep(0.5)
"""
HOWS = ("break", "exit", "exception", "interrupt", "notebook", "thread", "late")
EVERY = [(how, executor) for how in HOWS for executor in ("inline", "threads", "processes", "dask")]
SOME = [(how, ("threads", "processes", "dask")[i % 3]) for i, how in enumerate(HOWS)] + [("thread", "threads")]
SOME += [("notebook", "inline")]


def noise(case: tuple[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *case], capture_output=True, text=True, timeout=200, check=False
    )
    return done.stderr or ("" if done.returncode == 0 else f"exit code {done.returncode}")


def test_programs_end_in_silence() -> None:
    cases = EVERY if LONG else SOME
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(cases, pool.map(noise, cases), strict=True))
    assert {case: text for case, text in found.items() if text} == {}
