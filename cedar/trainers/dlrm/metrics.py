"""What a step tells."""

from __future__ import annotations

from dataclasses import dataclass, field

from cedar.trainers.dlrm.scores import Scores


@dataclass(frozen=True)
class StepRecord:
    """One step.

    Args:
        step: from 0.
        rows: over all ranks.
        loss: mean cross-entropy of a row, over all ranks, in nats.
        rate: the learning rate of tables.
        seconds: of rank 0.
        waited: of these, for data.
        looked_up: ids that rank 0 looked up: those of unique rows where rows are deduplicated.
        sent: bytes of rank 0 to other ranks, by phase.
        held_out: scores of the rows that are held out, where they were looked at after this step.
    """

    step: int
    rows: int
    loss: float
    rate: float
    seconds: float
    waited: float
    looked_up: int
    sent: dict[str, int] = field(default_factory=dict)
    held_out: Scores | None = None
