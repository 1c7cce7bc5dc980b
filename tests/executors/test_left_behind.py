"""Executor "processes" leaves nothing behind: no process, no shared memory, no thread, no descriptor, no noise."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cedar
from cedar.executors import processes
from tests.executors.processes.watching import gone
from tests.waiting import eventually

pytestmark = [pytest.mark.heavy, pytest.mark.waits]

WORKERS = 2
PROC = Path("/proc/self")
SHM = Path("/dev/shm")
here = pytest.mark.skipif(not PROC.is_dir(), reason="looks into /proc")


# ---- the parent is killed --------------------------------------------------------------------------------------------

BUSY = """
import numpy as np
import cedar
from cedar.executors import processes

p = cedar.from_items([{"x": i} for i in range(100_000)]).map(lambda x: np.full(30_000, x), "x").batch(4)
kept = []
for batch in p.loader(executor="processes", workers=2):
    kept = [*kept[-20:], batch]
    if len(kept) == 5:
        print(*(pid for pool in processes.pools() for pid in pool.pids()), flush=True)
"""


def shared_files() -> set[str]:
    return {path.name for path in SHM.iterdir() if "cedar" in path.name}


@here
@pytest.mark.parametrize("together", [False, True], ids=["the parent alone", "all together"])
def test_a_kill_in_the_middle_leaves_nothing(together: bool) -> None:
    before = shared_files()
    parent: Any = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    try:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == WORKERS
        for pid in pids if together else []:
            os.kill(pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
    finally:
        parent.kill()
        parent.communicate()
    assert eventually(lambda: all(map(gone, pids)))
    assert shared_files() <= before


# ---- loaders are abandoned -------------------------------------------------------------------------------------------


def pipeline() -> cedar.Pipeline:
    return cedar.from_items([{"x": i} for i in range(400)]).map(lambda x: np.full(20_000, x), "x").batch(2)


def abandon(number: int, p: cedar.Pipeline) -> None:
    loader = p.loader(executor="processes", workers=WORKERS)
    iterator = iter(loader)
    next(iterator)
    if number % 4 == 1:
        del iterator
    elif number % 4 == 2:
        loader.close()
    elif number % 4 == 3:
        thread = threading.Thread(target=lambda: next(iterator))
        thread.start()
        thread.join()


def grown(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What is more than it was by as much as a leak would make it: each way of abandoning is gone through six times,
    while one arena or descriptor more is what a run at another pace needs, and may go with what tests left before."""
    counts = {"files": now["files"] - before["files"], "arenas": now["arenas"] - before["arenas"]}
    counts |= {"children": len(now["children"]) - len(before["children"])}
    counts |= {"threads": (Counter(now["threads"]) - Counter(before["threads"])).total()}
    counts |= {"shared": len(now["shared"] - before["shared"])}
    return {name: (count, before[name], now[name]) for name, count in counts.items() if count >= 4}


def left() -> dict[str, Any]:
    """What of this process is counted."""
    gc.collect()
    return {
        "files": len(os.listdir(PROC / "fd")),
        "threads": sorted(t.name.rstrip("0123456789_-") for t in threading.enumerate()),
        "children": sorted(pid for pool in processes.pools() for pid in pool.pids()),
        "arenas": sum("memfd:cedar" in line for line in (PROC / "maps").read_text().splitlines()),
        "shared": shared_files(),
    }


@here
def test_abandoned_loaders_leave_nothing() -> None:
    p = pipeline()
    pool = processes.warm(WORKERS)
    assert eventually(lambda: pool.ready() == WORKERS)
    for number in range(8):
        abandon(number, p)
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("cedar")])
    before = left()
    for number in range(24):
        abandon(number, p)
    assert eventually(lambda: not grown(before, left())), grown(before, left())


# ---- the program ends ------------------------------------------------------------------------------------------------

ENDS = """
import sys, threading, time
import numpy as np
import cedar

def slow(x):
    time.sleep(0.005)
    return np.full(20_000, x)

p = cedar.from_items([{"x": i} for i in range(100_000)]).map(slow, "x").batch(4)
loader = p.loader(executor="processes", workers=2)

def begin():
    iterator = iter(loader)
    return iterator, next(iterator)

how = sys.argv[1]
if how == "held":
    held = begin()
elif how == "dropped":
    begin()
elif how == "raised":
    held = begin()
    raise SystemExit(3)
elif how == "in a thread":
    going = threading.Event()
    def run():
        for batch in loader:
            going.set()
    threading.Thread(target=run, daemon=True).start()
    going.wait()
elif how == "at once":
    cedar.executors.processes.warm(2)
"""


@pytest.mark.parametrize(
    ("how", "code"), [("held", 0), ("dropped", 0), ("raised", 3), ("in a thread", 0), ("at once", 0)]
)
def test_a_program_ends_quietly(how: str, code: int) -> None:
    script = "import cedar.executors.processes\n" + ENDS
    done = subprocess.run([sys.executable, "-c", script, how], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
