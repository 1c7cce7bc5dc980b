"""The same stream, whatever the plan, the executor and the size of blocks: SHA-256 of two epochs."""

from __future__ import annotations

from benchmarks.harness import Figure
from benchmarks.optimizer_runs import EXECUTORS, Scale, each, fresh
from benchmarks.suite.case import Case

_PLANS = ("off", "auto")
_SIZES = ("small", "large")


def digests(scale: Scale) -> list[Figure]:
    return each(scale, lambda case: [_one(case, scale)], "digest")


def _one(case: Case, scale: Scale) -> Figure:
    """Where form, an epoch is too short for a change of plan within it; the second may begin with the new one."""
    rows = scale.form.pick(case.short // 2, case.tiny)
    ways = [(plan, executor, "") for executor in EXECUTORS for plan in _PLANS]
    if scale.form:
        ways = [way for way in ways if way[1] != "processes"]
    ways += [(plan, "threads", size) for size in _SIZES for plan in _PLANS]
    found = fresh("digests", case, rows, ways).result
    wanted = found["off inline"]
    others = [way for way, digest in found.items() if digest != wanted]
    note = f"{wanted[0][:12]}, {wanted[1][:12]}" + (f"; not on: {', '.join(others)}" if others else "")
    return Figure(
        f"same stream: {case.name}, ways that agree", f"{len(ways)} of {len(ways)}", float(len(ways) - len(others)), "",
        not others, note=note,
    )  # fmt: skip
