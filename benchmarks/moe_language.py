"""Emulated: a small byte-level language model in one process, with the router, placement and dispatch of the trainer.

One rank holds all slots, so replicas cost nothing; which copies of tokens are dropped is what ranks would drop. The
setting is that of the published evaluation: 16 experts, 64 slots, top-1, capacity factor 1, an auxiliary loss of 1e-5.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, cast

from benchmarks import harness
from benchmarks.harness import Figure, Form
from benchmarks.kept import suffix, whole_lines

if TYPE_CHECKING:
    from cedar.trainers.moe.placement import Kind

    Policy = Kind | Literal["no drops"]

_QUICK: tuple[Policy, ...] = ("static", "periodic", "symi", "no drops")
POLICIES: tuple[Policy, ...] = ("static", "periodic", "ema", "symi", "oracle", "no drops")
TARGET = 2.0  # nats per byte, mean of 20 steps: fixed before the first full run
_SMOOTH = 20
_T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}  # two-sided, n - 1 degrees of freedom


def train(policy: Policy, seed: int, steps: int, text: str, target: float = TARGET) -> dict[str, Any]:
    """One run; its survival, popularity and losses."""
    import torch

    from cedar.trainers.common.group import Group
    from cedar.trainers.moe import options as settings
    from cedar.trainers.moe.trainer import Trainer

    torch.set_num_threads(1)
    follow: Kind = "static" if policy == "no drops" else policy
    capacity = 0.0 if policy == "no drops" else 1.0
    options = settings.Options(
        settings.DataOptions(text, length=64, batch=16, held_out=0),
        settings.ModelOptions(layers=2, width=96, heads=4),
        settings.ExpertOptions(16, 64, 384, aux_loss=1e-5, capacity=capacity, policy=follow, every=10),
        settings.OptimizerOptions(rate=2e-3, betas=(0.9, 0.999), schedule="constant"),
        settings.RunOptions(folder="", steps=steps, seed=seed, dtype="float32", device="cpu"),
    )
    trainer = Trainer(options, Group())
    records = [trainer.train_step() for _ in range(steps)]
    trainer.close()
    losses = [record.loss for record in records]
    smooth = [fmean(losses[max(0, at - _SMOOTH) : at]) for at in range(_SMOOTH, steps + 1)]
    layers = [layer for record in records for layer in record.layers]
    return {
        "policy": policy, "seed": seed, "steps": steps,
        "survival": fmean(layer.survival for layer in layers),
        "peak": fmean(layer.peak for layer in layers),
        "entropy": fmean(layer.entropy for layer in layers),
        "moved": fmean(layer.moved for layer in layers),
        "loss": fmean(losses[-50:]),
        "reached": next((at + _SMOOTH for at, loss in enumerate(smooth) if loss <= target), None),
    }  # fmt: skip


def runs(
    form: Form, text: str | None, jobs: int, target: float, minutes: float = math.inf, fresh: bool = False
) -> list[dict[str, Any]]:
    """All runs, each in its own process; those that are in the file of runs already are taken from it."""
    steps, seeds = form.pick((1000, 5), (40, 2), (3, 1))
    policies = form.pick(POLICIES, _QUICK)
    path = harness.OUT / f"moe{suffix(form)}_runs.jsonl"
    harness.OUT.mkdir(parents=True, exist_ok=True)
    if fresh:
        path.unlink(missing_ok=True)
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        corpus = text or standard_library(folder)
        size = Path(corpus).stat().st_size
        there = whole_lines(path)
        found: dict[tuple[str, int], dict[str, Any]] = {
            (r["policy"], r["seed"]): r for r in there if (r["steps"], r["bytes"], r["target"]) == (steps, size, target)
        }
        wanted: list[tuple[str, int]] = [(policy, seed) for seed in range(seeds) for policy in policies]
        left = [key for key in wanted if key not in found]
        running: list[tuple[tuple[str, int], subprocess.Popen[bytes]]] = []
        while running or (left and (time.monotonic() < end or not found)):
            while left and len(running) < jobs and (time.monotonic() < end or not (found or running)):
                key = left.pop(0)
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.moe_language",
                    *map(str, (*key, steps)),
                    corpus,
                    str(target),
                ]
                process = subprocess.Popen(command, cwd=harness.ROOT, env=harness.environment(), stdout=subprocess.PIPE)
                running.append((key, process))
            key, process = running.pop(0)
            out, _ = process.communicate()
            if process.returncode:
                raise RuntimeError(f"the run {key} ended with code {process.returncode}")
            found[key] = json.loads(out) | {"bytes": size, "target": target}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found[key]) + "\n")
            print(f"  {found[key]}", file=sys.stderr, flush=True)
    return [found[key] for key in wanted if key in found]


def whole_seeds(found: Sequence[dict[str, Any]], policies: Collection[str]) -> list[dict[str, Any]]:
    """The runs of those seeds that have been run with every policy."""
    done = {(run["policy"], run["seed"]) for run in found}
    return [run for run in found if all((policy, run["seed"]) in done for policy in policies)]


def standard_library(folder: str) -> str:
    """Real text that is on every machine: Python's own sources, a few MB of them."""
    path = Path(folder) / "text.txt"
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120]
    path.write_text("".join(file.read_text(encoding="utf-8", errors="replace") for file in files), encoding="utf-8")
    return str(path)


