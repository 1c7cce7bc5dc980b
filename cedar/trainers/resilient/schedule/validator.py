"""Prove that a schedule can be executed, or report why it cannot."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TypeAlias

from cedar.trainers.resilient.schedule.language import (
    KINDS,
    MODES,
    Instruction,
    Kind,
    Schedule,
    ScheduleError,
    Worker,
    grid,
)  # fmt: skip
from cedar.trainers.resilient.schedule.timeline import timeline

Channels: TypeAlias = dict[tuple[Worker, Worker], tuple[tuple[int, int], ...]]


def channels_of(schedule: Schedule) -> Channels:
    """Return for each ordered pair of workers the (replica, micro-batch) of its messages, in the order of sending.

    Messages of a pair are either all activations, to the next stage, or all gradients, to the previous stage.
    """
    sent: dict[tuple[Worker, Worker], list[tuple[int, int]]] = defaultdict(list)
    received: dict[tuple[Worker, Worker], list[tuple[int, int]]] = defaultdict(list)
    for worker, instructions in schedule.work.items():
        for step in instructions:
            start = step.kind[:4]
            if start == "SEND":
                sent[worker, step.other(worker)].append(step[1:3])
            elif start == "RECV":
                received[step.other(worker), worker].append(step[1:3])
    for pair in sent.keys() | received.keys():
        sent_keys, received_keys = sent.get(pair, []), received.get(pair, [])
        if sent_keys != received_keys:
            at = next(
                (i for i, (a, b) in enumerate(zip(sent_keys, received_keys, strict=False)) if a != b),
                min(len(sent_keys), len(received_keys)),
            )
            names = [f"{m[at][0]}.{m[at][1]}" if at < len(m) else "nothing" for m in (sent_keys, received_keys)]
            raise ScheduleError(
                f"invalid schedule: message {at} from {pair[0]} to {pair[1]} is sent as {names[0]}"
                f" and received as {names[1]}",
                fix="make it with the planner",
            )
    return {pair: tuple(messages) for pair, messages in sorted(sent.items())}


_BIT: dict[Kind, int] = {
    "RECV_F": 1, "F": 2, "SEND_F": 4, "RECV_B": 8, "B_INPUT": 16, "SEND_B": 32, "B_WEIGHT": 64, "B": 16 | 64,
}  # fmt: skip
_NAMES = {1: "RECV_F", 2: "F", 4: "SEND_F", 8: "RECV_B", 16: "B_INPUT", 32: "SEND_B", 64: "B_WEIGHT"}


@dataclass(frozen=True)
class Facts:
    """Facts about a schedule that ``validate`` has proven."""

    live: dict[Worker, int]  # for each worker, the max number of activations kept, each from F until B_WEIGHT ends
    held: dict[Worker, int]  # for each worker, the max number of received messages not yet used
    # for each ordered pair of workers, the (replica, micro-batch) of its messages, in the order in which they are sent
    # and received
    channels: Channels


def validate(schedule: Schedule) -> Facts:
    """Prove that a schedule can be executed, any number of times in a row.

    Live workers have a list, and dead ones do not. Every micro-batch is processed exactly once at every stage, with
    B_INPUT and B_WEIGHT on the worker of its F. Instructions follow what they depend on. Every stage runs ALL_REDUCE
    after its last B_WEIGHT, then STEP. No worker exceeds its activation cap. Messages between two workers are received
    in the order in which they are sent. Nothing waits forever if sends never block, receives block in order, and
    ALL_REDUCE waits for the whole stage.

    Examples:
        >>> lone = (Instruction("F", 0, 0), Instruction("B", 0, 0), Instruction("ALL_REDUCE"), Instruction("STEP"))
        >>> validate(Schedule(1, 1, 1, {Worker(0, 0): lone})).live
        {Worker(stage=0, replica=0): 1}
    """
    _check_shape(schedule)
    owners = [bytearray(schedule.replicas * schedule.micro_batches) for _ in range(schedule.stages)]
    live, queued = {}, {}
    for worker in schedule.live:
        live[worker], queued[worker] = _check_worker(schedule, worker, owners[worker.stage])
    for stage, owned in enumerate(owners):
        if (missing := owned.find(0)) >= 0:
            replica, micro_batch = divmod(missing, schedule.micro_batches)
            raise _schedule_error(f"micro-batch {replica}.{micro_batch} is not worked at stage {stage}")
    channels = channels_of(schedule)
    timeline(schedule)
    return Facts(live, queued, channels)


def _check_shape(schedule: Schedule) -> None:
    for name in ("stages", "replicas", "micro_batches"):
        if getattr(schedule, name) < 1:
            raise _schedule_error(f"{name} is {getattr(schedule, name)}")
    if schedule.mode not in MODES:
        raise _schedule_error(f"its mode is {schedule.mode!r}")
    places = set(grid(schedule.stages, schedule.replicas))
    if unknown := schedule.dead - places:
        raise _schedule_error(f"the dead worker {min(unknown)} is not in the grid")
    for stage in range(schedule.stages):
        if not schedule.peers(stage):
            raise ScheduleError(
                f"stage {stage} has no live worker: its weights are lost", fix="go back to the last checkpoint"
            )
    if mismatched := set(schedule.work) ^ set(schedule.live):
        worker = min(mismatched)
        problem = "has a list, but is not a live worker" if worker in schedule.work else "is alive, but has no list"
        raise _schedule_error(f"{worker} {problem}")
    if len(schedule.caps) != schedule.stages:
        raise _schedule_error(f"it has {len(schedule.caps)} memory caps for {schedule.stages} stages")
    if not schedule.serving <= set(range(schedule.stages)):
        raise _schedule_error(f"it serves at stages {sorted(schedule.serving)} of {schedule.stages}")
    if not set(schedule.tied) <= set(range(schedule.stages)):
        raise _schedule_error(f"stages {list(schedule.tied)} of {schedule.stages} share weights")
    if set(schedule.tied) & schedule.serving and not set(schedule.tied) <= schedule.serving:
        raise _schedule_error("stages that share weights step together, but only some of them serve")


def _check_worker(schedule: Schedule, worker: Worker, owned: bytearray) -> tuple[int, int]:
    """Check one worker's list, set ``owned`` for its micro-batches, return its max activations and messages kept."""
    stage, per_replica, last = worker.stage, schedule.micro_batches, worker.stage == schedule.stages - 1
    serving, cap = stage in schedule.serving, schedule.caps[stage]
    full, needs = _rules(stage == 0, last, serving)
    ends = _BIT["B_INPUT"] if serving else _BIT["B_WEIGHT"]
    done: dict[int, int] = {}
    live = peak = queued = peak_queued = closed = 0
    for at, step in enumerate(schedule.work[worker]):
        kind, replica, micro_batch, peer = step
        if kind == "ALL_REDUCE" or kind == "STEP":  # noqa: PLR1714 - faster in this hot loop
            expected = 0 if kind == "ALL_REDUCE" else 1
            if closed != expected or serving:
                raise _instruction_error(worker, at, step, "does not belong here")
            closed += 1
            if any(bits != full for bits in done.values()):
                raise _instruction_error(worker, at, step, f"comes before {_unfinished(done, full, per_replica)}")
            continue
        need = needs.get(kind)
        if need is None:
            raise _instruction_error(
                worker, at, step, f"does not belong to stage {stage}" if kind in KINDS else "is not an instruction"
            )
        if closed:
            raise _instruction_error(worker, at, step, "comes after ALL_REDUCE")
        if not (0 <= replica < schedule.replicas and 0 <= micro_batch < per_replica):
            raise _instruction_error(worker, at, step, "names a micro-batch that does not exist")
        if kind[1:4] in {"END", "ECV"} and (not 0 <= peer < schedule.replicas or step.other(worker) in schedule.dead):
            raise _instruction_error(worker, at, step, f"has no live peer {peer}")
        index, bit = replica * per_replica + micro_batch, _BIT[kind]
        bits = done.get(index, 0)
        if bits & bit:
            raise _instruction_error(worker, at, step, "is done twice")
        if need & ~bits:
            raise _instruction_error(
                worker, at, step, f"comes before {_NAMES[need & ~bits & -(need & ~bits)]} {replica}.{micro_batch}"
            )
        done[index] = bits | bit
        if bit & 9:  # RECV_F, RECV_B
            queued += 1
            peak_queued = max(peak_queued, queued)
        elif bit & 2:  # F
            if owned[index]:
                raise _instruction_error(worker, at, step, "is done by another worker, too")
            owned[index] = 1
            queued -= 0 if stage == 0 else 1
            live += 1
            peak = max(peak, live)
            if cap is not None and live > cap:
                raise _instruction_error(worker, at, step, f"keeps {live} activations, the cap is {cap}")
        else:
            if bit & 16 and not last:
                queued -= 1
            if bit & ends:
                live -= 1
    if any(bits != full for bits in done.values()):
        raise _schedule_error(f"{worker} never reaches {_unfinished(done, full, per_replica)}")
    if closed != (0 if serving else 2):
        raise _schedule_error(f"{worker} does not end with ALL_REDUCE and STEP")
    return peak, peak_queued


