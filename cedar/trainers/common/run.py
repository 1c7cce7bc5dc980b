"""A whole run of a trainer whose ranks all do the same: train, evaluate, save, tell."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, Protocol

from cedar.trainers.common.checkpoint import Checkpoints, Saved
from cedar.trainers.common.folder import CHECKPOINTS, METRICS, check_folder, claim_folder
from cedar.trainers.common.group import Group
from cedar.trainers.common.metrics import MetricsFile, OnMetrics
from cedar.trainers.common.progress import progress, say_choices


class Trains(Saved, Protocol):
    """A trainer, as a run sees it."""

    notes: list[str]  # what was chosen, and why

    def train_step(self) -> Any:
        """One step; a dataclass with ``step``, ``loss`` and ``held_out``."""

    def evaluate(self) -> Any:
        """Scores of what is held out, None where nothing is; all ranks call it."""

    def close(self) -> None:
        """Let go of what is open."""


class Hooks:
    """What a run of one trainer does beside the loop.

    Args:
        trainer: whose it is.
        stack: closed at the end of the run.
    """

    def __init__(self, trainer: Any, stack: ExitStack) -> None:
        self.trainer = trainer

    def steps(self) -> int:
        """Of the run."""
        return int(self.trainer.options.run.steps)

    def resume(self, files: Checkpoints) -> None:
        """Go on from what the folder holds."""
        files.resume()

    def before_step(self) -> None:
        """Called ahead of every step."""

    def told(self, record: Any, *, last: bool) -> str:
        """A few words on a step; all ranks call it."""
        return ""


def run(
    name: str, make: Callable[[Group], Trains], options: Any, group: Group | None = None, *, resume: bool = False,
    quiet: bool = False, hooks: type[Hooks] = Hooks, on_metrics: OnMetrics | None = None,
) -> str:  # fmt: skip
    """Train as the options say; every rank calls it.

    ``run.folder`` holds run.json, metrics.jsonl (a line per step, written as it comes) and checkpoints.

    Args:
        name: of the trainer.
        make: makes it.
        options: with a table ``run``.
        group: the ranks; None for all of torch.distributed, or this process alone.
        resume: go on from what the folder holds; from the start where that is nothing.
        quiet: show no progress, print no choices.
        hooks: of this trainer.
        on_metrics: is given each line of the metrics on rank 0.

    Returns:
        The path of the metrics.

    Raises:
        CedarError: the folder holds another run's files; the trainer's own.
    """
    group, chosen = group or Group(), options.run
    folder, first = chosen.folder, group.rank == 0
    check_folder(folder, name, resume=resume)
    with ExitStack() as stack:
        trainer = stack.enter_context(closing(make(group)))
        beside = getattr(chosen, "save_async", False)
        files = Checkpoints(os.path.join(folder, CHECKPOINTS), trainer, keep=chosen.keep, beside=beside)
        files = stack.enter_context(files)
        hook = hooks(trainer, stack)
        if resume:
            hook.resume(files)
        steps = hook.steps()
        path = os.path.join(folder, METRICS)
        metrics = None
        group.tell(None)  # all have looked at the folder
        if first:
            claim_folder(folder, name)
            metrics = MetricsFile(path, trainer.step, on_metrics)
            if not quiet:
                say_choices([f"steps: {trainer.step} to {steps}", *choices(options, group, trainer), *trainer.notes])
        say = stack.enter_context(progress("training", steps, trainer.step, quiet=quiet or not first))
        while trainer.step < steps:
            hook.before_step()
            record = trainer.train_step()
            last = trainer.step == steps
            if last or _due(chosen.evaluate_every, trainer.step):
                record = replace(record, held_out=trainer.evaluate())
            if metrics is not None:
                metrics.write(record)
            if last or _due(chosen.save_every, trainer.step):
                files.save()
            said = hook.told(record, last=last)
            say(trainer.step, f"loss {record.loss:.4f}" + (f", {said}" if said else ""))
        files.wait()
    return path


def choices(options: Any, group: Group, trainer: Trains) -> list[str]:
    """What all trainers choose, and why."""
    import torch

    run = options.run
    why = "as asked" if run.device != "auto" else f"auto: torch sees {torch.cuda.device_count()} GPUs"
    each = "as asked" if run.threads else "the machine's cores over its ranks"
    return [
        f"device: {trainer.device} ({why}), {run.dtype}",
        f"ranks: {group.size}, threads of torch on each: {torch.get_num_threads()} ({each})",
        f"folder: {run.folder}",
    ]


def _due(every: int, step: int) -> bool:
    return bool(every) and step % every == 0
