"""Schedules as JSON: one word list per instruction, ``"SEND_F 0 3 2"``, under its worker's ``"stage,replica"``."""

from __future__ import annotations

import json
import os
from typing import Any

from cedar.trainers.resilient.schedule.language import (
    CLOSING,
    KINDS,
    MODES,
    Instruction,
    Schedule,
    ScheduleError,
    Worker,
)

FORMAT = 1
_WORDS = {kind: 1 if kind in CLOSING else 4 if kind[:4] in {"SEND", "RECV"} else 3 for kind in KINDS}
_KINDS = {str(kind): kind for kind in KINDS}


def to_plain(schedule: Schedule) -> dict[str, Any]:
    """What ``json.dumps`` takes."""
    return {
        "format": FORMAT,
        "stages": schedule.stages,
        "replicas": schedule.replicas,
        "micro_batches": schedule.micro_batches,
        "dead": sorted(list(worker) for worker in schedule.dead),
        "mode": schedule.mode,
        "caps": list(schedule.caps),
        "serving": sorted(schedule.serving),
        "tied": schedule.tied,
        "work": {f"{w.stage},{w.replica}": [_text(done) for done in schedule.work[w]] for w in sorted(schedule.work)},
    }


def from_plain(plain: Any, where: str = "the schedule") -> Schedule:
    """A schedule from what ``json.loads`` gives. It is read, not proven: call ``validate``.

    Raises:
        ScheduleError: a part is missing, or is not of the type that it should be.
    """
    try:
        if plain["format"] != FORMAT:
            raise ScheduleError(f"{where} has format {plain['format']!r}, not {FORMAT}", fix="make it again")
        if plain["mode"] not in MODES or not isinstance(plain["tied"], bool):
            raise ValueError(f"mode {plain['mode']!r}, tied {plain['tied']!r}")
        return Schedule(
            _number(plain["stages"]),
            _number(plain["replicas"]),
            _number(plain["micro_batches"]),
            {_worker(name): tuple(map(_instruction, texts)) for name, texts in plain["work"].items()},
            frozenset(Worker(*map(_number, pair)) for pair in plain["dead"]),
            plain["mode"],
            tuple(None if cap is None else _number(cap) for cap in plain["caps"]),
            frozenset(map(_number, plain["serving"])),
            plain["tied"],
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ScheduleError(f"{where} cannot be read: {type(error).__name__}: {error}", fix="make it again") from error


def save(schedule: Schedule, path: str) -> None:
    """Write a schedule; the file is whole or not there."""
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump(to_plain(schedule), file, indent=0)
    os.replace(f"{path}.part", path)


def load(path: str) -> Schedule:
    """Read a schedule.

    Raises:
        ScheduleError: there is no such file, or it holds no schedule.
    """
    try:
        with open(path, encoding="utf-8") as file:
            plain = json.load(file)
    except OSError as error:
        raise ScheduleError(f"the schedule {path} cannot be read: {error.strerror}", fix="make it again") from error
    except ValueError as error:
        raise ScheduleError(f"{path} is no JSON: {error}", fix="make it again") from error
    return from_plain(plain, path)


def _text(done: Instruction) -> str:
    return " ".join(map(str, done[: _WORDS[done.kind]]))


def _instruction(text: str) -> Instruction:
    kind, *numbers = text.split(" ")
    if len(numbers) + 1 != _WORDS[_KINDS[kind]]:
        raise ValueError(f"{text!r} has {len(numbers)} numbers")
    return Instruction(_KINDS[kind], *map(int, numbers))


def _worker(name: str) -> Worker:
    stage, replica = name.split(",")
    return Worker(int(stage), int(replica))


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value
