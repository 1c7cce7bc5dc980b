"""Saved plans: write a plan as JSON that is easy to diff, and load it.

The JSON contains the steps from pipeline to plan, one per line, and digests of the pipeline's operators, but no
functions and no data. Loading requires equal digests, and checks and applies every step again.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

from cedar.core import process
from cedar.core.digests import digest_of
from cedar.core.errors import PlanError, user_site
from cedar.core.numeric import NumericEnvironment
from cedar.core.printable import one_line, redacted
from cedar.plan import graph
from cedar.plan.data import Decision, Plan
from cedar.plan.graph import Node, Scan, walk
from cedar.plan.lower import policy_of
from cedar.plan.places import kind, place
from cedar.plan.places import place as place_at
from cedar.plan.steps import (
    Cache,
    Cross,
    DropResults,
    Group,
    Keep,
    KeepOrder,
    Loosen,
    Place,
    PushColumns,
    PushFilter,
    Reorder,
    Replace,
    Share,
    Step,
)  # fmt: skip
from cedar.plan.steps.step import facts_of
from cedar.plan.steps.sweep import Sweep, Taken, replay
from cedar.store.keep import read_file, write_file

VERSION = 3
_log = logging.getLogger("cedar")
_SAVE_AGAIN = "save it again with plan.save()"
_KINDS: dict[str, type[Step]] = {
    kind.__name__: kind
    for kind in (
        Cache, Cross, DropResults, Group, Keep, KeepOrder, Loosen, Place, PushColumns, PushFilter, Reorder, Replace,
        Share,
    )
}  # fmt: skip


class HasNode(Protocol):
    """The part of a pipeline's interface that loading a plan uses."""

    @property
    def node(self) -> Node: ...


# ---- saving ----------------------------------------------------------------------------------------------------------


def text_of(plan: Plan) -> str:
    """Return the plan as JSON.

    Raises:
        PlanError: the plan contains an operator that JSON cannot describe.
    """
    if plan.root is not plan.logical and not plan.sweeps:
        raise PlanError(
            "the plan cannot be saved: its graph was not made by steps",
            fix="save a plan that p.optimize() made, or leave out what changed it since",
        )
    parts = {
        "cedar_plan": VERSION,
        "pipeline": graph.topology(plan.logical),
        "executor": kind(plan.executor),
        "workers": plan.workers,
        **({} if plan.cache_bytes is None else {"cache_bytes": plan.cache_bytes}),
        **({} if plan.memory_bytes is None else {"memory_bytes": plan.memory_bytes}),
        **({} if plan.numeric is None else {"numeric": plan.numeric.to_json()}),
        "operators": operator_entries(walk(plan.logical)),
        "steps": entries_of(plan.sweeps),
        "decisions": [
            {"rule": each.rule, "what": each.what, "applied": each.applied, **({"why": each.why} if each.why else {})}
            for each in plan.decisions
        ],
        **({} if plan.profile is None else {"cores": plan.profile.machine.cores}),
    }
    return "{\n" + ",\n".join(f"  {_json(key)}: {_lines(value)}" for key, value in parts.items()) + "\n}\n"


