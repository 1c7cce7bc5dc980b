"""A whole run: train, evaluate, save, tell."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from cedar.trainers.common import run as common
from cedar.trainers.common.files import OnMetrics
from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.options import Options
from cedar.trainers.dlrm.trainer import Trainer

_TOLD = 20  # times in a run that AUC and entropy are worked out for progress, at least


class _Run(Trainer):
    """An epoch where no steps are given; AUC, entropy, speed and the share of waiting as progress."""

    def begin(self, stack: ExitStack) -> None:
        self._said, self._rows, self._seconds, self._waited = "", 0, 0.0, 0.0
        self._steps = 0

    def steps(self) -> int:
        self._steps = super().steps() or self.batches.epoch()
        return self._steps

    def told(self, record: Any, *, last: bool) -> str:
        self._rows, self._seconds = self._rows + record.rows, self._seconds + record.seconds
        self._waited += record.waited
        if last or self.step % max(1, self._steps // _TOLD) == 0:
            recent = self.recent()
            self._said = f"AUC {recent.auc:.4f}, entropy {recent.entropy:.4f}"
            self._said += f", {self._rows / self._seconds:,.0f} rows/s, waited {self._waited / self._seconds:.0%}"
            self._rows, self._seconds, self._waited = 0, 0.0, 0.0
        return self._said


def run(
    options: Options, group: Group | None = None, *, resume: bool = False, quiet: bool = False,
    on_metrics: OnMetrics | None = None,
) -> str:  # fmt: skip
    """Train as the options say; every rank calls it. See ``cedar.trainers.common.run.run``."""
    return common.run("dlrm", _Run, options, group, resume=resume, quiet=quiet, on_metrics=on_metrics)
