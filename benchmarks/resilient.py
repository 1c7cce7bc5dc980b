"""The fault-tolerant pipeline trainer: real processes that are killed, stopped and replaced, against whole runs.

``python -m benchmarks.resilient [--form] [--only kills --minutes 10]``. Everything here is measured on this machine,
gloo on the CPU, unless a row says simulated. It may be stopped at any time, and continues where it was: see
``benchmarks.kept``. Schedules have their own figures: ``--plans`` adds those of ``benchmarks.resilient_plans``.
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
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import kept as keeping
from benchmarks.harness import ROOT, Figure, Form, at_least, at_most, environment, reported
from benchmarks.kept import Kept
from cedar.core.errors import CedarError
from cedar.simulate import Durations, error, predict
from cedar.trainers.common import links
from cedar.trainers.resilient import run
from cedar.trainers.resilient import text as reports
from cedar.trainers.resilient.control import store
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.control.protocol import DONE
from cedar.trainers.resilient.options import (
    DataOptions,
    ModelOptions,
    OptimizerOptions,
    Options,
    PipelineOptions,
    RunOptions,
)
from cedar.trainers.resilient.pipeline import Workers
from cedar.trainers.resilient.planner import Problem, plan
from cedar.trainers.resilient.schedule import Kind, Mode, Schedule, Worker, timeline
from cedar.trainers.resilient.text import text_pipeline

_HEARTBEAT = 1.0


def options(folder: str, mode: Mode = "sync", replicas: int = 2, *, plain: bool = False, **more: Any) -> Options:
    """A tiny model: what is inspected is who does what, and when; ``plain``: by the plans for slots that are alike."""
    text = Path(folder).parent / "text.txt"
    if not text.exists():
        text.write_text("\n".join(f"line {i}: {'abcdefghij' * (i % 5)}" for i in range(2000)), encoding="utf-8")
    return Options(
        DataOptions(str(text), 8, 4 * replicas), ModelOptions(3, 8, 2, 0.1),
        PipelineOptions(2, mode, calibrate=not plain, moves=not plain),
        OptimizerOptions(warmup=2, clip=0.5), replace(RunOptions(folder=folder, heartbeat=5.0), **more),
    )  # fmt: skip


def _trained(made: Options, stages: int, replicas: int, chaos: str = "") -> run.Record:
    return text_pipeline(made, stages, Workers(replicas)).train(chaos=chaos, quiet=True)


def digests(record: run.Record) -> dict[str, str]:
    """Of each stage's weights; a worker that differs from its peers gets its own row."""
    found: dict[str, str] = {}
    for worker, ended in sorted(record.ended.items()):
        stage = worker[1]
        if found.setdefault(stage, ended["digest"]) != ended["digest"]:
            found[worker] = ended["digest"]
    return found


# ---- bitwise equal ---------------------------------------------------------------------------------------------------

_STEPS = 16


def kills(kept: Kept, form: Form, folder: str) -> list[Figure]:
    """Any worker, any instruction; some twice, some with a rejoin."""
    count, figures = form.pick(200, 6, 1), []
    whole = options(f"{folder}/whole", steps=_STEPS, save_every=4)
    expected = kept.get("kills: whole", lambda: digests(_trained(whole, 2, 2)))
    modes: tuple[Mode, ...] = ("sync", "staggered")
    names = {mode: [f"kills: {mode} {n}" for n in range(count)] for mode in modes}
    kept.some({names[m][n]: partial(_killed, m, n, expected, folder) for n in range(count) for m in names})  # in turn
    for mode, each in names.items():
        runs = [kept.found[name] for name in each if name in kept.found]
        done = {name: sum(one[name] for one in runs) for name in ("fired", "join", "replay", "restore", "move", "kept")}
        note = (
            f"{len(runs)} runs of 2 x 2 processes; {done['fired']} kills, {done['join']} rejoins, {done['move']} moves,"
            f" {done['replay']} times a lost stage restored alone, {done['restore']} times all;"
            f" {done['kept']} micro-batches from logs"
        )
        wrong = "".join(f"; NOT: {one['wrong']}" for one in runs if one["wrong"])
        equal = sum(not one["wrong"] for one in runs)
        what = f"runs with random kills, {mode}: weights bitwise equal to fault-free"
        figures.append(at_least(what, count, [equal], "runs", note=note + wrong))
    return figures


