"""What a step tells, how good predictions are, and what a run comes to."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Scores:
    """Of some rows."""

    rows: int  # how many
    loss: float  # mean cross-entropy, in nats
    auc: float  # the chance that a positive row scores above a negative one; NaN if there is only one kind
    # the loss over that of predicting the share of positive rows (He et al., 2014); less than 1 is better than that;
    # NaN if there is only one kind
    entropy: float


def auc(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The chance that a positive row scores above a negative one, ties counting half. ``logits``: ``[rows]``;
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
    places = (counts.cumsum(0).double() - (counts - 1).double() / 2)[inverse]  # equal scores share their mean place
    return float((places[positive].sum() - wins * (wins + 1) / 2) / wins / losses)


def score(logits: torch.Tensor, labels: torch.Tensor) -> Scores:
    """All of it, from logits and labels ``[rows]``.

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
    """The predictions of the last rows. ``rows``: how many are kept, at most; whole batches, at least one."""

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
        """Logits and labels, oldest first."""
        if not self._batches:
            return torch.zeros(0), torch.zeros(0)
        logits, labels = zip(*self._batches, strict=True)
        return torch.cat(logits), torch.cat(labels)


@dataclass(frozen=True)
class StepRecord:
    """One step."""

    step: int  # from 0
    rows: int  # over all ranks
    loss: float  # mean cross-entropy of a row, over all ranks, in nats
    rate: float  # the learning rate of tables
    seconds: float  # of rank 0
    waited: float  # of these, for data
    looked_up: int  # ids that rank 0 looked up: those of unique rows where rows are deduplicated
    sent: dict[str, int] = field(default_factory=dict)  # bytes of rank 0 to other ranks, by phase
    held_out: Scores | None = None  # scores of the rows that are held out, where they were inspected after this step


def summary(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What to say of a metrics file: pairs of words.

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
        (f"loss over the last {len(last)} steps", f"{fmean(line['loss'] for line in last):.4f}"),
    ]
    phases = list(dict.fromkeys(phase for line in lines for phase in line["sent"]))
    entries += [
        (f"{phase}, kB a step", f"{fmean(line['sent'].get(phase, 0) for line in lines) / 1000:,.1f}")
        for phase in phases
    ]
    scores = next((line["held_out"] for line in reversed(lines) if line["held_out"]), None)
    if scores:
        entries += [
            ("held out: loss", f"{scores['loss']:.4f}"),
            ("held out: AUC", f"{scores['auc']:.4f}"),
            ("held out: normalized entropy", f"{scores['entropy']:.4f}"),
        ]
    return entries


def table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """The same, to be printed."""
    from rich.table import Table

    shown = Table(show_header=False)
    shown.add_column(justify="left")
    shown.add_column(justify="right")
    for label, value in summary(lines):
        shown.add_row(label, value)
    return shown
