"""The figures that our entry should reach, and what was measured, as rows of ``benchmarks.harness.Figure``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness import Figure, at_least, at_most, reported
from benchmarks.peers.table import Line, matched

OURS = "cedar"


@dataclass(frozen=True)
class Target:
    """Of a workload: ratios of rows per second.

    Args:
        best: to the best peer, whatever its setting.
        loader: to torch's DataLoader with two workers as documented; to the best setting found it is told only.
        limit: to a part of the work alone.
    """

    best: float | None = None
    loader: float | None = None
    limit: tuple[str, float] | None = None


TARGETS = {
    "simclr": Target(1.3, 2.3, ("decode", 0.5)),
    "ssd": Target(1.3, 2.3),
    "text": Target(1.0, 1.0, ("encode", 0.97)),
    "clicklog": Target(1.15, 3.8, ("scan", 0.57)),
    "audio": Target(1.15, 1.3, ("decode", 0.6)),
    "python_map": Target(0.97, 1.2),
    "random_reads": Target(),
    "cached": Target(3.0, 5.0),
    "images_function": Target(0.97),
    "audio_function": Target(0.97),
    "text_function": Target(0.97),
}
FIRST = 0.7  # of the time to the first batch of the best peer that has processes
WITH_PROCESSES = (("DataLoader", "2 workers"), ("DataLoader", "tuned"), ("Grain", "2 processes"), ("Grain", "tuned"),
                  ("SPDL", "tuned"), ("torchdata.nodes", "tuned"), ("HF datasets", "2 workers"))  # fmt: skip


def figures(workload: str, lines: Sequence[Line]) -> list[Figure]:
    """What the table of a workload says of ours. Lines that failed or were wrong are not peers."""
    sound = [line for line in lines if not line.problem]
    ours = next((line for line in sound if line.entry == OURS and line.setting == "auto"), None)
    if ours is None:
        return []
    target = TARGETS.get(workload, Target())
    peers = [line for line in sound if line.entry != OURS and not line.limit]
    found = []
    if peers:
        best = max(peers, key=lambda line: line.rate)
        found.append(_ratio(workload, f"best peer ({best.title})", ours, best, target.best))
        leanest = max(peers, key=lambda line: line.cpu_rate)
        note = "rows per CPU second: work saved, not work spread"
        values = matched(ours.cpu_rates, leanest.cpu_rates)
        found.append(reported(f"{workload}: against the least CPU ({leanest.title})", values, "x", note=note))
        memory = statistics.median(line.proportional for line in peers)
        found.append(at_most(f"{workload}: peak memory, median peer", memory, [ours.proportional], "MB", note="PSS"))
    for line in (line for line in peers if line.entry == "DataLoader"):
        wanted = target.loader if line.setting == "2 workers" else None
        found.append(_ratio(workload, f"torch {line.title}", ours, line, wanted))
    for line in (line for line in sound if line.limit and line.setting not in ("loop", "ceiling")):
        wanted = target.limit[1] if target.limit and target.limit[0] == line.setting else None
        found.append(_ratio(workload, f"{line.setting} alone", ours, line, wanted))
    return found + _first_batch(workload, sound)


def _ratio(workload: str, what: str, ours: Line, other: Line, wanted: float | None) -> Figure:
    values = matched(ours.rates, other.rates)
    name = f"{workload}: against {what}"
    return reported(name, values, "x") if wanted is None else at_least(name, wanted, values, "x")


def _first_batch(workload: str, lines: Sequence[Line]) -> list[Figure]:
    """Where processes pay: ours without tuning, whose threads deliver while they start, and with them alone."""
    ours = {line.setting: line for line in lines if line.entry == OURS}
    peers = [line for line in lines if (line.entry, line.setting) in WITH_PROCESSES]
    if "processes" not in ours or not peers:
        return []
    best = min(peers, key=lambda line: line.first_from_iter)
    auto, alone = (ours[setting].first_from_iter / best.first_from_iter for setting in ("auto", "processes"))
    name = f"{workload}: first batch, of {best.title}"
    return [
        at_most(name, FIRST, [auto], "x", note="from iter(); threads deliver while processes start"),
        reported(f'{name}, executor="processes"', [alone], "x", note="from iter(); waits for their start"),
    ]
