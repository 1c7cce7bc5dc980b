"""A whole run: train, evaluate, save, tell."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import replace

from cedar.trainers.dlrm.checkpoint import Checkpoints
from cedar.trainers.dlrm.options import Options
from cedar.trainers.dlrm.trainer import Trainer
from cedar.trainers.group import Group
from cedar.trainers.lines import MetricsFile
from cedar.trainers.progress import progress

METRICS = "metrics.jsonl"
_TOLD = 20  # times in a run that AUC and entropy are worked out for progress, at least


def run(options: Options, group: Group | None = None, *, resume: bool = False, quiet: bool = False) -> str:
    """Train as the options say; every rank calls it.

    ``run.folder`` holds metrics.jsonl (a line per step) and checkpoints.

    Args:
        options: of the run.
        group: the ranks; None for all of torch.distributed, or this process alone.
        resume: go on from the newest checkpoint in the folder; from the start where there is none.
        quiet: show no progress.

    Returns:
        The path of the metrics.

    Raises:
        CedarError: see ``Trainer`` and ``Checkpoints``.
    """
    group = group or Group()
    folder, chosen = options.run.folder, options.run
    os.makedirs(folder, exist_ok=True)
    with ExitStack() as stack:
        trainer = stack.enter_context(closing(Trainer(options, group)))
        files = Checkpoints(os.path.join(folder, "checkpoints"), trainer, keep=chosen.keep)
        if resume and (found := files.latest()) is not None:
            files.load(found)
        steps = chosen.steps or trainer.batches.epoch()
        every = max(1, steps // _TOLD)
        path = os.path.join(folder, METRICS)
        metrics = MetricsFile(path, trainer.step) if group.rank == 0 else None
        say = stack.enter_context(progress("training", steps, trainer.step, quiet=quiet or group.rank > 0))
        told, rows, seconds, waited = "", 0, 0.0, 0.0
        while trainer.step < steps:
            record = trainer.train_step()
            last = trainer.step == steps
            if last or (chosen.evaluate_every and trainer.step % chosen.evaluate_every == 0):
                record = replace(record, held_out=trainer.evaluate())
            if metrics is not None:
                metrics.write(record)
            if last or (chosen.save_every and trainer.step % chosen.save_every == 0):
                files.save()
            rows, seconds, waited = rows + record.rows, seconds + record.seconds, waited + record.waited
            if last or trainer.step % every == 0:
                recent = trainer.recent()
                told = f"AUC {recent.auc:.4f}, entropy {recent.entropy:.4f}"
                told += f", {rows / seconds:,.0f} rows/s, waited {waited / seconds:.0%}"
                rows, seconds, waited = 0, 0.0, 0.0
            say(trainer.step, f"loss {record.loss:.4f}" + (f", {told}" if told else ""))
    return path
