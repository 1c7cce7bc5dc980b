"""The words of a schedule: workers, instructions, and the ordered lists of one step. Plain data, and JSON.

A pipeline of ``stages`` is there ``replicas`` times. A worker is a place in that grid. A micro-batch belongs to its
home pipeline, named by ``replica``; where the home's worker is dead, a live worker of the same stage does its work.
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
    """A schedule cannot be carried out, cannot be read, or cannot be made for these workers."""


class Worker(NamedTuple):
    """A place in the grid: it holds the weights of ``stage`` and is the home of the micro-batches of ``replica``."""

    stage: int
    replica: int

    def __str__(self) -> str:
        return f"({self.stage}, {self.replica})"


class Instruction(NamedTuple):
    """One thing that a worker does; its stage is the worker's.

    Args:
        kind: what is done.
        replica: the home pipeline of the micro-batch; -1 for ALL_REDUCE and STEP.
        micro_batch: its number within the home pipeline; -1 for ALL_REDUCE and STEP.
        peer: of what is sent or received, the replica of the *worker* at the other end; else -1.

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
        """The worker at the other end of a message that ``worker`` sends or receives.

        Examples:
            >>> Instruction("RECV_B", 0, 3, peer=2).other(Worker(1, 0))
            Worker(stage=2, replica=2)
        """
        return Worker(worker.stage + (1 if self.kind in {"SEND_F", "RECV_B"} else -1), self.peer)


@dataclass(frozen=True)
class Schedule:
    """What every live worker does in one step, in order; the step after it repeats the same lists.

    Args:
        stages: of the pipeline.
        replicas: how many pipelines there are.
        micro_batches: of each pipeline in one step.
        work: the ordered instructions of each live worker.
        dead: the workers that are gone.
        mode: ``sync``: nothing steps before every worker has reduced; ``staggered``: a stage steps when it is ready.
        caps: for each stage, how many activations a worker may keep at once; None for no limit.
        serving: stages that have taken this step already and only serve the others F and B_INPUT, with the weights
            from before.
        tied: stages that share weights: they reduce the gradients of these together, and step together.

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
        """The live workers, stage by stage."""
        return tuple(worker for worker in grid(self.stages, self.replicas) if worker not in self.dead)

    def peers(self, stage: int) -> tuple[Worker, ...]:
        """The live workers of a stage: those that reduce together."""
        return tuple(worker for worker in self.live if worker.stage == stage)

    def route(self, stage: int, replica: int, micro_batch: int) -> Worker:
        """The worker that works a micro-batch at a stage.

        Raises:
            ScheduleError: none does.
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
    """Every place, stage by stage."""
    return (Worker(stage, replica) for stage in range(stages) for replica in range(replicas))


def pairs(stages: int, replicas: int, tied: Sequence[int] = ()) -> Iterator[tuple[Worker, Worker]]:
    """Every ordered pair of workers that a message may travel in under any set of dead workers: warm them up at start.

    Pairs of one stage exchange gradients; those of neighboring stages activations and their gradients; those of
    ``tied`` stages the gradients of the weights that they share.

    Examples:
        >>> len(list(pairs(2, 2)))
        12
    """
    for one in grid(stages, replicas):
        for other in grid(stages, replicas):
            apart = abs(one.stage - other.stage)
            if one != other and (apart <= 1 or {one.stage, other.stage} <= set(tied)):
                yield one, other


def serve(schedule: Schedule, stages: frozenset[int]) -> Schedule:
    """The schedule by which a step is redone when ``stages`` have taken it already.

    They serve F and B_INPUT with the weights from before, and neither B_WEIGHT, ALL_REDUCE nor STEP. A fused B becomes
    B_INPUT.
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
    """What ``json.dumps`` takes: an instruction is a list of its kind and three numbers."""
    plain = {each.name: getattr(schedule, each.name) for each in fields(schedule) if each.init}
    work = [[list(worker), [list(done) for done in schedule.work[worker]]] for worker in sorted(schedule.work)]
    more = {"format": FORMAT, "dead": sorted(map(list, schedule.dead)), "serving": sorted(schedule.serving)}
    return plain | more | {"caps": list(schedule.caps), "tied": list(schedule.tied), "work": work}


def from_plain(plain: Any, where: str = "the schedule") -> Schedule:
    """A schedule from what ``json.loads`` gives. It is read, not proven: call ``validate``."""
    try:
        if plain["format"] != FORMAT:
            raise ScheduleError(f"{where} has format {plain['format']!r}, not {FORMAT}", fix="make it again")
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
        raise ScheduleError(f"{where} cannot be read: {type(error).__name__}: {error}", fix="make it again") from error


def save(schedule: Schedule, path: str) -> None:
    """Write a schedule; the file is whole or not there."""
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump(to_plain(schedule), file, indent=0)
    os.replace(f"{path}.part", path)


def load(path: str) -> Schedule:
    """Read a schedule."""
    try:
        with open(path, encoding="utf-8") as file:
            plain = json.load(file)
    except OSError as error:
        raise ScheduleError(f"the schedule {path} cannot be read: {error.strerror}", fix="make it again") from error
    except ValueError as error:
        raise ScheduleError(f"{path} is not JSON: {error}", fix="make it again") from error
    return from_plain(plain, path)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value
