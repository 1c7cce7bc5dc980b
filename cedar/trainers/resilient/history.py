"""Upstream logs: what crossed the boundaries of a stage since the last checkpoint.

With them a neighbour that has lost all its workers does those steps again alone (the localized recovery of MoEvement,
arXiv 2412.15411).

A stage that goes back to a checkpoint needs the activations that the stage before it sent, the gradients that the stage
after it sent, what gradients were scaled by, and, where it shares the table of tokens with the other end of the
pipeline, the sums of that gradient. Nobody else computes anything again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

from cedar.trainers.resilient.executor import Kept
from cedar.trainers.resilient.schedule import Worker

Key = tuple[int, int]
Told = Mapping[str, Any]


@dataclass
class Past:
    """One step of one worker, in the memory of the host."""

    outputs: dict[Key, torch.Tensor] = field(default_factory=dict)
    gradients: dict[Key, torch.Tensor] = field(default_factory=dict)
    tied: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        tensors = [*self.outputs.values(), *self.gradients.values()]
        return sum(t.nbytes for t in tensors) + (0 if self.tied is None else self.tied.nbytes)


class History:
    """What a worker has sent, step by step.

    Args:
        first: it is of the first stage, which sends no gradients.
        last: it is of the last stage, which sends no activations.
    """

    def __init__(self, *, first: bool, last: bool) -> None:
        self.first, self.last = first, last
        self.steps: dict[int, Past] = {}
        self.scales: dict[int, float | None] = {}

    def add(self, step: int, kept: Kept, tied: torch.Tensor | None) -> None:
        """A step that was taken, or served: then what it sends now comes to what it sent before."""
        past = self.steps.setdefault(step, Past())
        if not self.last:
            past.outputs |= {key: found.cpu() for key, found in kept.outputs.items()}
        if not self.first:
            past.gradients |= {key: found.cpu() for key, found in kept.gradients.items() if found is not None}
        if tied is not None:
            past.tied = tied.cpu().clone()

    def scaled(self, step: int, scale: float | None) -> None:
        """What the gradients of a step were multiplied with; None: the step was skipped."""
        self.scales[step] = scale

    def forget(self, before: int) -> None:
        """A checkpoint holds the state from before this step."""
        self.steps = {step: past for step, past in self.steps.items() if step >= before}
        self.scales = {step: scale for step, scale in self.scales.items() if step >= before}

    @property
    def nbytes(self) -> int:
        return sum(past.nbytes for past in self.steps.values())

    def told(self) -> dict[str, Any]:
        """What there is, without the tensors: JSON."""
        return {
            "outputs": [[step, sorted(map(list, past.outputs))] for step, past in self.steps.items()],
            "gradients": [[step, sorted(map(list, past.gradients))] for step, past in self.steps.items()],
            "tied": [step for step, past in self.steps.items() if past.tied is not None],
            "scales": [[step, scale] for step, scale in self.scales.items()],
        }


@dataclass(frozen=True)
class Sources:
    """Who sends what to a stage that does its steps again.

    Args:
        stage: that one.
        steps: to be done again.
        outputs: for each step and micro-batch who has the activations; empty at the first stage.
        gradients: the same of gradients; empty at the last stage.
        tied: for each step who has the sum of the shared gradient; empty where nothing is shared.
        scales: of these steps; in staggered mode that of the last one may not be known yet.
    """

    stage: int
    steps: range
    outputs: Mapping[tuple[int, Key], Worker]
    gradients: Mapping[tuple[int, Key], Worker]
    tied: Mapping[int, Worker]
    scales: Mapping[int, float | None]

    def messages(self, step: int, mine: Sequence[Key]) -> Iterator[tuple[Worker, str, Key]]:
        """What one worker gets for a step, in the order in which each sender sends it."""
        for key, what in product(mine, ("outputs", "gradients")):
            held: Mapping[tuple[int, Key], Worker] = getattr(self, what)
            if (step, key) in held:
                yield held[step, key], what, key
        if step in self.tied:
            yield self.tied[step], "tied", (0, 0)


def find_sources(
    told: Mapping[Worker, Told], stage: int, steps: range, *, stages: int, keys: Sequence[Key], tied: bool,
    staggered: bool,
) -> Sources | None:  # fmt: skip
    """Who sends what, the same wherever it is worked out; None where something was not logged, or is lost.

    Args:
        told: what the live workers have.
        stage: that has lost all its workers.
        steps: that it must do again.
        stages: of the pipeline.
        keys: micro-batches of a step.
        tied: the first and the last stage share a table.
        staggered: the scale of the last step may still be open.
    """

    def holders(neighbour: int, what: str) -> dict[tuple[int, Key], Worker] | None:
        found: dict[tuple[int, Key], Worker] = {}
        if not 0 <= neighbour < stages:
            return found
        for worker in sorted((w for w in told if w.stage == neighbour), reverse=True):
            found |= {(step, (r, m)): worker for step, there in told[worker][what] for r, m in there}
        return found if all((step, key) in found for step in steps for key in keys) else None

    outputs, gradients = holders(stage - 1, "outputs"), holders(stage + 1, "gradients")
    other = stages - 1 - stage
    shares = tied and stages > 1 and stage in {0, stages - 1}
    sums = {
        step: worker
        for worker in sorted((w for w in told if shares and w.stage == other), reverse=True)
        for step in told[worker]["tied"]
    }
    scales = {step: scale for there in told.values() for step, scale in there["scales"]}
    known = steps[:-1] if staggered else steps
    if outputs is None or gradients is None or (shares and not all(step in sums for step in steps)):
        return None
    return Sources(stage, steps, outputs, gradients, sums, scales) if all(step in scales for step in known) else None
