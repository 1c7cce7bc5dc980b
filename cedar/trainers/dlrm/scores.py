"""How good predictions are: AUC and normalised entropy."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Scores:
    """Of some rows.

    Args:
        rows: how many.
        loss: mean cross-entropy, in nats.
        auc: the chance that a positive row scores above a negative one; NaN where there is only one kind.
        entropy: the loss over that of predicting the share of positive rows (He et al., 2014); less than 1 is better
            than that; NaN where there is only one kind.
    """

    rows: int
    loss: float
    auc: float
    entropy: float


def auc(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The chance that a positive row scores above a negative one, ties counting half.

    Args:
        logits: ``[rows]``.
        labels: ``[rows]``, 0 or 1.

    Example:
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

    Example:
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
    """The predictions of the last rows.

    Args:
        rows: how many are kept, at most; whole batches, at least one.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._held: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
        self._count = 0

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        self._held.append((logits, labels))
        self._count += len(logits)
        while len(self._held) > 1 and self._count - len(self._held[0][0]) >= self.rows:
            self._count -= len(self._held.popleft()[0])

    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and labels, oldest first."""
        if not self._held:
            return torch.zeros(0), torch.zeros(0)
        logits, labels = zip(*self._held, strict=True)
        return torch.cat(logits), torch.cat(labels)
