"""The other end of ``harness.Contender``: prepares a function, then runs it once per line of stdin."""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time


def main() -> None:
    """``python -m benchmarks.child module:function arguments cores``, the last two as JSON."""
    target, arguments, cores = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])  # before any library counts them
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a contender prints is not an answer
    module, _, name = target.partition(":")
    run = getattr(importlib.import_module(module), name)(*arguments)
    for _ in sys.stdin:
        cpu, wall = _cpu(), time.perf_counter()
        result = run()
        answer = {"wall": time.perf_counter() - wall, "cpu": _cpu() - cpu, "result": result}
        print(json.dumps(answer), file=answers, flush=True)


def _cpu() -> float:
    """Seconds of this process and of the children it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


if __name__ == "__main__":
    main()
