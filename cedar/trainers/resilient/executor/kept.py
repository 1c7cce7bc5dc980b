"""What a worker has done of a step, kept until the step commits: a step that is redone does only what was lost.

These are upstream logs: the activations and gradients that crossed a stage's boundary, and the gradients of weights.
After a failure, the workers of other stages send what they have; only the failed stage's peers compute again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

Key = tuple[int, int]


@dataclass
class Kept:
    """The micro-batches of one step that this worker has finished.

    Args:
        step: of the run.
        outputs: what F gave, by micro-batch.
        gradients: what B_INPUT gave; None at the first stage.
        rows: what B_WEIGHT gave; with ``fast`` reduction a row is in ``total`` instead.
        losses: at the last stage.
    """

    step: int
    outputs: dict[Key, torch.Tensor] = field(default_factory=dict)
    gradients: dict[Key, torch.Tensor | None] = field(default_factory=dict)
    rows: dict[Key, torch.Tensor] = field(default_factory=dict)
    losses: dict[Key, float] = field(default_factory=dict)
    summed: set[Key] = field(default_factory=set)
    total: torch.Tensor | None = None

    @property
    def done(self) -> set[Key]:
        """Micro-batches of which nothing is left to compute."""
        return set(self.rows) | self.summed

    @property
    def nbytes(self) -> int:
        """Of boundary messages that are kept."""
        return sum(t.nbytes for t in (*self.outputs.values(), *self.gradients.values()) if t is not None)

    def narrow(self, mine: set[Key], *, logs: bool) -> None:
        """Forget what is not finished, and what others work now.

        Args:
            mine: the micro-batches that the new plan gives to this worker.
            logs: finished work is kept; else everything is forgotten.
        """
        if not logs or not self.summed <= mine:
            self.summed, self.total = set(), None
        if not logs:
            self.rows.clear()
        self.rows = {key: row for key, row in self.rows.items() if key in mine}
        done = self.done
        self.outputs = {key: found for key, found in self.outputs.items() if key in done}
        self.gradients = {key: found for key, found in self.gradients.items() if key in done}
        self.losses = {key: found for key, found in self.losses.items() if key in done}
