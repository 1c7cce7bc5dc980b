"""Measured results of plans, stored for later runs of the same pipeline on this machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from cedar.control.controller import Pace, PlanTrial, State
from cedar.core.errors import PlanError, Skip
from cedar.engine.machine import machine_key
from cedar.plan.data import Plan
from cedar.plan.graph import Node, topology, walk
from cedar.plan.saved import operator_entries, plan_of, text_of
from cedar.store.keep import load, save, user_place
from cedar.store.place import name_of


@dataclass(frozen=True)
class PlanResults:
    """The results of a pipeline's plans.

    Args:
        plans: each plan that was measured, with its result.
        pace: the pace of the plan that was in use at last, which is the first of ``plans``.
        gil: the share of their time for which per-row Python functions hold the GIL; None if no run used threads.
    """

    plans: tuple[tuple[Plan, PlanTrial], ...]
    pace: Pace
    gil: float | None = None


class ResultsStore:
    """Loads and saves the results of one pipeline's plans.

    Args:
        root, on_error: the pipeline as written, and the loader's policy for errors.
    """

    def __init__(self, root: Node, on_error: Skip | None) -> None:
        self._root, self._on_error = root, on_error
        self._name = ""  # of the entry; "" before ``load``
        self._saved: object = None  # summary of the results that were saved last

    def load(self, limits: Iterable[object]) -> PlanResults | None:
        """Return the results that an earlier run saved; None if there are none that fit the pipeline.

        Args:
            limits: what the plans depend on besides the pipeline.
        """
        code = topology(self._root), operator_entries(walk(self._root))  # of functions the code, not the data they use
        self._name = name_of("plans", [*code, repr(self._on_error), machine_key(), *map(repr, limits)])
        return load(user_place(), self._name, lambda entry: _decoded(entry.about, self._root))

    def save(self, state: State, plans: Sequence[Plan], now: float, gil: float | None = None) -> None:
        """Save the results of a run, if it tried or accepted other plans than at the last call.

        Args:
            state: the state of the controller.
            plans: all plans; the key of a plan is its index.
            now: seconds since the start of the run.
            gil: see ``PlanResults``.
        """
        learned = state.stays, {key: each.failed for key, each in state.tried.items()}
        if not self._name or state.pace is None or learned == self._saved or not state.tried.keys() - {state.stays}:
            return
        self._saved = learned
        at = state.tried[state.stays].at if state.stays in state.tried else now
        tried = {state.stays: PlanTrial(state.pace.row, at)}
        tried |= {key: result for key, result in state.tried.items() if key != state.stays}
        with suppress(PlanError):  # a plan cannot be written as JSON
            about = {
                "plans": [_encoded(plans[int(key)], result) for key, result in tried.items()],
                "trainer": state.pace.trainer,
                "task": state.pace.task,
                "gil": gil,
            }
            save(user_place(), self._name, lambda _: about)


def _encoded(plan: Plan, result: PlanTrial) -> dict[str, Any]:
    text = text_of(replace(plan, decisions=(), profile=None))
    return {"plan": text, "seconds": result.seconds, "at": result.at, "failed": result.failed}


def _decoded(about: dict[str, Any], root: Node) -> PlanResults:
    plans = []
    for each in about["plans"]:
        result = PlanTrial(_positive(each["seconds"]), _positive(each["at"]), int(each["failed"]))
        plans.append((plan_of(each["plan"], root), result))
    pace = Pace(plans[0][1].seconds, _positive(about["trainer"]), _positive(about["task"]))
    return PlanResults(tuple(plans), pace, None if about["gil"] is None else min(_positive(about["gil"]), 1.0))


def _positive(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is not a number of seconds")
    return float(value)
