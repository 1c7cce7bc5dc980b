"""A whole run: train, evaluate, save, tell."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import replace
from importlib.util import find_spec

from cedar.errors import CedarError
from cedar.trainers.group import Group
from cedar.trainers.lines import MetricsFile, read_lines
from cedar.trainers.moe.checkpoint import Checkpoints
from cedar.trainers.moe.command import PLOT
from cedar.trainers.moe.options import Options
from cedar.trainers.moe.plot import plot
from cedar.trainers.moe.sparse import SparseCheckpoints
from cedar.trainers.moe.trainer import Trainer
from cedar.trainers.progress import progress

METRICS = "metrics.jsonl"


def run(options: Options, group: Group | None = None, *, resume: bool = False, quiet: bool = False) -> str:
    """Train as the options say; every rank calls it.

    ``run.folder`` holds metrics.jsonl (a line per step), checkpoints, and, with matplotlib, replicas.png afterwards.

    Args:
        options: of the run.
        group: the ranks; None for all of torch.distributed, or this process alone.
        resume: go on from what the folder holds: the newest checkpoint, or the sparse one where that reaches further
            and was saved by as many ranks; from the start where there is none.
        quiet: show no progress.

    Returns:
        The path of the metrics.

    Raises:
        CedarError: the folder holds checkpoints of another run, which a later ``resume`` would take for this one's; see
            ``Trainer.train_step`` and ``Checkpoints``.
    """
    group = group or Group()
    folder, run = options.run.folder, options.run
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise CedarError(
            f"run.folder is {folder!r}, which cannot be made: {error.strerror}",
            fix="set it to a folder for checkpoints and metrics",
        ) from error
    with ExitStack() as stack:
        trainer = stack.enter_context(closing(Trainer(options, group)))
        where = os.path.join(folder, "checkpoints")
        files = stack.enter_context(Checkpoints(where, group, keep=run.keep, beside=run.save_async))
        sparse = None
        if run.sparse_window:
            sparse = stack.enter_context(SparseCheckpoints(os.path.join(folder, "sparse"), trainer, run.sparse_window))
        if resume:
            _resume(trainer, files, sparse)
        elif (there := files.latest()) is not None:
            raise CedarError(
                f"{there} is there already", fix="go on with --resume, or set run.folder to another folder"
            )
        path = os.path.join(folder, METRICS)
        metrics = MetricsFile(path, trainer.step) if group.rank == 0 else None
        say = stack.enter_context(progress("training", run.steps, trainer.step, quiet=quiet or group.rank > 0))
        while trainer.step < run.steps:
            if sparse is not None:
                sparse.before_step()
            record = trainer.train_step()
            if trainer.step == run.steps or (run.evaluate_every and trainer.step % run.evaluate_every == 0):
                record = replace(record, held_out=trainer.evaluate())
            if metrics is not None:
                metrics.write(record)
            if trainer.step == run.steps or (run.save_every and trainer.step % run.save_every == 0):
                files.save(trainer)
            survival = sum(layer.survival for layer in record.layers) / len(record.layers)
            say(trainer.step, f"loss {record.loss:.4f}, survival {survival:.3f}")
        files.wait()
    if group.rank == 0 and find_spec("matplotlib") is not None and (lines := read_lines(path)):
        plot(lines, os.path.join(folder, PLOT))
    return path


def _resume(trainer: Trainer, files: Checkpoints, sparse: SparseCheckpoints | None) -> None:
    dense, reached = files.latest(), sparse.end() if sparse is not None else None
    found = {"the newest checkpoint": dense and os.path.basename(dense), "the end of the sparse one": reached}
    trainer.group.agree(found, "give all ranks a run.folder that they share", trainer.device)
    if sparse is not None and reached is not None and (dense is None or reached > int(dense.rpartition("-")[2])):
        sparse.recover()
    elif dense is not None:
        files.load(trainer, dense)
