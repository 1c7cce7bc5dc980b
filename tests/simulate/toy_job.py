"""A small job, and the report of a run that did as it was simulated."""

import json
from dataclasses import replace
from pathlib import Path

from cedar.simulate.job import PipelineOptions, RunOptions, SimulatedJob, SimulationOptions, TimeOptions
from cedar.trainers.resilient.planner import plan
from cedar.trainers.resilient.schedule import Worker, grid

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "clusters"
GRID = PipelineOptions(stages=2, replicas=2, micro_batches=4, rows=8)
TIMES = TimeOptions(forward=0.1, backward_input=0.1, backward_weight=0.1)
QUICK = RunOptions(steps=20, hours=2.0, draws=3)


def job(**more):
    return SimulatedJob(SimulationOptions(**{"pipeline": GRID, "times": TIMES, "run": QUICK} | more))


def report(path, off=1.0, change="failure"):
    """Of a run that did as simulated, but for a factor: 12 steps, a change, 12 more without worker (1, 0)."""
    alone = job()
    dead = frozenset({Worker(1, 0)})
    times, now = [], 100.0
    for each in [alone.mean] * 12 + [plan(replace(alone.problem, dead=dead)).period] * 12:
        now += each * off
        times.append(now)
    change = {"what": change, "worker": [1, 0] if change == "failure" else None, "generation": 2}
    start = {"what": "start", "worker": None, "generation": 1, "decided": 0}
    places = [str(place) for place in grid(2, 2)]
    recoveries = {"1": {place: {} for place in places}, "2": {place: {} for place in places if place != "(1, 0)"}}
    durations = {f"{kind} {stage}": 0.1 for kind in ("F", "B_INPUT", "B_WEIGHT") for stage in range(2)}
    plain = {
        "durations": durations | {"transfer": 0.0}, "recoveries": recoveries,
        "events": [start, change | {"decided": times[11] + 1e-3}],
        "steps": [[step, when, 1.0] for step, when in enumerate(times)],
    }  # fmt: skip
    path.write_text(json.dumps(plain))
    return str(path)