def _rules(first: bool, last: bool, serving: bool) -> tuple[int, dict[Kind, int]]:
    """Return the bits that a finished micro-batch has, and for each kind of instruction the bits that it requires."""
    bit = _BIT
    needs: dict[Kind, int] = {
        "F": 0 if first else bit["RECV_F"],
        "B_INPUT": bit["F"] if last else bit["F"] | bit["RECV_B"],
    }
    if not first:
        needs |= {"RECV_F": 0, "SEND_B": bit["B_INPUT"]}
    if not last:
        needs |= {"SEND_F": bit["F"], "RECV_B": bit["SEND_F"]}
    if not serving:
        needs |= {"B_WEIGHT": bit["B_INPUT"], "B": needs["B_INPUT"]}
    full = 0
    for kind in needs:
        full |= bit[kind]
    return full, needs


def _unfinished(done: dict[int, int], full: int, per_replica: int) -> str:
    index = next(index for index, bits in done.items() if bits != full)
    missing = full & ~done[index]
    return f"{_NAMES[missing & -missing]} {index // per_replica}.{index % per_replica}"


def _instruction_error(worker: Worker, at: int, step: Instruction, problem: str) -> ScheduleError:
    return _schedule_error(f"{worker}, instruction {at}: {step} {problem}")


def _schedule_error(problem: str) -> ScheduleError:
    return ScheduleError(f"invalid schedule: {problem}", fix="make it with the planner")
