"""Ours, without tuning: the pipeline of the workload, ``plan="auto"``, ``executor="auto"``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.peers.entry import Entry
from benchmarks.peers.workload import Work, Workload

SETTINGS: dict[str, dict[str, Any]] = {
    "auto": {},
    "processes": {"executor": "processes"},  # next to "auto", which begins on threads
    "as written": {"plan": "off", "executor": "inline"},  # what "auto" is compared with, not part of the table
}


def settings(workload: Workload) -> tuple[str, ...]:
    return ("auto", "processes") if workload.holds_gil else ("auto",)


def run(workload: Workload, work: Work, setting: str) -> Iterable[Any]:
    loader: Iterable[Any] = workload.pipeline(work, setting).loader(**SETTINGS[setting])
    return loader


ENTRY = Entry(
    name="cedar",
    module="cedar",
    environment="",
    requirements=(),
    distributions=("cedar",),
    settings=settings,
    run=run,
)
