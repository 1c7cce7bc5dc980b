"""Records of training steps, prediction scores, and the summary of a run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from cedar.trainers.common.files import number

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Scores:
    """Prediction scores over a number of rows."""

    rows: int  # number of rows
    loss: float  # mean cross-entropy, in nats
    auc: float  # probability that a positive row scores above a negative one; NaN with one class only
    # normalized entropy: the loss divided by the loss of predicting the share of positive rows (He et al., 2014);
    # NaN with one class only
    entropy: float


def auc(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the probability that a positive row scores above a negative one; ties count half. ``logits``: ``[rows]``;
    ``labels``: ``[rows]``, 0 or 1.

    Examples:
        >>> auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]))
        0.875
    """
    positive = labels > 0.5
    wins, losses = int(positive.sum()), int((~positive).sum())
    if not wins or not losses:
        return math.nan
    _, inverse, counts = torch.unique(logits, return_inverse=True, return_counts=True)
    places = (counts.cumsum(0).double() - (counts - 1).double() / 2)[inverse]  # equal scores get their mean rank
    return float((places[positive].sum() - wins * (wins + 1) / 2) / wins / losses)


def score(logits: torch.Tensor, labels: torch.Tensor) -> Scores:
    """Compute all scores from logits and labels ``[rows]``.

    Examples:
        >>> found = score(torch.tensor([-1.0, 1.0]), torch.tensor([0.0, 1.0]))
        >>> found.auc, round(found.loss, 4), round(found.entropy, 4)
        (1.0, 0.3133, 0.4519)
    """
    if not len(labels):
        return Scores(0, math.nan, math.nan, math.nan)
    logits, labels = logits.double(), labels.double()
    loss = float(torch.nn.functional.binary_cross_entropy_with_logits(logits, labels))
    rate = float(labels.mean())
    base = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)) if 0 < rate < 1 else math.nan
    return Scores(len(labels), loss, auc(logits, labels), loss / base)


class Window:
    """The predictions of the most recent rows. ``rows``: how many rows to keep; at least one batch is kept."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._batches: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
        self._count = 0

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        self._batches.append((logits, labels))
        self._count += len(logits)
        while len(self._batches) > 1 and self._count - len(self._batches[0][0]) >= self.rows:
            self._count -= len(self._batches.popleft()[0])

    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and labels, oldest first."""
        if not self._batches:
            return torch.zeros(0), torch.zeros(0)
        logits, labels = zip(*self._batches, strict=True)
        return torch.cat(logits), torch.cat(labels)


@dataclass(frozen=True)
class StepRecord:
    """Metrics of one training step."""

    step: int  # counted from 0
    rows: int  # number of rows over all ranks
    loss: float  # mean cross-entropy per row over all ranks, in nats
    rate: float  # the learning rate of tables
    seconds: float  # duration of the step on rank 0
    waited: float  # part of ``seconds`` spent waiting for data
    looked_up: int  # ids that rank 0 looked up, counting deduplicated rows once
    sent: dict[str, int] = field(default_factory=dict)  # bytes that rank 0 sent to other ranks, by phase
    held_out: Scores | None = None  # scores of held-out rows, if evaluated after this step


def summary(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Summarize a metrics file as (label, value) pairs.

    Examples:
        >>> line = {"step": 0, "rows": 10, "loss": 0.5, "seconds": 2.0, "waited": 1.0, "looked_up": 40, "sent": {}}
        >>> summary([line | {"held_out": None}])[:3]
        [('steps', '1'), ('rows/s', '5'), ('waited for data', '50%')]
    """
    seconds = sum(line["seconds"] for line in lines) or 1.0
    last = lines[-min(20, len(lines)) :]
    entries = [
        ("steps", f"{len(lines):,}"),
        ("rows/s", f"{sum(line['rows'] for line in lines) / seconds:,.0f}"),
        ("waited for data", f"{sum(line['waited'] for line in lines) / seconds:.0%}"),
        ("ids looked up in a step", f"{fmean(line['looked_up'] for line in lines):,.0f}"),
        (f"loss over the last {len(last)} steps", f"{fmean(number(line['loss']) for line in last):.4f}"),
    ]
    phases = list(dict.fromkeys(phase for line in lines for phase in line["sent"]))
    entries += [
        (f"{phase}, kB a step", f"{fmean(line['sent'].get(phase, 0) for line in lines) / 1000:,.1f}")
        for phase in phases
    ]
    scores = next((line["held_out"] for line in reversed(lines) if line["held_out"]), None)
    if scores:
        entries += [
            ("held out: loss", f"{number(scores['loss']):.4f}"),
            ("held out: AUC", f"{number(scores['auc']):.4f}"),
            ("held out: normalized entropy", f"{number(scores['entropy']):.4f}"),
        ]
    return entries


def table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """Return the summary as a rich table."""
    from rich.table import Table

    shown = Table(show_header=False)
    shown.add_column(justify="left")
    shown.add_column(justify="right")
    for label, value in summary(lines):
        shown.add_row(label, value)
    return shown
