"""Between failures: learn what instructions take, have plans made for that, and move workers where that pays."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.control.lead import Lead
from cedar.trainers.resilient.durations import LOOK, WARM, measured
from cedar.trainers.resilient.planning import Planning

_PAUSE = 0.5  # seconds that a boundary with a change costs, before one was measured


class Manager:
    """Looks at a run now and then, for the process that leads it.

    Args:
        moves: let workers take places in other stages where that pays.
        board: shared by all.
        chief: who decides.
        planning: the plans.
        connect: to the store.
    """

    def __init__(self, moves: bool, board: Board, chief: Lead, planning: Planning, connect: Callable[[], Any]) -> None:
        self.moves, self.board, self.chief, self.planning, self.connect = moves, board, chief, planning, connect
        self._generation = self._begun = self._seen = 0
        self._whole: list[float] = []

    def look(self, steps: Sequence[tuple[int, float, float]]) -> None:
        """Call often; ``steps`` are those that are done, with the times when they were."""
        if self.chief.generation != self._generation:
            self._generation, self._begun = self.chief.generation, len(steps)
        if len(steps) == self._seen or not self._generation:
            return
        self._seen = len(steps)
        if self.planning.durations is None and len(steps) > WARM + LOOK:
            found = measured(self.board, self.chief.members, self.planning.plans[0].schedule)
            if found is not None:
                recent = [when for _, when, _ in steps][max(self._begun, len(steps) - LOOK - 1) :]
                self._whole = [b - a for a, b in pairwise(recent)]
                self.planning.learn(found, self.connect)
        if not self.chief.plans and self.planning.durations is not None and (self.board.take(keys.PLANS()) or 0) > 0:
            self.chief.plans = 1  # from the next generation on
        if len(steps) > self._begun:  # the generation has got over its beginning
            self.planning.prepare(self._generation, self.chief.plans, self.connect)
        if self.moves and not self.chief.leaving and not self.chief.lost:
            self._move(steps)

    def _move(self, steps: Sequence[tuple[int, float, float]]) -> None:
        since = len(steps) - self._begun - 1
        times = [when for _, when, _ in steps]
        intervals = [b - a for a, b in pairwise(times)]
        epoch = self.board.epoch(self._generation)
        found = self.planning.change(self.board, epoch, since, intervals, self._pause())
        for move in found[0].moves if found is not None else ():
            if move.worker in self.chief.members:
                self.chief.move(move.worker, move.role)

    def _pause(self) -> float:
        """Seconds from the decision for a new generation until it computes, as they were so far; twice that for state
        that has to travel.
        """
        found = []
        for event in self.chief.events:
            for worker in self.chief.members:
                times = self.board.take(keys.RECOVERY(event.generation, worker))
                if times is not None and event.what != "start":
                    found.append(times["redo"] - event.decided)
        return 2 * statistics.median(found) if found else _PAUSE

    def told(self) -> dict[str, Any]:
        """For the run's record: ``plans``, ``step`` and ``durations``."""
        planning = self.planning
        found: dict[str, Any] = {"plans": {"failures": planning.failures, "seconds": planning.seconds}}
        predicted = planning.predicted()
        if planning.durations is not None and predicted is not None and self._whole:
            found["step"] = {"simulated": predicted, "measured": statistics.median(self._whole)}
            each = {f"{kind} {stage}": s for (kind, stage), s in planning.durations.seconds.items()}
            found["durations"] = each | {"transfer": planning.durations.transfer}
        return found
