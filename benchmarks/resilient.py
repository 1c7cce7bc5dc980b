"""The fault-tolerant pipeline trainer: real processes that are killed, stopped and replaced, against whole runs.

``python -m benchmarks.resilient [--quick]``. Everything here is measured on this machine, gloo on the CPU, unless a row
says simulated. Schedules have their own figures: ``--plans`` adds those of ``benchmarks.resilient_plans``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import ROOT, Figure, at_least, at_most, environment, reported, show, write
from cedar.errors import CedarError
from cedar.trainers.resilient import report, run
from cedar.trainers.resilient.chaos import parse
from cedar.trainers.resilient.control import store
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.options import (
    DataOptions,
    ModelOptions,
    OptimizerOptions,
    Options,
    PipelineOptions,
    RunOptions,
)
from cedar.trainers.resilient.planner import Problem, plan
from cedar.trainers.resilient.schedule import Costs
from cedar.trainers.resilient.simulator import error

_HEARTBEAT = 1.0


def options(folder: str, mode: str = "sync", replicas: int = 2, **more: float) -> Options:
    """A tiny model: what is looked at is who does what, and when."""
    text = Path(folder).parent / "text.txt"
    if not text.exists():
        text.write_text("\n".join(f"line {i}: {'abcdefghij' * (i % 5)}" for i in range(2000)), encoding="utf-8")
    return Options(
        DataOptions(str(text), 8, 4 * replicas), ModelOptions(3, 8, 2, 0.1), PipelineOptions(2, mode),  # type: ignore[arg-type]
        OptimizerOptions(warmup=2, clip=0.5), replace(RunOptions(folder=folder, heartbeat=5.0), **more),  # type: ignore[arg-type]
    )  # fmt: skip


def digests(record: run.Record) -> dict[str, str]:
    """Of each stage's weights; a worker that differs from its peers gets a row of its own."""
    found: dict[str, str] = {}
    for worker, ended in sorted(record.ended.items()):
        stage = worker[1]
        if found.setdefault(stage, ended["digest"]) != ended["digest"]:
            found[worker] = ended["digest"]
    return found


# ---- bitwise equal ---------------------------------------------------------------------------------------------------


def kills(quick: bool, folder: str) -> list[Figure]:
    """Any worker, any instruction; some twice, some with a rejoin."""
    count, steps, figures = 6 if quick else 200, 16, []
    expected = digests(run.lead(options(f"{folder}/whole", steps=steps, save_every=4), 2, 2, quiet=True))
    for mode in ("sync", "staggered"):
        equal, fired, rejoined, restored, kept, wrong = 0, 0, 0, 0, 0, []
        for number in range(count):
            draw = random.Random(f"{mode} {number}")
            deaths = [
                f"kill={draw.randrange(4)}@step{draw.randrange(steps)}:{draw.randrange(20)}"
                for _ in range(draw.choice((1, 1, 2)))
            ]
            chaos = ", ".join(deaths + (["rejoin@step4"] if draw.random() < 0.5 else []))
            try:
                record = run.lead(
                    options(f"{folder}/{mode}-{number}", mode, steps=steps, save_every=4, pace=0.006), 2, 2,
                    mishaps=parse(chaos, 4), quiet=True,
                )  # fmt: skip
            except CedarError as failed:
                wrong.append(f"{chaos}: {failed}")
                continue
            if digests(record) == expected and record.ended:
                equal += 1
            else:
                wrong.append(chaos)
            fired += len(record.mishaps)
            rejoined += sum(event.what == "join" for event in record.events)
            restored += sum(event.what == "restore" for event in record.events)
            kept += sum(one.kept for one in report.recoveries(record))
        note = (
            f"2 x 2 processes, {fired} kills, {rejoined} rejoins, {restored} restores, {kept} micro-batches from logs"
        )
        figures.append(
            at_least(f"runs with random kills, {mode}: weights bitwise equal to fault-free", count, [equal], "runs",
                     note=note + "".join(f"; NOT: {what}" for what in wrong))
        )  # fmt: skip
    return figures


def machines(_quick: bool, folder: str) -> list[Figure]:
    """Two supervisors; one is killed with its workers; another joins."""
    path = Path(folder) / "machines.toml"
    made = options(f"{folder}/machines")
    path.write_text(
        f'[data]\npaths = "{made.data.paths}"\nlength = 8\nbatch = 8\n[model]\nlayers = 3\nwidth = 8\nheads = 2\n'
        f"dropout = 0.1\n[pipeline]\nmicro_batches = 2\n[optimizer]\nwarmup = 2\nclip = 0.5\n[run]\n"
        f'folder = "{folder}/machines"\nsteps = 250\nsave_every = 0\npace = 0.01\nsilence = 1.5\n',
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "cedar.cli", "train", "resilient", str(path)]

    def start(*more: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*command, *more], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)

    started = [start("--machines", "2")]
    try:
        assert started[0].stdout is not None
        match = re.search(r"at (\S+)", started[0].stdout.readline())
        assert match is not None
        for _ in range(2):
            started.append(start("--join", match[1]))
            out = started[-1].stdout
            assert out is not None
            out.readline()
        host, _, port = match[1].rpartition(":")
        board = Board(store.connect(host, int(port)))
        while board.take("done/1/4") is None and started[0].poll() is None:
            time.sleep(0.05)
        os.kill(started[1].pid, signal.SIGKILL)
        started[0].communicate(timeout=300)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    told = json.loads((Path(folder) / "machines" / "report.json").read_text(encoding="utf-8"))
    whole = digests(run.lead(options(f"{folder}/one", steps=250, save_every=0), 2, 2, quiet=True))
    stages = {worker[1]: one["digest"] for worker, one in told["ended"].items()}
    joined = sum(event["what"] == "join" for event in told["events"])
    note = f"{joined} workers joined, {len(told['ended'])} at the end"
    what = "two supervisors, one killed with its workers, a new one joins: weights bitwise equal"
    return [at_least(what, 1, [float(stages == whole and joined == 2)], "run", note=note)]


