"""The data model of schedules: workers, instructions, and ordered instruction lists of one step, also as JSON.

There are ``replicas`` pipelines of ``stages`` stages. Each worker has a position in this grid. A micro-batch belongs to
a home pipeline, its ``replica``. If this pipeline's worker at a stage is dead, a live worker of the stage replaces it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from cedar.core.errors import CedarError

Kind: TypeAlias = Literal["F", "B_INPUT", "B_WEIGHT", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "ALL_REDUCE", "STEP"]
Mode: TypeAlias = Literal["sync", "staggered"]

KINDS: tuple[Kind, ...] = get_args(Kind)
COMPUTING: frozenset[Kind] = frozenset({"F", "B_INPUT", "B_WEIGHT", "B"})
SENDING: frozenset[Kind] = frozenset({"SEND_F", "SEND_B"})
RECEIVING: frozenset[Kind] = frozenset({"RECV_F", "RECV_B"})
CLOSING: frozenset[Kind] = frozenset({"ALL_REDUCE", "STEP"})
MODES: tuple[Mode, ...] = get_args(Mode)


class ScheduleError(CedarError):
    """A schedule cannot be executed or read, or cannot be made for these workers."""


class Worker(NamedTuple):
    """A position in the grid: a worker with the weights of ``stage``, for the micro-batches of pipeline ``replica``."""

    stage: int
    replica: int

    def __str__(self) -> str:
        return f"({self.stage}, {self.replica})"


class Instruction(NamedTuple):
    """One operation of a worker, at the worker's stage.

    Args:
        kind: the operation.
        replica: the home pipeline of the micro-batch; -1 for ALL_REDUCE and STEP.
        micro_batch: its number within the home pipeline; -1 for ALL_REDUCE and STEP.
        peer: for sends and receives, the replica of the *worker* at the other end; otherwise -1.

    Examples:
        >>> print(Instruction("SEND_F", 0, 3, peer=2))
        SEND_F 0.3 to 2
    """

    kind: Kind
    replica: int = -1
    micro_batch: int = -1
    peer: int = -1

    def __str__(self) -> str:
        if self.kind in CLOSING:
            return self.kind
        at = {"S": f" to {self.peer}", "R": f" from {self.peer}"}.get(self.kind[0], "")
        return f"{self.kind} {self.replica}.{self.micro_batch}{at}"

    def other(self, worker: Worker) -> Worker:
        """Return the worker at the other end of a message that ``worker`` sends or receives.

        Examples:
            >>> Instruction("RECV_B", 0, 3, peer=2).other(Worker(1, 0))
            Worker(stage=2, replica=2)
        """
        return Worker(worker.stage + (1 if self.kind in {"SEND_F", "RECV_B"} else -1), self.peer)


@dataclass(frozen=True)
class Schedule:
    """The ordered instructions of each live worker for one step; the next step repeats them.

    Args:
        stages: number of stages in a pipeline.
        replicas: number of pipelines.
        micro_batches: micro-batches per pipeline and step.
        work: the ordered instructions of each live worker.
        dead: the dead workers.
        mode: ``sync``: workers step after ALL_REDUCE has ended on all workers; ``staggered``: stages step when ready.
        caps: for each stage, how many activations a worker may keep; None for no limit.
        serving: stages that have already taken this step. They only run F and B_INPUT for the other stages, with the
            weights from before the step.
        tied: stages that share weights; they sum the gradients of these weights together, and step together.

    Examples:
        >>> lone = (Instruction("F", 0, 0), Instruction("B", 0, 0), Instruction("ALL_REDUCE"), Instruction("STEP"))
        >>> Schedule(1, 1, 1, {Worker(0, 0): lone}).route(0, 0, 0)
        Worker(stage=0, replica=0)
    """

    stages: int
    replicas: int
    micro_batches: int
    work: Mapping[Worker, tuple[Instruction, ...]]
    dead: frozenset[Worker] = frozenset()
    mode: Mode = "sync"
    caps: tuple[int | None, ...] = ()
    serving: frozenset[int] = frozenset()
    tied: tuple[int, ...] = ()
    _routes: dict[tuple[int, int, int], Worker] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.caps:
            object.__setattr__(self, "caps", (None,) * self.stages)

    @property
    def live(self) -> tuple[Worker, ...]:
        """Return the live workers, sorted by stage."""
        return tuple(worker for worker in grid(self.stages, self.replicas) if worker not in self.dead)

    def peers(self, stage: int) -> tuple[Worker, ...]:
        """Return the live workers of a stage, which run ALL_REDUCE together."""
        return tuple(worker for worker in self.live if worker.stage == stage)

    def route(self, stage: int, replica: int, micro_batch: int) -> Worker:
        """Return the worker that processes a micro-batch at a stage.

        Raises:
            ScheduleError: no worker does.
        """
        if not self._routes:
            self._routes.update({
                (worker.stage, done.replica, done.micro_batch): worker
                for worker, instructions in self.work.items()
                for done in instructions
                if done.kind == "F"
            })  # fmt: skip
        try:
            return self._routes[stage, replica, micro_batch]
        except KeyError:
            raise ScheduleError(f"nothing works micro-batch {replica}.{micro_batch} at stage {stage}") from None


def grid(stages: int, replicas: int) -> Iterator[Worker]:
    """Yield every position in the grid, sorted by stage."""
    return (Worker(stage, replica) for stage in range(stages) for replica in range(replicas))


def pairs(stages: int, replicas: int, tied: Sequence[int] = ()) -> Iterator[tuple[Worker, Worker]]:
    """Yield every ordered pair of workers that may exchange messages, for any set of dead workers.

    Workers of one stage exchange gradients, neighboring stages exchange activations and their gradients, and ``tied``
    stages exchange the gradients of the weights that they share.

    Examples:
        >>> len(list(pairs(2, 2)))
        12
    """
    for one in grid(stages, replicas):
        for other in grid(stages, replicas):
            distance = abs(one.stage - other.stage)
            if one != other and (distance <= 1 or {one.stage, other.stage} <= set(tied)):
                yield one, other


def serve(schedule: Schedule, stages: frozenset[int]) -> Schedule:
    """Return the schedule for redoing a step that ``stages`` have already taken.

    These stages only run F and B_INPUT, with the weights from before the step, and skip B_WEIGHT, ALL_REDUCE and STEP.
    A fused B becomes B_INPUT.
    """

    def served(done: Instruction) -> Instruction | None:
        if done.kind in {"B_WEIGHT", "ALL_REDUCE", "STEP"}:
            return None
        return done._replace(kind="B_INPUT") if done.kind == "B" else done

    work = {
        worker: tuple(filter(None, map(served, instructions))) if worker.stage in stages else instructions
        for worker, instructions in schedule.work.items()
    }
    return Schedule(
        schedule.stages, schedule.replicas, schedule.micro_batches, work, schedule.dead, schedule.mode, schedule.caps,
        schedule.serving | stages, schedule.tied,
    )  # fmt: skip


FORMAT = 3
_KINDS = {str(kind): kind for kind in KINDS}


def to_plain(schedule: Schedule) -> dict[str, Any]:
    """Return the schedule as data for ``json.dumps``: an instruction is a list of its kind and three numbers."""
    plain = {each.name: getattr(schedule, each.name) for each in fields(schedule) if each.init}
    work = [[list(worker), [list(done) for done in schedule.work[worker]]] for worker in sorted(schedule.work)]
    more = {"format": FORMAT, "dead": sorted(map(list, schedule.dead)), "serving": sorted(schedule.serving)}
    return plain | more | {"caps": list(schedule.caps), "tied": list(schedule.tied), "work": work}


def from_plain(plain: Any, where: str = "the schedule") -> Schedule:
    """Make a schedule from the result of ``json.loads``. Does not check that it can be executed; see ``validate``."""
    try:
        if plain["format"] != FORMAT:
            raise ScheduleError(f"{where} has format {plain['format']!r}, not {FORMAT}", fix="save it again")
        if plain["mode"] not in MODES:
            raise ValueError(f"mode {plain['mode']!r}")
        work = {
            Worker(*map(_number, worker)): tuple(
                Instruction(_KINDS[kind], *map(_number, (home, number, peer))) for kind, home, number, peer in steps
            )
            for worker, steps in plain["work"]
        }
        return Schedule(
            _number(plain["stages"]), _number(plain["replicas"]), _number(plain["micro_batches"]), work,
            frozenset(Worker(*map(_number, pair)) for pair in plain["dead"]), plain["mode"],
            tuple(None if cap is None else _number(cap) for cap in plain["caps"]),
            frozenset(map(_number, plain["serving"])), tuple(map(_number, plain["tied"])),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ScheduleError(f"{where} cannot be read: {type(error).__name__}: {error}", fix="save it again") from error


def save(schedule: Schedule, path: str) -> None:
    """Write a schedule to a file atomically."""
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump(to_plain(schedule), file, indent=0)
    os.replace(f"{path}.part", path)


def load(path: str) -> Schedule:
    """Read a schedule from a file."""
    try:
        with open(path, encoding="utf-8") as file:
            plain = json.load(file)
    except OSError as error:
        raise ScheduleError(f"the schedule {path} cannot be read: {error.strerror}", fix="save it again") from error
    except ValueError as error:
        raise ScheduleError(f"{path} is not JSON: {error}", fix="save it again") from error
    return from_plain(plain, path)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value
