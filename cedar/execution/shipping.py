"""What it costs to work in another process, measured with one: start it, send it tasks, get results back."""

from __future__ import annotations

import contextlib
import json
import pickle
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

_SMALL = {"task": 0, "split": [0, 1]}
_LARGE = 4 << 20
_ROUNDS = 5
_PATIENCE = 60.0  # seconds until the process is given up

# Imports what a worker needs, then sends back whatever it gets. It never sees the caller's __main__.
_WORKER = """
import json, pickle, sys
sys.path[:] = json.loads(sys.argv[1])
import cedar.execution.runner, numpy
out = sys.stdout.buffer
pickle.dump("ready", out); out.flush()
while True:
    try:
        task = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    pickle.dump(task, out, protocol=5); out.flush()
"""


def ship_costs() -> tuple[float, float, float]:
    """Seconds for a task and its result without bytes, bytes per second to and fro, seconds until a worker is ready.

    Raises:
        OSError: no process can be started here, or it does not answer.
    """
    started = time.perf_counter()
    child = subprocess.Popen(  # noqa: S603 - Python itself
        [sys.executable, "-c", _WORKER, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    watch = threading.Timer(_PATIENCE, child.kill)
    watch.start()
    try:
        pickle.load(child.stdout)  # type: ignore[arg-type]  # noqa: S301 - from our own child
        ready = time.perf_counter() - started
        return (*_measure(child), ready)
    except (EOFError, pickle.UnpicklingError, OSError) as error:
        raise OSError(f"a worker process died or did not answer: {error}") from error
    finally:
        watch.cancel()
        child.kill()
        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        child.wait()
        watch.join()


def _measure(child: subprocess.Popen[bytes]) -> tuple[float, float]:
    import numpy as np

    small = statistics.median([_round_trip(child, _SMALL) for _ in range(4 * _ROUNDS)])
    values = np.arange(_LARGE // 8)
    large = statistics.median([_round_trip(child, values) for _ in range(_ROUNDS)])
    return small, 2 * _LARGE / max(large - small, 1e-6)


def _round_trip(child: subprocess.Popen[bytes], task: Any) -> float:
    start = time.perf_counter()
    pickle.dump(task, child.stdin, protocol=5)  # type: ignore[arg-type]
    child.stdin.flush()  # type: ignore[union-attr]
    pickle.load(child.stdout)  # type: ignore[arg-type]  # noqa: S301 - from our own child
    return time.perf_counter() - start
