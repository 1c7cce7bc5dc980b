"""A whole run of a trainer whose ranks all do the same: train, evaluate, save, tell."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import torch

from cedar.trainers.common.checkpoint import Checkpoints
from cedar.trainers.common.compute import device_of
from cedar.trainers.common.files import CHECKPOINTS, METRICS, MetricsFile, OnMetrics, check_folder, claim_folder
from cedar.trainers.common.group import Group

_LINES = 20  # of a whole run, if nothing watches a bar


@contextmanager
def progress(title: str, steps: int, done: int = 0, *, quiet: bool = False) -> Iterator[Callable[[int, str], None]]:
    """Gives a function to call after each step with the number of steps done and a few words."""
    if quiet:
        yield lambda _done, _text: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[said]}"),
        )  # fmt: skip
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=steps, completed=done, said="")
            yield lambda now, text: bar.update(task, completed=now, said=text)
    else:
        every = max(1, steps // _LINES)

        def say(now: int, text: str) -> None:
            if now % every == 0 or now == steps:
                sys.stderr.write(f"{title}: {now}/{steps} {text}\n")
                sys.stderr.flush()

        yield say


def list_choices(lines: list[str]) -> None:
    """What was chosen, before the first step; what happened, between steps."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


class Trainer:
    """One rank of a run: a model, its optimizers, its data; trainers fill in what is theirs.

    ``step`` is the number of steps done, ``notes`` says what was chosen, and why.
    """

    name = ""
    batches: Any

    def __init__(self, options: Any, group: Group | None = None) -> None:
        self.options, self.group = options, group or Group()
        self.device = device_of(options.run.device)
        self.step, self.notes = 0, list[str]()

    @property
    def files(self) -> Mapping[str, str]:
        """Those that checkpoints hold copies of."""
        return {}

    def train_step(self) -> Any:
        """One step; a dataclass with ``step``, ``loss`` and ``held_out``."""
        raise NotImplementedError

    def evaluate(self) -> Any:
        """Scores of what is held out, None if nothing is; all ranks call it."""

    def loaded(self) -> None:
        """A checkpoint's tensors have been read."""

    def close(self) -> None:
        """Let the data go."""
        self.batches.close()

    # ---- what a run does next to the loop
    # -----------------------------------------------------------------------------

    def begin(self, stack: ExitStack) -> None:
        """Make what is closed at the end of the run."""

    def steps(self) -> int:
        """Of the run."""
        return int(self.options.run.steps)

    def resume(self, files: Checkpoints) -> None:
        """Continue from what the folder holds."""
        files.resume()

    def before_step(self) -> None:
        """Called ahead of every step."""

    def describe(self, record: Any, *, last: bool) -> str:
        """A few words on a step; all ranks call it."""
        return ""

    def drawn(self, path: str) -> None:
        """Draw what the metrics at ``path`` say, on rank 0."""


def run(
    kind: type[Trainer], options: Any, group: Group | None = None, *, resume: bool = False, quiet: bool = False,
    on_metrics: OnMetrics | None = None,
) -> str:  # fmt: skip
    """Train as the options say; every rank calls it.

    ``run.folder`` holds run.json, metrics.jsonl (a line per step, written as it comes) and checkpoints.

    Args:
        kind: of trainer, such as ``cedar.trainers.dlrm.trainer.Trainer``.
        options: with a table ``run``.
        group: the ranks; None for all of torch.distributed, or this process alone.
        resume: continue from what the folder holds; from the start where that is nothing.
        quiet: show no progress, print no choices.
        on_metrics: is given each line of the metrics on rank 0.

    Returns:
        The path of the metrics.

    Raises:
        CedarError: the folder holds another run's files; the trainer's own.
    """
    group, chosen = group or Group(), options.run
    folder, first = chosen.folder, group.rank == 0
    path, metrics = os.path.join(folder, METRICS), None
    check_folder(folder, kind.name, resume=resume)
    with ExitStack() as stack:
        trainer: Any = stack.enter_context(closing(kind(options, group)))
        beside = getattr(chosen, "save_async", False)
        files = Checkpoints(os.path.join(folder, CHECKPOINTS), trainer, keep=chosen.keep, beside=beside)
        files = stack.enter_context(files)
        trainer.begin(stack)
        if resume:
            trainer.resume(files)
        steps = trainer.steps()
        group.tell(None)  # all have looked at the folder
        if first:
            claim_folder(folder, kind.name)
            metrics = MetricsFile(path, trainer.step, on_metrics)
            if not quiet:
                list_choices([f"steps: {trainer.step} to {steps}", *choices(trainer), *trainer.notes])
        say = stack.enter_context(progress("training", steps, trainer.step, quiet=quiet or not first))
        while trainer.step < steps:
            trainer.before_step()
            record = trainer.train_step()
            last = trainer.step == steps
            if last or _due(chosen.evaluate_every, trainer.step):
                record = replace(record, held_out=trainer.evaluate())
            if metrics is not None:
                metrics.write(record)
            if last or _due(chosen.save_every, trainer.step):
                files.save()
            said = trainer.describe(record, last=last)
            say(trainer.step, f"loss {record.loss:.4f}" + (f", {said}" if said else ""))
        files.wait()
        if first:
            trainer.drawn(path)
    return path


def choices(trainer: Trainer) -> list[str]:
    """What all trainers choose, and why."""
    run = trainer.options.run
    why = "as asked" if run.device != "auto" else f"auto: torch sees {torch.cuda.device_count()} GPUs"
    each = "as asked" if run.threads else "the machine's cores over its ranks"
    return [
        f"device: {trainer.device} ({why}), {run.dtype}",
        f"ranks: {trainer.group.size}, threads of torch on each: {torch.get_num_threads()} ({each})",
        f"folder: {run.folder}",
    ]


def _due(every: int, step: int) -> bool:
    return bool(every) and step % every == 0
