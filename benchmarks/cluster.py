"""A Dask cluster of this machine: its speed next to "processes", and what happens when parts of it fail.

    python -m benchmarks.cluster [--form]

Speed: a CPU-bound map over files, two workers each, in turns. Faults: a worker is killed, stopped, cut off for a while
or added in the middle of an epoch, whose rows are compared with those of a run without faults; and the scheduler is
killed, which has to end in a clean error, from whose state another executor continues.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import psutil

import cedar
from benchmarks.harness import (
    Figure,
    Form,
    Sample,
    add_form,
    at_least,
    at_most,
    finish,
    interleaved,
    ratios,
    reported,
)
from cedar.cluster import dask
from cedar.cluster.dask.clients import client_at
from cedar.cluster.dask.local import LocalHost, local_address
from cedar.executors import processes

WORKERS = 2


def pipeline(folder: str, work: int) -> cedar.Pipeline:
    """Rows that each take so many rounds of pure Python; no shuffle, so that faults meet work in progress."""

    def costly(x: int) -> int:
        total = x
        for i in range(work):
            total = (total * 31 + i) & 0xFFFFFFFF
        return total

    return cedar.read_jsonl(f"{folder}/*.jsonl").map(costly, "x", into="y", dtype=int).batch(64)


def write_rows(folder: str, files: int, rows: int) -> None:
    for part in range(files):
        with open(f"{folder}/{part:03}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"x": part * rows + i}) + "\n" for i in range(rows))


# ---- speed -----------------------------------------------------------------------------------------------------------


def speed(folder: str, rounds: int) -> list[Figure]:
    runs = {name: partial(timed_run, folder, name) for name in ("dask", "processes")}
    samples = interleaved(runs, rounds)
    rates = {name: [sample.rate for sample in found] for name, found in samples.items()}
    return [
        at_least("dask next to processes: a CPU-bound map", 0.85, ratios(rates["dask"], rates["processes"]), "x"),
        reported("dask", rates["dask"], "rows/s"),
        reported("processes", rates["processes"], "rows/s"),
        reported("dask: CPU of the trainer's process", [s.cpu for s in samples["dask"]], "s"),
        reported("processes: CPU of the trainer's process", [s.cpu for s in samples["processes"]], "s"),
    ]  # fmt: skip


def timed_run(folder: str, executor: Any) -> Sample:
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_utime, time.perf_counter()
    with pipeline(folder, 4000).loader(executor=executor, workers=WORKERS, plan="off") as loader:
        rows = sum(len(batch["y"]) for batch in loader)
    cpu = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    return Sample(time.perf_counter() - start, cpu, {"rows": rows})


# ---- faults ----------------------------------------------------------------------------------------------------------


def faults(folder: str) -> list[Figure]:
    expected = rows_of(pipeline(folder, 1500).loader(executor="threads", plan="off"))
    found = []
    for name, fault in {
        "killed": lambda pids: os.kill(pids[0], signal.SIGKILL),
        "stopped": lambda pids: os.kill(pids[0], signal.SIGSTOP),
        "cut off for 8 s": lambda pids: stop_for(pids[0], 8.0),
    }.items():
        start = time.perf_counter()
        got = disturbed(folder, fault)
        took = time.perf_counter() - start
        found.append(reported(f"a worker {name}: rows lost or repeated", [differences(expected, got)], "rows"))
        found.append(reported(f"a worker {name}: the epoch", [took], "s"))
        dask.close()
    return [*found, *added(folder, expected), *scheduler_killed(folder, expected)]


def differences(expected: list[int], got: list[int]) -> float:
    """0 if the rows are the same in the same order."""
    return float(sum(a != b for a, b in zip(expected, got, strict=False)) + abs(len(expected) - len(got)))


def rows_of(loader: Any) -> list[int]:
    return [y for batch in loader for y in batch["y"].tolist()]


def disturbed(folder: str, fault: Callable[[list[int]], None]) -> list[int]:
    pids = list(client_at(local_address(WORKERS)).run(os.getpid).values())
    got: list[int] = []
    with pipeline(folder, 1500).loader(executor="dask", workers=WORKERS, plan="off") as loader:
        for number, batch in enumerate(loader):
            got += batch["y"].tolist()
            if number == 2:
                fault(pids)
    for pid in pids:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)  # one that is stopped does not end by itself
    return got


def stop_for(pid: int, seconds: float) -> None:
    """Stopped now, and continuing later: as a worker that was cut off from the network and comes back."""

    def go_on() -> None:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGCONT)

    os.kill(pid, signal.SIGSTOP)
    threading.Timer(seconds, go_on).start()


def added(folder: str, expected: list[int]) -> list[Figure]:
    """A service that begins with one worker, and adds one when the trainer waits."""
    with cedar.Service(1, 2, patience=2) as service:
        got = []
        for _ in range(20):  # epochs, until there are two
            got = rows_of(pipeline(folder, 1500).loader(executor=cast("Any", service.address), plan="off"))
            workers = len(service.status().workers)
            if workers > 1:
                break
    dask.close()
    return [
        reported("a worker added: rows lost or repeated", [differences(expected, got)], "rows"),
        reported("a worker added: workers at the end", [workers], ""),
    ]


def scheduler_killed(folder: str, expected: list[int]) -> list[Figure]:
    host = LocalHost({"workers": WORKERS, "dashboard": None})
    loader = pipeline(folder, 1500).loader(executor=cast("Any", host.address), plan="off", timeout=10)
    got: list[int] = []
    told, killed = "", 0.0
    try:
        for number, batch in enumerate(loader):
            got += batch["y"].tolist()
            if number == 2:
                killed = time.perf_counter()
                os.kill(host.pid, signal.SIGKILL)
    except cedar.WorkerError as error:
        told = error.what
    took = time.perf_counter() - killed
    host.close()
    resumed = pipeline(folder, 1500).loader(executor="threads", plan="off")
    resumed.load_state_dict(loader.state_dict())
    got += rows_of(resumed)
    return [
        at_most("the scheduler killed: until a clean error", 10.0, [took if told else 1e9], "s"),
        reported("the scheduler killed: rows lost or repeated after the resume", [differences(expected, got)], "rows"),
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_form(parser, "fewer rows and rounds")
    form: Form = parser.parse_args(arguments).form
    with tempfile.TemporaryDirectory() as folder:
        write_rows(folder, files=32, rows=form.pick(500, 100, 20))
        figures = [*speed(folder, form.pick(7, 3, 1)), *faults(folder)]
    processes.close()
    dask.close()
    lost = [figure.measured for figure in figures if "lost or repeated" in figure.what]
    figures.append(at_most("rows lost, repeated or out of order, over all faults", 0, [sum(lost)], "rows"))
    return finish("A Dask cluster of this machine", "cluster", figures, form)


if __name__ == "__main__":
    raise SystemExit(main())