def figures(
    form: Form, text: str | None = None, jobs: int = 1, target: float = TARGET, minutes: float = math.inf,
    fresh: bool = False,
) -> list[Figure]:  # fmt: skip
    """Survival by policy, and iterations to the target loss, of the seeds for which all policies have been run."""
    found = whole_seeds(runs(form, text, jobs, target, minutes, fresh), form.pick(POLICIES, _QUICK))
    if not found:
        return []
    of = {name: [run for run in found if run["policy"] == name] for name in POLICIES}
    survival = {name: [run["survival"] for run in of[name]] for name in POLICIES if of[name]}
    steps, seeds = found[0]["steps"], len(of["symi"])
    note = f"{seeds} seeds, {steps} iterations, 16 experts, 64 slots, top-1, capacity 1, one process"
    gain = [a - b for a, b in zip(survival["symi"], survival["periodic"], strict=True)]
    rows = [
        _mean_at_least("token survival, symi", 0.82, survival["symi"], note),
        _mean_at_least("token survival, symi above periodic(10)", 0.05, gain, note),
        harness.at_most("token survival, static", 0.65, survival["static"], "", how="emulated", note=note),
    ]
    for name, values in survival.items():
        if name not in ("symi", "static"):
            rows.append(harness.reported(f"token survival, {name}", values, "", how="emulated", note=note))
        peaks = [run["peak"] for run in of[name]]
        rows.append(harness.reported(f"largest over mean popularity, {name}", peaks, "x", how="emulated", note=note))
        losses = [run["loss"] for run in of[name]]
        rows.append(harness.reported(f"loss of the last 50 steps, {name}", losses, "nats", how="emulated", note=note))
    return rows if form else rows + to_target(of["symi"], of["static"], steps, target)


def to_target(
    symi: Sequence[dict[str, Any]], static: Sequence[dict[str, Any]], steps: int, target: float
) -> list[Figure]:
    """How many iterations fewer than static, seed by seed; a run that never got there counts as all its steps."""
    saved = [1 - (a["reached"] or steps) / (b["reached"] or steps) for a, b in zip(symi, static, strict=True)]
    missed = sum(run["reached"] is None for run in (*symi, *static))
    note = f"to a loss of {target}, mean of {_SMOOTH} steps, fixed beforehand; {missed} runs never got there"
    mean = fmean(saved)
    half = _T95.get(len(saved), 2.0) * stdev(saved) / math.sqrt(len(saved)) if len(saved) > 1 else math.inf
    rows = [_mean_at_least("iterations to the target loss, fewer than static", 0.05, saved, note)]
    clear = mean - half > 0
    rows.append(
        Figure(
            "paired 95% interval of that, lower end",
            "> 0",
            mean - half,
            "",
            clear,
            "emulated",
            mean - half,
            mean + half,
            note,
        )
    )
    return rows


def _mean_at_least(what: str, limit: float, values: Sequence[float], note: str) -> Figure:
    mean = fmean(values)
    return Figure(what, f">= {limit:g}", mean, "", mean >= limit, "emulated", min(values), max(values), f"mean; {note}")


if __name__ == "__main__":
    print(
        json.dumps(
            train(cast("Policy", sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], float(sys.argv[5]))
        )
    )
