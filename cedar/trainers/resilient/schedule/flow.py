"""What travels between workers: the order of messages of each ordered pair, and that nobody waits for ever."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from typing import TypeAlias

from cedar.trainers.resilient.schedule.language import Schedule, ScheduleError, Worker

Channels: TypeAlias = dict[tuple[Worker, Worker], tuple[tuple[int, int], ...]]


def channels_of(schedule: Schedule) -> Channels:
    """For each ordered pair of workers the (replica, micro-batch) of its messages, in order.

    An ordered pair of workers carries activations or gradients, never both: the one goes up a stage, the other down.

    Raises:
        ScheduleError: the receiver's order is not the sender's.
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
        gone, come = sent.get(pair, []), received.get(pair, [])
        if gone != come:
            at = next(
                (i for i, (a, b) in enumerate(zip(gone, come, strict=False)) if a != b), min(len(gone), len(come))
            )
            names = [f"{m[at][0]}.{m[at][1]}" if at < len(m) else "nothing" for m in (gone, come)]
            raise ScheduleError(
                f"the schedule is wrong: message {at} from {pair[0]} to {pair[1]} is sent as {names[0]}"
                f" and received as {names[1]}",
                fix="make it with the planner",
            )
    return {pair: tuple(messages) for pair, messages in sorted(sent.items())}


def check_progress(schedule: Schedule) -> None:
    """That every list comes to its end, when sends never block, receives block, and reductions wait for their group.

    The messages of each pair must be in one order (``channels_of``): then a receive waits for a count of sends.

    Raises:
        ScheduleError: some wait for each other; the text names them.
    """
    work, position = schedule.work, dict.fromkeys(schedule.work, 0)
    sent: dict[Hashable, int] = defaultdict(int)
    received: dict[Hashable, int] = defaultdict(int)
    waiting: dict[Hashable, list[Worker]] = defaultdict(list)
    size = group_sizes(schedule)
    runnable = deque(work)
    while runnable:
        worker = runnable.popleft()
        instructions, at = work[worker], position[worker]
        stage, replica = worker
        while at < len(instructions):
            kind, _, _, peer = instructions[at]
            if kind[0] == "S" and kind != "STEP":
                to = (stage + 1 if kind == "SEND_F" else stage - 1, peer)
                key: Hashable = (stage, replica, *to)
                sent[key] += 1
                if key in waiting:
                    runnable.extend(waiting.pop(key))
            elif kind[0] == "R":
                key = (stage - 1 if kind == "RECV_F" else stage + 1, peer, stage, replica)
                if received[key] == sent[key]:
                    waiting[key].append(worker)
                    break
                received[key] += 1
            elif kind == "ALL_REDUCE" or (kind == "STEP" and schedule.mode == "sync"):
                key = group_of(schedule, stage, kind)
                sent[key] += 1
                if sent[key] < size[key]:
                    waiting[key].append(worker)
                    at += 1
                    break
                runnable.extend(waiting.pop(key, ()))
            at += 1
        position[worker] = at
    if stuck := [worker for worker in work if position[worker] < len(work[worker])]:
        raise ScheduleError(
            f"the schedule is wrong: {_told(schedule, position, stuck)} wait for ever", fix="make it with the planner"
        )
    if any(waiting.values()):
        key = next(key for key, workers in waiting.items() if workers)
        raise ScheduleError(f"the schedule is wrong: {key} is never complete", fix="make it with the planner")


def group_of(schedule: Schedule, stage: int, kind: str) -> tuple[str, int]:
    """Who waits for whom: at ALL_REDUCE the stage, tied stages as one; at STEP of a sync schedule everybody."""
    if kind == "STEP":
        return ("STEP", -1)
    return (kind, 0 if schedule.tied and stage == schedule.stages - 1 else stage)


def group_sizes(schedule: Schedule) -> dict[tuple[str, int], int]:
    """How many workers meet at each of these."""
    sizes: dict[tuple[str, int], int] = defaultdict(int)
    for worker in schedule.work:
        if worker.stage not in schedule.serving:
            sizes[group_of(schedule, worker.stage, "ALL_REDUCE")] += 1
            sizes[group_of(schedule, worker.stage, "STEP")] += 1
    return sizes


def _told(schedule: Schedule, position: dict[Worker, int], stuck: list[Worker]) -> str:
    parts = [f"{w} at {schedule.work[w][position[w]]} (instruction {position[w]})" for w in stuck[:4]]
    return ", ".join(parts) + (f" and {len(stuck) - 4} more" if len(stuck) > 4 else "")