def _killed(mode: Mode, number: int, expected: dict[str, str], folder: str) -> dict[str, Any]:
    draw = random.Random(f"{mode} {number}")
    deaths = [
        f"kill={draw.randrange(4)}@step{draw.randrange(_STEPS)}:{draw.randrange(20)}"
        for _ in range(draw.choice((1, 1, 2)))
    ]
    chaos = ", ".join(deaths + (["rejoin@step4"] if draw.random() < 0.5 else []))
    made = options(f"{folder}/{mode}-{number}", mode, steps=_STEPS, save_every=4, pace=0.006)
    names = ("join", "replay", "restore", "move")
    try:
        record = _trained(made, 2, 2, chaos)
    except CedarError as failed:
        return {"wrong": f"{chaos}: {failed}", "fired": 0, "kept": 0} | dict.fromkeys(names, 0)
    right = bool(record.ended) and digests(record) == expected
    events = [event.what for event in record.events]
    return {
        "wrong": "" if right else chaos, "fired": len(record.mishaps),
        "kept": sum(one.kept for one in reports.recoveries(record)),
    } | {name: events.count(name) for name in names}  # fmt: skip


def machines(kept: Kept, form: Form, folder: str) -> list[Figure]:
    """Two supervisors; one is killed with its workers; another joins."""
    one = kept.get("machines", partial(_machines, folder, form.pick(250, 250, 60)))
    what = "two supervisors, one killed with its workers, a new one joins: weights bitwise equal"
    note = f"{one['joined']} workers joined, {one['ended']} at the end"
    return [at_least(what, 1, [float(one["equal"] and one["joined"] == 2)], "run", note=note)]


def _machines(folder: str, steps: int) -> dict[str, Any]:
    path = Path(folder) / "machines.toml"
    made = options(f"{folder}/machines")
    path.write_text(
        f'[data]\npaths = "{made.data.paths}"\nlength = 8\nbatch = 8\n[model]\nlayers = 3\nwidth = 8\nheads = 2\n'
        f"dropout = 0.1\n[pipeline]\nmicro_batches = 2\n[optimizer]\nwarmup = 2\nclip = 0.5\n[run]\n"
        f'folder = "{folder}/machines"\nsteps = {steps}\nsave_every = 0\npace = 0.01\nsilence = 1.5\n',
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "cedar", "train", "resilient", str(path)]

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
        board = Board(store.connect(host, int(port), links.read_key(f"{made.run.folder}/{run.KEY}")))
        later = [DONE(1, step) for step in range(4, steps)]  # the supervisor deletes the entry of the step before
        while all(board.get(done) is None for done in later) and started[0].poll() is None:
            time.sleep(0.05)
        os.kill(started[1].pid, signal.SIGKILL)
        started[0].communicate(timeout=300)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    told = json.loads((Path(folder) / "machines" / "report.json").read_text(encoding="utf-8"))
    whole = digests(_trained(options(f"{folder}/one", steps=steps, save_every=0), 2, 2))
    stages = {worker[1]: one["digest"] for worker, one in told["ended"].items()}
    joined = sum(event["what"] == "join" for event in told["events"])
    return {"equal": stages == whole, "joined": joined, "ended": len(told["ended"])}


# ---- times -----------------------------------------------------------------------------------------------------------


def recovery(kept: Kept, form: Form, folder: str) -> list[Figure]:
    """From SIGKILL to the first redone F or B, 9 processes."""

    def one(number: int) -> list[list[float]]:
        draw = random.Random(number)
        chaos = f"kill={draw.randrange(9)}@step4:{draw.randrange(12)}"
        made = options(f"{folder}/recovery-{number}", replicas=3, steps=8, save_every=0, pace=0.005)
        record = _trained(made, 3, 3, chaos)
        return [[r.redo, r.redo_all, r.detection or 0.0, r.decision, r.rebuild, r.plan] for r in _meant(record)]

    runs = kept.some({f"recovery: {n}": partial(one, n) for n in range(form.pick(40, 4, 1))})
    first, last, *parts = zip(*(times for found in runs for times in found), strict=True)
    middle = [1000 * statistics.median(column) for column in parts]
    names = ("detect", "decide", "rebuild", "plan")
    note = "; ".join(f"{name} {value:.0f} ms" for name, value in zip(names, middle, strict=True))
    note += f"; {len(first)} kills; a restart by torchrun takes 3 s or more"
    return [
        at_most("SIGKILL to the first redone F or B on any survivor, 9 processes", 0.3, first, "s", note=note),
        reported("the same, p95", [sorted(first)[int(0.95 * (len(first) - 1))]], "s"),
        reported("the same, until all survivors compute", last, "s"),
    ]


def _meant(record: run.Record) -> list[reports.RecoveryTimes]:
    """Recoveries from failures that were made on purpose: on a machine that is too busy, others happen."""
    return [one for one in reports.recoveries(record) if one.detection is not None]


