"""Record: converts steps to JSON entries and back. Entries contain no functions, data, folders or addresses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from cedar.core.errors import PlanError
from cedar.plan.places import place as place_at
from cedar.plan.steps import KINDS, Cache, Place, Replace, Step
from cedar.plan.steps.sweep import Sweep, Taken

_FIX = "fix the text, or save the plan again"


def entries_of(sweeps: Sequence[Sweep]) -> list[dict[str, Any]]:
    """Return one entry per step.

    Raises:
        PlanError: a step inserts a custom operator, which an entry cannot describe.
    """
    entries = []
    for number, sweep in enumerate(sweeps):
        for taken in sweep.steps:
            entry: dict[str, Any] = {"pass": number, "at": taken.at, "step": type(taken.step).__name__}
            entry |= {"down": True} if sweep.downward else {}
            entries.append(entry | _fields(taken.step))
    return entries


def _fields(step: Step) -> dict[str, Any]:
    if isinstance(step, Replace) or type(step) is not KINDS.get(type(step).__name__):
        raise PlanError(
            f"the plan cannot be saved: its step {type(step).__name__} puts in what only your program has",
            fix="leave out the rule with without=, or give it to every loader with rules=",
        )
    return step.fields()


def sweeps_of(entries: Sequence[Mapping[str, Any]], cluster: Any = None) -> tuple[Sweep, ...]:
    """Return the steps that entries describe, without checking whether they may be applied.

    Args:
        cluster: the caller's Dask client or scheduler address; None if the caller uses no cluster.

    Raises:
        PlanError: an entry is invalid.
    """
    made = [(_number(entry, "pass"), bool(entry.get("down")), _parse_step(entry, cluster)) for entry in entries]
    if [each[0] for each in made] != sorted(each[0] for each in made):
        raise PlanError("the steps of the plan are not in the order of their passes", fix=_FIX)
    sweeps = []
    for (_, down), group in groupby(made, key=lambda each: each[:2]):
        steps = tuple(each[2] for each in group)
        if len({taken.at for taken in steps}) < len(steps):
            raise PlanError("the plan has two steps at one node in one pass", fix=_FIX)
        sweeps.append(Sweep(steps, down))
    return tuple(sweeps)


def _parse_step(entry: Mapping[str, Any], cluster: Any) -> Taken:
    name = entry.get("step")
    made = KINDS.get(name) if isinstance(name, str) else None
    if made is None or made is Replace:
        raise PlanError(f"the plan has a step {name!r:.80}, which is none of {', '.join(KINDS)}", fix=_FIX)
    known = {field.name: str(field.type) for field in dataclasses.fields(made)}  # type: ignore[arg-type]
    known = {"above": known["above"]} if made is Cache else known
    given = {key: value for key, value in entry.items() if key not in ("pass", "at", "step", "down")}
    if set(given) != set(known):
        raise PlanError(f"the plan's step {name} has {sorted(given)}, not {sorted(known)}", fix=_FIX)
    values = {key: _tuples(value) for key, value in given.items()}
    for key, value in values.items():
        if not _ACCEPTS[known[key]](value):
            raise PlanError(f"the plan's step {name}: {key!r} is {value!r:.60}, not {known[key]}", fix=_FIX)
    if made is Place:
        values["places"] = tuple(place_at(each, cluster, "a place of the plan") for each in values["places"])
    return Taken(_number(entry, "at"), made(**values))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _number(entry: Mapping[str, Any], key: str) -> int:
    value: Any = entry.get(key)
    if not _is_int(value) or value < 0:
        raise PlanError(f"a step of the plan: {key!r} is {value!r:.60}, not an integer", fix=_FIX)
    return int(value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(map(check, value))


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


_ACCEPTS: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "int | None": lambda value: value is None or _is_int(value),
    "str": _is_name,
    "bool": lambda value: isinstance(value, bool),
    "tuple[int, ...]": _are(_is_int),
    "tuple[str, ...]": _are(_is_name),
    "tuple[tuple[str, ...], ...]": _are(_are(_is_name)),
    "Way": lambda value: value in ("down", "up"),
}