def _lines(value: Any) -> str:
    """Format a list or dict with one item per line, and each item on a single line."""
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"    {_json(item)}" for item in value) + "\n  ]"
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f"    {_json(key)}: {_json(item)}" for key, item in value.items()) + "\n  }"
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def write(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write ``text_of(plan)`` to a path or URL; a local file is replaced atomically.

    Raises:
        PlanError: the file cannot be written.
    """
    data = text_of(plan).encode("utf-8", "backslashreplace")  # a lone surrogate becomes an escape, which JSON reads
    where = os.fspath(path)
    try:
        write_file(where, data)
    except Exception as error:  # noqa: BLE001 - filesystems raise any exception
        cause = redacted(error)
        raise PlanError(
            f"the plan cannot be written to {where!r}: {error}",
            site=user_site(),
            done="an existing file is unchanged",
            fix="give a path or URL that can be written",
        ) from cause


def format_plan(plan: Plan) -> str:
    """Format a plan as text, with one line per node.

    Examples:
        >>> import cedar
        >>> from cedar.plan.data import Plan
        >>> print(format_plan(Plan.as_written(cedar.from_items([{"x": 1}]).take(1).node)))
        plan (as written): 2 nodes
          0  from_items(list of 1)
          1  take(1)  of 0
    """
    nodes = walk(plan.root)
    numbers = {id(node): number for number, node in enumerate(nodes)}
    written = {id(node) for node in walk(plan.logical)}
    head = f"plan ({plan.method}): {len(nodes)} nodes"
    if plan.prediction is not None:
        rate = float(f"{plan.prediction.rows_per_second:.3g}")
        head += f", {rate:,.12g} rows/s, bottleneck {plan.prediction.bottleneck}"
    lines = [head]
    for node in nodes:
        below = ", ".join(str(numbers[id(child)]) for child in node.inputs)
        place = f" in {kind(node.place)}" if node.place else ""
        work = _work(node, inserted=id(node.logical) not in written)
        lines.append(f"  {numbers[id(node)]}  {work}{place}" + (f"  of {below}" if below else ""))
    return "\n".join(map(one_line, [*lines, *(f"  {decision}" for decision in plan.decisions)]))


def _work(node: Node, *, inserted: bool) -> str:
    """Describe a node's operation in one phrase."""
    operator = node.operator
    if inserted and node.projection is not None:
        return f"keep {_names(list(node.projection))}"
    text = operator.label()
    if isinstance(operator, Scan):
        text += f", columns {_names(list(operator.columns))}" if operator.columns is not None else ""
        text += ", where " + " and ".join(each.operator.label() for each in operator.where) if operator.where else ""
    elif node.link is not None and not node.link.exact:
        text += ", not exact"
    return text


def _names(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f", ... {len(names) - 8} more" if len(names) > 8 else "")


# ---- loading ---------------------------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str], pipeline: HasNode, cluster: Any = None) -> Plan:
    """Load a plan from a file, and check that it fits the pipeline.

    Raises:
        PlanError: the file is not a plan, or the plan does not fit; the error names the first difference.
    """
    where = os.fspath(path)
    try:
        data = read_file(where)
        if data is None:
            raise FileNotFoundError(f"there is no file {where!r}")
        text = data.decode("utf-8")
    except Exception as error:  # noqa: BLE001 - filesystems raise any exception
        cause = redacted(error)
        raise PlanError(
            f"the plan {where!r} cannot be read: {error}", site=user_site(), fix="check the path"
        ) from cause
    return plan_from(text, pipeline, where, cluster)


def plan_from(text: str, pipeline: HasNode, where: str = "", cluster: Any = None) -> Plan:
    """Load a plan from the JSON that ``text_of`` returned.

    Args:
        text: the JSON.
        pipeline: the pipeline that the plan is for.
        where: a name for the JSON in messages.
        cluster: the Dask client or scheduler address to use for stages that the plan assigns to "cluster".

    Raises:
        PlanError: the JSON is not a plan, or the plan does not fit; the error names the first difference.
    """
    try:
        return plan_of(text, pipeline.node, cluster)
    except PlanError as error:
        error.site = error.site or user_site()
        if where:
            error.done = error.done or f"the plan in {where!r} was not loaded"
        raise


def plan_of(text: str, root: Node, cluster: Any = None) -> Plan:
    """Load a plan from the JSON that ``text_of`` returned, for the pipeline that ends with ``root``.

    Raises:
        PlanError: see ``plan_from``; the error names no line of the user's.
    """
    saved = _parsed(text)
    changed = check_pipeline(_entries(saved, "operators"), walk(root))
    if saved.get("pipeline") != graph.topology(root):
        raise PlanError(
            "the plan is of another pipeline: its operators have the same names, but their digest differs",
            fix=_SAVE_AGAIN,
        )
    sweeps = sweeps_of(_entries(saved, "steps"), cluster)
    decisions = [
        Decision(
            _value(each, "rule", str), _value(each, "what", str), _value(each, "applied", bool),
            _value(each, "why", str, ""),
        )
        for each in _entries(saved, "decisions")
    ]  # fmt: skip
    bytes_fix = "give an integer of bytes, or leave it out"
    return Plan(
        logical=root,
        root=replay(facts_of(root, root, _skips, exact=False), sweeps),
        decisions=(*decisions, *_load_decisions(saved, changed)),
        method="loaded",
        executor=place(saved.get("executor", ""), cluster, "the plan's 'executor'"),
        workers=_integer(saved, "workers", 1, "give an integer from 1, or null"),
        cache_bytes=_integer(saved, "cache_bytes", 0, bytes_fix),
        memory_bytes=_integer(saved, "memory_bytes", 1, bytes_fix),
        numeric=_numeric(saved),
        sweeps=sweeps,
    )


def _parsed(text: str) -> dict[str, Any]:
    try:
        saved = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise PlanError("the plan is invalid: it is nested too deeply", fix=_SAVE_AGAIN) from None
    except ValueError as error:
        raise PlanError(f"the plan is not JSON, or was cut off: {error}", fix=_SAVE_AGAIN) from error
    if not isinstance(saved, dict) or "cedar_plan" not in saved:
        raise PlanError("the text is not a plan: it does not begin with its version, 'cedar_plan'", fix=_SAVE_AGAIN)
    if type(saved["cedar_plan"]) is not int or saved["cedar_plan"] != VERSION:
        raise PlanError(
            f"the plan has version {saved['cedar_plan']!r}, this release reads {VERSION}",
            fix="optimize the pipeline with this release and save that plan",
        )
    return saved


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _skips(node: Node) -> bool:
    """Return whether an operator has its own ``on_error`` policy; the loader's own policy is not known here."""
    return policy_of(node.logical, None) is not None


def _load_decisions(saved: Mapping[str, Any], changed: list[str]) -> list[Decision]:
    """Return decisions that list for the user what changed since the plan was saved."""
    news = []
    if changed:
        _log.warning("the code of %s changed since the plan was saved", ", ".join(changed))
        why = "code changed since the plan was saved: it fits, its figures may not"
        news.append(Decision("load", ", ".join(changed), applied=True, why=why))
    numeric = _numeric(saved)
    missing = "" if numeric is None else numeric.missing(NumericEnvironment.of_caller())
    if missing:
        news.append(Decision("load", "numeric environment", applied=True, why=missing))
    cores, here = saved.get("cores"), process.cores()
    if isinstance(cores, int) and cores != here:
        why = f"the plan was made on {cores} core(s); this machine has {here}"
        news.append(Decision("load", "machine", applied=True, why=why))
    return news


def _entries(saved: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = saved.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise PlanError(f"the plan has no list of {key}", fix=_SAVE_AGAIN)
    return value


def _integer(saved: Mapping[str, Any], key: str, least: int, fix: str) -> int | None:
    value = saved.get(key)
    if value is not None and (not _is_int(value) or value < least):
        raise PlanError(f"the plan has {key} {value!r}", fix=fix)
    return value


def _numeric(saved: Mapping[str, Any]) -> NumericEnvironment | None:
    try:
        return None if saved.get("numeric") is None else NumericEnvironment.of_json(saved["numeric"])
    except ValueError as error:
        raise PlanError(f"the plan cannot be read: {error}", fix=_SAVE_AGAIN) from error


def _value(entry: Mapping[str, Any], key: str, kind: type, default: Any = None) -> Any:
    value = entry.get(key, default)
    if not isinstance(value, kind):
        raise PlanError(f"the plan's {key!r} is {value!r:.60}, not {kind.__name__}", fix=_SAVE_AGAIN)
    return value


# ---- whether a plan fits its pipeline --------------------------------------------------------------------------------


_OPTIMIZE_AGAIN = "optimize this pipeline and save that plan"


def operator_entries(logical: Sequence[Node]) -> list[dict[str, Any]]:
    """Return one entry per operator of the pipeline as written: its label, and a digest of what a plan depends on."""
    ordinals = {id(node): i for i, node in enumerate(logical)}
    entries = []
    for node in logical:
        operator, effects = node.operator, node.effects
        entry: dict[str, Any] = {"is": operator.label()}
        if node.inputs:  # data may change
            inputs = [ordinals[id(child)] for child in node.inputs]
            names = [None if n is None else sorted(n) for n in (effects.reads, effects.writes, effects.survivors)]
            does = [effects.rows, effects.random, effects.algebra]
            entry["digest"] = graph.digest([operator.name, inputs, operator.parameters(), names, does])
        if operator.code():
            entry["code"] = graph.digest([digest_of(item, data=False) for item in operator.code()])
        entries.append(entry)
    return entries


def check_pipeline(saved: Sequence[Mapping[str, Any]], logical: Sequence[Node]) -> list[str]:
    """Compare the saved operators with the pipeline's, and return the labels of those whose code changed.

    Raises:
        PlanError: an operator, its parameters or its inputs differ; the error names the first such operator.
    """
    changed = []
    for number, (mine, node) in enumerate(zip(operator_entries(logical), logical, strict=True)):
        if number >= len(saved):
            raise PlanError(
                f"the plan is of a pipeline of {len(saved)} operators; this one has {mine['is']} besides",
                site=node.site,
                fix=_OPTIMIZE_AGAIN,
            )
        theirs = saved[number]
        if _kind(theirs) != _kind(mine):
            raise PlanError(
                f"operator {number} of the plan is {theirs.get('is')}, the pipeline has {mine['is']} there",
                site=node.site,
                fix=_OPTIMIZE_AGAIN,
            )
        if theirs.get("digest") != mine.get("digest"):
            raise PlanError(
                f"operator {number}, {mine['is']}, has other inputs, parameters or effects than {theirs['is']} of the "
                "plan",
                site=node.site,
                fix=_OPTIMIZE_AGAIN,
            )
        if theirs.get("code") != mine.get("code"):
            changed.append(str(mine["is"]))
    if len(saved) > len(logical):
        extra = saved[len(logical)].get("is")
        raise PlanError(
            f"operator {len(logical)} of the plan is {extra}; the pipeline has only {len(logical)} operators",
            site=logical[-1].site,
            fix=_OPTIMIZE_AGAIN,
        )
    return changed


def _kind(entry: Mapping[str, Any]) -> str:
    """Return an operator's name without its arguments, which may change: ``map`` for ``map(decode)``."""
    return str(entry.get("is")).partition("(")[0]


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
    if isinstance(step, Replace) or type(step) is not _KINDS.get(type(step).__name__):
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
    made = _KINDS.get(name) if isinstance(name, str) else None
    if made is None or made is Replace:
        raise PlanError(f"the plan has a step {name!r:.80}, which is none of {', '.join(_KINDS)}", fix=_FIX)
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
