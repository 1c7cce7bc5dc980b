"""What a step tells, and the file that keeps it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from cedar.trainers.dlrm.scores import Scores
from cedar.trainers.moe.metrics import read_lines


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


class MetricsFile:
    """Records as lines of JSON, for rank 0.

    Args:
        path: of the file.
        after: records of this step and later ones are dropped: they will be written again.
    """

    def __init__(self, path: str, after: int = 0) -> None:
        self.path = path
        kept: list[dict[str, Any]] = [line for line in read_lines(path) if line["step"] < after] if after else []
        temporary = f"{path}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in kept)
        os.replace(temporary, path)

    def write(self, record: StepRecord) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")