def hung(kept: Kept, form: Form, folder: str) -> list[Figure]:
    """Stopped, and in an endless loop under a live heartbeat thread; a slow worker is left alone."""

    def one(name: str, number: int) -> list[float]:
        made = options(f"{folder}/{name}-{number}", steps=8, save_every=0, pace=0.005, heartbeat=_HEARTBEAT)
        record = _trained(made, 2, 2, f"{name}={number % 4}@step4:3")
        return [one.redo for one in _meant(record)]

    def slow() -> int:
        made = options(f"{folder}/slow", steps=20, save_every=0, pace=0.02, heartbeat=_HEARTBEAT)
        record = _trained(made, 2, 2, "slow=1@step4")
        return sum(event.what == "failure" for event in record.events)

    figures = []
    for name, what in (("hang", "SIGSTOP"), ("loop", "an endless loop under a live heartbeat")):
        runs = kept.some({f"hung: {name} {n}": partial(one, name, n) for n in range(form.pick(5, 1))})
        found = [seconds for times in runs for seconds in times]
        figures.append(at_most(f"{what}: to the first redone F or B, heartbeat 1 s", _HEARTBEAT + 0.3, found, "s"))
    failures = kept.get("hung: slow", slow)
    return [*figures, at_most("a worker that is 3x slow: times it was taken for dead", 0, [failures], "times")]


def calibrated(kept: Kept, form: Form, folder: str) -> list[Figure]:
    """The simulator's period against steps whose instructions sleep for a slot.

    Simulated once from the slot alone, and once from what instructions were measured to take before anyone died.
    """
    figures = []
    modes: tuple[Mode, ...] = form.pick(("sync", "staggered"), ("sync",))
    for slot in form.pick((0.05, 0.1), (0.05,), (0.01,)):
        for mode in modes:
            for dead in (0, 1):
                name = f"{1000 * slot:.0f} ms, {mode}, {dead} dead"
                one = kept.get(f"calibrated: {name}", partial(_calibrated, slot, mode, dead, folder))
                what = f"simulated period against the sleep-calibrated executor, slots of {name}"
                note = f"from measured instructions {one['learned']:.3f} s, measured {one['measured']:.3f} s"
                off = 100 * error(one["learned"], one["measured"])
                figures.append(at_most(what, 5, [off], "%", note=note))
                off = 100 * error(one["slots"], one["measured"])
                figures.append(reported(f"the same from slots alone, {name}", [off], "%", note=f"{one['slots']:.3f} s"))
    return figures


def _calibrated(slot: float, mode: Mode, dead: int, folder: str) -> dict[str, float]:
    steps = 20 + 12 * dead
    made = options(f"{folder}/calibrated-{slot}-{mode}-{dead}", mode, plain=True, steps=steps, save_every=0, pace=slot)
    made = replace(made, optimizer=replace(made.optimizer, clip=0.0))  # where it bites, staggered steps are taken twice
    record = _trained(made, 2, 2, "kill=3@step16:1" if dead else "")
    gone = frozenset(e.worker for e in record.events if e.what == "failure" and e.worker is not None)
    transfer = record.durations.pop("transfer")
    durations = Durations(dict(_split(record.durations)), transfer)
    schedule = plan(Problem(2, 2, 2, gone, "1f1b", mode, tied=(0, 1))).schedule
    return {
        "slots": slot * _period(schedule, lambda _, done: float(done.kind in {"F", "B_INPUT", "B_WEIGHT"})),
        "learned": predict(schedule, durations, iterations=8).period,
        "measured": statistics.median(reports.intervals(record)[-10:]),
    }


def _split(durations: dict[str, float]) -> Iterator[tuple[tuple[Kind, int], float]]:
    for name, seconds in durations.items():
        kind, stage = name.split(" ")
        yield (cast("Kind", kind), int(stage)), seconds


def _period(schedule: Schedule, takes: Callable[[Worker, Any], float]) -> float:
    return timeline(schedule, takes, iterations=8).period


_PARTS: dict[str, Callable[[Kept, Form, str], list[Figure]]] = {
    "kills": kills, "machines": machines, "recovery": recovery, "hung": hung, "calibrated": calibrated,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/resilient.json; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    keeping.add_arguments(parser, list(_PARTS), "resilient")
    parser.add_argument("--plans", action="store_true", help="the figures of benchmarks.resilient_plans, too")
    chosen = keeping.parsed(parser, arguments)
    kept = Kept(chosen.name + keeping.suffix(chosen.form), fresh=chosen.fresh, minutes=chosen.minutes)
    with tempfile.TemporaryDirectory() as folder:
        parts = {name: partial(part, kept, chosen.form, folder) for name, part in _PARTS.items()}
        missed = keeping.measure("resilient", chosen.name, parts, chosen.only, form=chosen.form, fresh=chosen.fresh)
    if chosen.plans:
        from benchmarks import resilient_plans

        missed = resilient_plans.main(chosen.form.option) or missed
    return missed


if __name__ == "__main__":
    sys.exit(main())
