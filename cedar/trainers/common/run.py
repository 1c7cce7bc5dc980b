"""A complete run of a data-parallel trainer: train, evaluate, save checkpoints and report progress."""

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

_PROGRESS_LINES = 20  # number of progress lines in a run if stderr is not a terminal


@contextmanager
def progress(title: str, steps: int, done: int = 0, *, quiet: bool = False) -> Iterator[Callable[[int, str], None]]:
    """Show progress. Yields a function that takes the number of completed steps and a short status text."""
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
        every = max(1, steps // _PROGRESS_LINES)

        def say(now: int, text: str) -> None:
            if now % every == 0 or now == steps:
                sys.stderr.write(f"{title}: {now}/{steps} {text}\n")
                sys.stderr.flush()

        yield say


def print_lines(lines: list[str]) -> None:
    """Print each string on its own line."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


class Trainer:
    """Base class for the trainer of a rank, which has a model, its optimizers and its data.

    ``step`` is the number of completed steps; ``notes`` lists the trainer's automatic choices, with reasons.
    """

    name = ""
    batches: Any

    def __init__(self, options: Any, group: Group | None = None) -> None:
        self.options, self.group = options, group or Group()
        self.device = device_of(options.run.device)
        self.step, self.notes = 0, list[str]()

    @property
    def files(self) -> Mapping[str, str]:
        """Files to copy into checkpoints."""
        return {}

    def train_step(self) -> Any:
        """Run one step and return a dataclass with ``step``, ``loss`` and ``held_out``."""
        raise NotImplementedError

    def evaluate(self) -> Any:
        """Return scores of the held-out data, or None without such data. All ranks must call this method."""

    def loaded(self) -> None:
        """Finish loading. Called after a checkpoint's tensors have been read."""

    def close(self) -> None:
        """Close the data source."""
        self.batches.close()

    # ---- hooks that a run calls around its loop
    # -----------------------------------------------------------------------------

    def begin(self, stack: ExitStack) -> None:
        """Open resources, and register them with ``stack``, which closes them at the end of the run."""

    def steps(self) -> int:
        """Return the number of steps of the run."""
        return int(self.options.run.steps)

    def resume(self, files: Checkpoints) -> None:
        """Continue from the newest checkpoint in the folder."""
        files.resume()

    def before_step(self) -> None:
        """Called before every step."""

    def describe(self, record: Any, *, last: bool) -> str:
        """Return a short text about a step for the progress display. All ranks must call this method."""
        return ""

    def drawn(self, path: str) -> None:
        """Plot the metrics file at ``path``. Called on rank 0."""


def run(
    kind: type[Trainer], options: Any, group: Group | None = None, *, resume: bool = False, quiet: bool = False,
    on_metrics: OnMetrics | None = None,
) -> str:  # fmt: skip
    """Train with the given options. Every rank must call this function.

    The run writes run.json, metrics.jsonl (one line immediately after each step) and checkpoints to ``run.folder``.

    Args:
        kind: the trainer class, such as ``cedar.trainers.dlrm.trainer.Trainer``.
        options: the trainer's options, which include ``RunOptions`` as ``run``.
        group: the ranks; None means all of torch.distributed, or this process as a single rank.
        resume: continue from the newest checkpoint in the folder, or start from the beginning if there is none.
        quiet: do not show progress or print choices.
        on_metrics: called on rank 0 with each record of metrics.

    Returns:
        The path of the metrics file.

    Raises:
        CedarError: the folder contains another run's files, or the trainer failed.
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
        group.tell(None)  # barrier: all ranks have read the folder
        if first:
            claim_folder(folder, kind.name)
            metrics = MetricsFile(path, trainer.step, on_metrics)
            if not quiet:
                none = [say_none(folder)] if resume and not trainer.step else []
                print_lines([*none, f"steps: {trainer.step} to {steps}", *choices(trainer), *trainer.notes])
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
    """Return a line, with the reason, for each automatic choice that all trainers make."""
    run = trainer.options.run
    why = "as asked" if run.device != "auto" else f"auto: torch sees {torch.cuda.device_count()} GPUs"
    each = "as asked" if run.threads else "the machine's cores divided by its ranks"
    return [
        f"device: {trainer.device} ({why}), {run.dtype}",
        f"ranks: {trainer.group.size}, torch threads on each: {torch.get_num_threads()} ({each})",
        f"folder: {run.folder}",
    ]


def say_none(folder: str) -> str:
    """Say that ``--resume`` found nothing in ``run.folder``."""
    return f"no checkpoint in {folder}: the run starts at step 0, and its metrics begin again"


def _due(every: int, step: int) -> bool:
    return bool(every) and step % every == 0