# ---- times -----------------------------------------------------------------------------------------------------------


def recovery(quick: bool, folder: str) -> list[Figure]:
    """From SIGKILL to the first redone F or B, 9 processes."""
    first, last, parts = [], [], []
    for number in range(4 if quick else 40):
        draw = random.Random(number)
        chaos = f"kill={draw.randrange(9)}@step4:{draw.randrange(12)}"
        made = options(f"{folder}/recovery-{number}", replicas=3, steps=8, save_every=0, pace=0.005)
        record = run.lead(made, 3, 3, mishaps=parse(chaos, 9), quiet=True)
        for one in _meant(record):
            first.append(one.redo)
            last.append(one.redo_all)
            parts.append((one.detection or 0.0, one.decision, one.rebuild, one.plan))
    middle = [1000 * statistics.median(column) for column in zip(*parts, strict=True)]
    names = ("detect", "decide", "rebuild", "plan")
    note = "; ".join(f"{name} {value:.0f} ms" for name, value in zip(names, middle, strict=True))
    return [
        at_most("SIGKILL to the first redone F or B on any survivor, 9 processes", 0.3, first, "s", note=note),
        reported("the same, p95", [sorted(first)[int(0.95 * (len(first) - 1))]], "s"),
        reported("the same, until all survivors compute", last, "s"),
    ]


def _meant(record: run.Record) -> list[report.Recovery]:
    """Recoveries from failures that were made on purpose: on a machine that is too busy, others happen."""
    return [one for one in report.recoveries(record) if one.detection is not None]


def hung(quick: bool, folder: str) -> list[Figure]:
    """Stopped, and in an endless loop under a live heartbeat thread; a slow worker is left alone."""
    figures = []
    for name, what in (("hang", "SIGSTOP"), ("loop", "an endless loop under a live heartbeat")):
        found = []
        for number in range(1 if quick else 5):
            made = options(f"{folder}/{name}-{number}", steps=8, save_every=0, pace=0.005, heartbeat=_HEARTBEAT)
            record = run.lead(made, 2, 2, mishaps=parse(f"{name}={number % 4}@step4:3", 4), quiet=True)
            found += [one.redo for one in _meant(record)]
        figures.append(at_most(f"{what}: to the first redone F or B, heartbeat 1 s", _HEARTBEAT + 0.3, found, "s"))
    made = options(f"{folder}/slow", steps=20, save_every=0, pace=0.02, heartbeat=_HEARTBEAT)
    record = run.lead(made, 2, 2, mishaps=parse("slow=1@step4", 4), quiet=True)
    failures = sum(event.what == "failure" for event in record.events)
    return [*figures, at_most("a worker that is 3x slow: times it was taken for dead", 0, [failures], "times")]


def calibrated(quick: bool, folder: str) -> list[Figure]:
    """The simulator's period against steps whose instructions sleep for a slot."""
    figures, slot = [], 0.1
    for dead, chaos in ((0, ""), (1, "kill=3@step2:1")):
        made = options(f"{folder}/calibrated-{dead}", replicas=2, steps=8 if quick else 16, save_every=0, pace=slot)
        record = run.lead(made, 2, 2, mishaps=parse(chaos, 4), quiet=True)
        gone = frozenset(e.worker for e in record.events if e.what == "failure" and e.worker is not None)
        expected = slot * plan(Problem(2, 2, 2, gone, "1f1b", "sync", Costs(), tied=True)).period
        found = report.intervals(record)[-(4 if quick else 10) :]
        what = f"simulated period against the sleep-calibrated executor, slots of 100 ms, {dead} dead"
        note = f"simulated {expected:.3f} s, measured {statistics.median(found):.3f} s"
        figures.append(at_most(what, 5, [100 * error(expected, statistics.median(found))], "%", note=note))
    return figures


_PARTS: dict[str, Callable[[bool, str], list[Figure]]] = {
    "kills": kills, "machines": machines, "recovery": recovery, "hung": hung, "calibrated": calibrated,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/resilient.json; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="6 kills in each mode instead of 200")
    parser.add_argument("--only", nargs="+", choices=list(_PARTS), default=list(_PARTS), metavar="PART")
    parser.add_argument("--plans", action="store_true", help="the figures of benchmarks.resilient_plans, too")
    parser.add_argument("--name", default="resilient", help="of the file in benchmarks/out")
    chosen = parser.parse_args(arguments)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for part in chosen.only:
            start = time.perf_counter()
            figures += _PARTS[part](chosen.quick, folder)
            print(f"{part}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    show("resilient" + (" (quick)" if chosen.quick else ""), figures)
    print(write(chosen.name, figures))
    missed = any(figure.met is False for figure in figures)
    if chosen.plans:
        from benchmarks import resilient_plans

        missed = bool(resilient_plans.main(["--quick"] if chosen.quick else [])) or missed
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
