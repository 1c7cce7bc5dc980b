"""A whole run: train, evaluate, save, tell."""

from __future__ import annotations

import os
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

from cedar.trainers.common import run as common
from cedar.trainers.common.checkpoint import Checkpoints, steps
from cedar.trainers.common.files import PLOT, OnMetrics, read_lines
from cedar.trainers.common.group import Group
from cedar.trainers.moe.metrics import plot
from cedar.trainers.moe.options import Options
from cedar.trainers.moe.sparse import SparseCheckpoints
from cedar.trainers.moe.trainer import Trainer


class _Run(Trainer):
    """Sparse checkpoints, and the share of tokens that survived as progress."""

    sparse: SparseCheckpoints | None = None

    def begin(self, stack: ExitStack) -> None:
        chosen = self.options.run
        if chosen.sparse_window:
            folder = os.path.join(chosen.folder, "sparse")
            self.sparse = stack.enter_context(SparseCheckpoints(folder, self, chosen.sparse_window))

    def resume(self, files: Checkpoints) -> None:
        """From the newest checkpoint, or the sparse one where that reaches further and as many ranks saved it."""
        dense = max(steps(files.folder), default=-1)
        reached = None if self.sparse is None else self.sparse.end()
        found = {"the newest checkpoint": dense, "the end of the sparse one": reached}
        self.group.agree(found, "give all ranks a run.folder that they share", self.device)
        if self.sparse is not None and reached is not None and reached > dense:
            self.sparse.recover()
        else:
            files.resume()

    def before_step(self) -> None:
        if self.sparse is not None:
            self.sparse.before_step()

    def told(self, record: Any, *, last: bool) -> str:
        return f"survival {sum(layer.survival for layer in record.layers) / len(record.layers):.3f}"


def run(
    options: Options, group: Group | None = None, *, resume: bool = False, quiet: bool = False,
    on_metrics: OnMetrics | None = None,
) -> str:  # fmt: skip
    """Train as the options say; every rank calls it. See ``cedar.trainers.common.run.run``.

    With matplotlib, ``run.folder`` holds replicas.png afterwards.
    """
    group = group or Group()
    path = common.run("moe", _Run, options, group, resume=resume, quiet=quiet, on_metrics=on_metrics)
    if group.rank == 0 and find_spec("matplotlib") is not None and (lines := read_lines(path)):
        plot(lines, os.path.join(options.run.folder, PLOT))
    return path
