"""What all workers of a run agree on, and what a worker needs of its data and its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cedar.errors import CedarError
from cedar.trainers.resilient.control.board import Epoch
from cedar.trainers.resilient.executor import Reduction
from cedar.trainers.resilient.executor.run import Data
from cedar.trainers.resilient.model import State
from cedar.trainers.resilient.planner import Memory, Problem
from cedar.trainers.resilient.schedule import Costs, Mode, Worker


class Fenced(CedarError):
    """The others go on without this worker: nothing that it does counts any more."""


class Left(Exception):
    """This worker has gone to another place, where a new process of its goes on."""


class Batches(Data, Protocol):
    """Data that can be read again until it is committed."""

    def commit(self, step: int) -> None:
        """Steps up to this one are never read again."""

    def close(self) -> None:
        """Let go of what is open."""


class Saver(Protocol):
    """Checkpoints."""

    def due(self, step: int) -> bool:
        """Whether the state after so many steps is to be saved."""

    def save(self, state: State, epoch: Epoch) -> None:
        """Begin to save; the work is done beside the training."""

    def load(self, path: str) -> State:
        """This stage's state."""

    def wait(self) -> None:
        """Until what was begun is done."""


@dataclass(frozen=True)
class Job:
    """What all workers of a run agree on.

    Args:
        stages: of the pipeline.
        replicas: of each stage.
        micro_batches: of each pipeline in one step.
        steps: of the run.
        mode: ``sync``: a step counts by a vote of all; ``staggered``: stages step on their own.
        reduction: ``exact`` or ``fast``.
        memory: activations that a worker may keep.
        tied: the first and last stage share the table of tokens.
        logs: keep finished work of a step until it commits.
        replay: keep what crossed boundaries until a checkpoint holds it, so that a lost stage restores alone.
        patience: seconds after which a wait is given up.
        pace: seconds that each F, B_INPUT and B_WEIGHT takes at least.
    """

    stages: int
    replicas: int
    micro_batches: int
    steps: int
    mode: Mode = "sync"
    reduction: Reduction = "exact"
    memory: Memory = "1f1b"
    tied: bool = True
    logs: bool = True
    replay: bool = False
    patience: float = 600.0
    pace: float = 0.0

    def problem(self, dead: frozenset[Worker], costs: Costs | None = None) -> Problem:
        tied = self.tied and self.stages > 1
        return Problem(
            self.stages, self.replicas, self.micro_batches, dead, self.memory, self.mode, costs or Costs(), tied
        )
