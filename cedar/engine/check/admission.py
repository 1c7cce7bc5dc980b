"""Which plans may run: by what their operators declare, and where that does not tell, on sample rows."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from cedar.core.errors import CedarError
from cedar.engine.background_calls import Calls
from cedar.engine.binding import Binding
from cedar.engine.check.check import Unclear, check_effects, check_plan
from cedar.plan.data import Plan
from cedar.plan.graph import Node
from cedar.plan.physical import Work
from cedar.plan.planner import Difference

_FEW_ROWS = 16  # that functions are called on for a plan that the user gave, where nothing else tells
NOT_COMPARED = Difference("not before it is compared on rows of the run")  # and made-up rows are not shown
_compared: WeakKeyDictionary[Node, list[Any]] = WeakKeyDictionary()  # what plans do that were found right, by pipeline


class Admission:
    """Of the plans of one pipeline.

    Args:
        binding: the bound operators of the pipeline as written.
        world: ranks that share the run; others may join it.
        given: plans come from the user; those of an optimizer, which has others, have to show more.
    """

    def __init__(self, binding: Binding, world: int, given: bool) -> None:
        self.written = Plan.as_written(binding.root)
        self._binding = binding
        self.world = world
        self._given = given

    def rewrites(self, plan: Plan) -> bool:
        """A plan does anything else than the pipeline as written, wherever that is done."""
        if plan.root is self._binding.root:
            return False
        works = self._works(plan)
        return works is None or works != self._works(self.written)

    def declared(self, plan: Plan) -> Difference | None:
        """What differs by what operators declare: no function of the user is called, as far as that tells."""
        binding = self._binding
        key = self._works(plan), self.world, binding.on_error, self._given
        if key in _compared.get(binding.root, ()):
            return None
        try:
            difference = check_effects(binding, plan, self.world, strict=not self._given)
            if difference is None and key[0] is not None:
                _compared.setdefault(binding.root, []).append(key)
            return difference
        except Unclear:
            return check_plan(binding, plan, _FEW_ROWS, self.world) if self._given else NOT_COMPARED

    def sampled(self, plan: Plan, rows: int, calls: Calls) -> Difference | None:
        """What differs on so many sample rows, while a run goes on: functions are called where it lets them be."""
        try:
            difference = check_effects(self._binding, plan, self.world, going=calls.check)
        except Unclear:
            difference = None
        return difference or calls.make(lambda: check_plan(self._binding, plan, rows, self.world))

    def _works(self, plan: Plan) -> tuple[Work, ...] | None:
        """What a plan does; None of one that is none, of which the check says why."""
        try:
            return self._binding.lowered(plan.root).works
        except CedarError:
            return None
