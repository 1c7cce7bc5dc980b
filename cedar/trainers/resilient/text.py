"""The model of ``cedar train resilient``, a GPT on byte-level text, and the report of what failures cost its run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import cedar
from cedar.core.errors import CedarError
from cedar.trainers.common.data import VOCABULARY, token_rows
from cedar.trainers.common.files import figure
from cedar.trainers.resilient.model import Stage, Transformer, token_loss
from cedar.trainers.resilient.options import DataOptions, Options
from cedar.trainers.resilient.pipeline import ResilientPipeline, Workers
from cedar.trainers.resilient.run import Record


def text_pipeline(options: Options, stages: int, group: Workers) -> ResilientPipeline:
    """Build the pipeline of a configuration."""
    chosen, seed = options.model, options.run.seed
    if not 1 <= stages <= chosen.layers:
        raise CedarError(
            f"{chosen.layers} layers cannot be split into {stages} stages",
            fix="use at most one stage per layer, and at least one stage",
        )
    model = Transformer(
        VOCABULARY, options.data.length, chosen.layers, chosen.width, chosen.heads, chosen.dropout, chosen.tied
    )
    return ResilientPipeline(
        [partial(Stage, model, stage, stages, seed) for stage in range(stages)], token_loss,
        partial(token_pipeline, options.data, seed), group, columns=next_token, batch=options.data.batch,
        optimizer=options.optimizer, tied="tokens.weight" if chosen.tied else None, pipeline=options.pipeline,
        run=options.run, named=True, about=asdict(options),
    )  # fmt: skip


def token_pipeline(options: DataOptions, seed: int) -> cedar.Pipeline:
    """Return rows of tokens, shuffled within windows of the text."""
    return token_rows(options.paths, options.length + 1).shuffle(seed=seed)


def next_token(batch: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return (inputs, targets): all tokens of each row but the last, and for each of these the next token."""
    tokens = batch["tokens"].long()
    return tokens[:, :-1], tokens[:, 1:]


@dataclass(frozen=True)
class RecoveryTimes:
    """Recovery times, in seconds, of a generation that began after a failure."""

    generation: int  # number of the generation
    who: str  # the worker that failed
    detection: float | None  # from an injected failure until a supervisor detected it; None for other failures
    decision: float  # from detection until the generation began
    rebuild: float  # from then until the first survivor was connected to the other workers
    plan: float  # from then until that survivor had its plan
    # from the failure (if not injected, from its detection) until the first survivor runs an F or B
    redo: float
    redo_all: float  # the same, but until the last survivor runs one
    kept: int  # number of the step's micro-batches that survivors did not recompute


def recoveries(record: Record) -> list[RecoveryTimes]:
    """Return the recovery times of each generation that began after a failure and started to compute."""
    recovered = []
    lives: dict[str, int] = {}
    replicas = 1 + max((int(w.strip("()").split(", ")[1]) for g in record.recoveries.values() for w in g), default=0)
    for event in record.events:
        if event.what != "failure" or event.worker is None:
            continue
        number = str(event.worker.stage * replicas + event.worker.replica)
        life = lives[number] = lives.get(number, -1) + 1
        happened = record.mishaps.get(f"{number}/{life}")
        times = list(record.recoveries.get(str(event.generation), {}).values())
        if not times:
            continue
        first = min(times, key=lambda reported: reported["redo"])
        since = event.detected if happened is None else happened[1]
        recovered.append(
            RecoveryTimes(
                event.generation, str(event.worker), None if happened is None else event.detected - happened[1],
                event.decided - event.detected, first["agreed"] - event.decided, first["planned"] - first["agreed"],
                first["redo"] - since, max(reported["redo"] for reported in times) - since,
                int(sum(reported["kept"] for reported in times)),
            )
        )  # fmt: skip
    return recovered


def show(record: Record) -> None:
    """Print recovery times, memory use and step times of a run."""
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table

    console = Console()
    table = Table(title="recoveries, in milliseconds", title_justify="left")
    for heading in ("generation", "failed", "detect", "decide", "rebuild", "plan", "first redone", "all", "kept"):
        table.add_column(heading, justify="right")
    recovered = recoveries(record)
    for one in recovered:
        seconds = (one.detection, one.decision, one.rebuild, one.plan, one.redo, one.redo_all)
        cells = ["" if value is None else f"{1000 * value:.0f}" for value in seconds]
        table.add_row(str(one.generation), one.who, *cells, str(one.kept))
    if recovered:
        console.print(table)
    console.print(
        f"{record.plans['failures'] + 1:.0f} plans computed in advance took {1000 * record.plans['seconds']:.0f} ms"
        + (f", a plan at a failure {1000 * max(one.plan for one in recovered):.0f} ms" if recovered else "")
    )
    if record.ended:
        state, logs = (max(one[name] for one in record.ended.values()) for name in ("peak", "logs"))
        console.print(
            f"each worker kept at most {decimal(state)} of state and undo copies, and {decimal(logs)} of logs"
        )
    if record.step:
        console.print(
            f"a step without failures: {record.step['simulated']:.3f} s simulated from measured instructions,"
            f" {record.step['measured']:.3f} s measured"
        )
    gaps = intervals(record)
    if gaps:
        slowest = max(gaps)
        console.print(
            f"{len(record.steps)} steps, {statistics.median(gaps):.3f} s each, the slowest {slowest:.3f} s;"
            f" loss {record.steps[-1][2]:.4f}; {len(record.ended)} workers at the end"
        )


def intervals(record: Record) -> list[float]:
    """Return the seconds between consecutive steps."""
    return [after[1] - before[1] for before, after in zip(record.steps, record.steps[1:], strict=False)]


def plot(record: Record, path: str) -> None:
    """Plot steps per second over time, with failures and joins, and save a PNG."""
    picture = figure(9, 4)
    axes = picture.subplots()
    if record.steps:
        begun = record.steps[0][1]
        times = [when - begun for _, when, _ in record.steps[1:]]
        axes.step(times, [1 / max(gap, 1e-3) for gap in intervals(record)], where="pre", linewidth=0.9)
        for event in record.events:
            if event.what != "start":
                axes.axvline(
                    event.detected - begun, color="tab:green" if event.what == "join" else "tab:red", alpha=0.6
                )
                axes.annotate(
                    f"{event.what} {event.worker or ''}", (event.detected - begun, 0), rotation=90, fontsize=7,
                    va="bottom",
                )  # fmt: skip
    axes.set(xlabel="seconds", ylabel="steps per second", ylim=(0, None))
    picture.savefig(path, dpi=110)
