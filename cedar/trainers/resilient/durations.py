"""What the instructions of a run really take: told once by each worker, for the simulator and for later plans."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection

from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.executor import Executor
from cedar.trainers.resilient.schedule import Kind, Worker
from cedar.trainers.resilient.simulator.calibration import Durations

WARM, LOOK = 2, 5  # steps that are left out, and steps that are looked at
_MEETINGS: tuple[Kind, Kind] = ("ALL_REDUCE", "STEP")


class Told:
    """One worker's measurements, over some steps of one generation; a generation that ends sooner does not count."""

    def __init__(self) -> None:
        self._executor: Executor | None = None
        self._seconds: list[float] = []
        self._steps, self._done = 0, False

    def begin(self, executor: Executor) -> None:
        """A generation begins."""
        self._executor, self._steps = executor, 0

    def stepped(self, seconds: float) -> None:
        """The optimizer's step took so long, the wait for the others' votes included."""
        self._seconds.append(seconds)

    def tell(self, board: Board, me: Worker) -> None:
        """Call after each step."""
        if self._done or self._executor is None:
            return
        self._steps += 1
        if self._steps == WARM:
            self._executor.records, self._seconds = [], []
        elif self._steps == WARM + LOOK:
            found: dict[str, list[float]] = defaultdict(list)
            for _, done, seconds in self._executor.records or []:
                found[done.kind].append(seconds)
            found["STEP"] = self._seconds
            board.put(f"durations/{me}", {kind: statistics.median(each) for kind, each in found.items() if each})
            self._executor.records, self._done = None, True


def measured(board: Board, members: Collection[Worker]) -> Durations | None:
    """What instructions take, by kind and stage; None until all have told.

    Where workers meet, the one that came last has waited for nobody: the least time counts.
    """
    told = {worker: board.take(f"durations/{worker}") for worker in sorted(members)}
    if not told or any(one is None for one in told.values()):
        return None
    found: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for worker, one in told.items():
        for kind, seconds in (one or {}).items():
            found[kind, worker.stage].append(seconds)
    return Durations(
        {key: min(each) if key[0] in _MEETINGS else statistics.median(each) for key, each in found.items()}
    )
