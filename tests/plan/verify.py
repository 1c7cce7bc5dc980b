"""Verify: checks that the stages of a plan run every operator of its graph exactly once, on the right input.

The check is independent of ``lower``, which creates the stages, and runs no operator. Whether the graph is equivalent
to the pipeline as written is checked elsewhere, by the plan's steps.
"""

from __future__ import annotations

from itertools import pairwise

from cedar.core.errors import PlanError
from cedar.datasets.base import Read
from cedar.operators.base import RowOperator, StreamOperator
from cedar.plan.lower import HERE
from cedar.plan.physical import Branch, Physical, Segment, Stage

_FIX = "optimize this pipeline and save that plan"


def verify(physical: Physical) -> None:
    """Raise PlanError for the first error in the stages of a plan or of an unoptimized pipeline."""
    _Stages(physical).check()


def describe(physical: Physical, stage: Stage) -> str:
    """Describe a stage on one line."""
    sources = [segment.source for segment in stage.segments]
    work = " -> ".join(physical.works[i].label for i in (*sources, *stage.operators)) or "gather"
    reported = [
        f"in {stage.place}" if stage.place else "",
        f"windows of {physical.works[stage.windows].label}" if stage.windows >= 0 else "",
        "small tasks" if stage.small else "",
        f"of {', '.join(map(str, stage.inputs))}" if stage.inputs else "",
    ]
    return "  ".join([f"{stage.kind:<6}", work, *filter(None, reported)])


class _Stages:
    def __init__(self, plan: Physical) -> None:
        self.plan, self.works, self.nodes, self.stages = plan, plan.works, plan.nodes, plan.stages

    def check(self) -> None:
        used = {i for stage in self.stages for i in stage.inputs}
        deals = [i for i, stage in enumerate(self.stages) if stage.kind == "deal"]
        for number, stage in enumerate(self.stages):
            why = "draws from a later stage" if any(not 0 <= i < number for i in stage.inputs) else self._why(stage)
            why = why or ("nothing draws from it" if number not in {*used, len(self.stages) - 1} else None)
            above = len(deals) == 1 and number > deals[0] and stage.inputs != (number - 1,)
            why = why or ("ranks part below it" if above else None)
            if why:
                raise PlanError(
                    f"stage {number} of the plan, {describe(self.plan, stage).strip()}: {why}",
                    site=self.nodes[stage.out].logical.site if 0 <= stage.out < len(self.nodes) else None,
                    fix=_FIX,
                )
        if len(deals) != 1 or self.stages[-1].kind != "task" or self._real(self.stages[-1].out) != self._real(-1):
            raise PlanError(
                "the plan must end in the pipeline's output and divide it over ranks exactly once", fix=_FIX
            )

    def _why(self, stage: Stage) -> str | None:
        """Return why a stage is invalid; None if it is valid."""
        if not all(0 <= i < len(self.works) for i in (stage.out, *stage.operators)):
            return "refers to an operator that does not exist"
        if stage.kind in ("read", "stream"):
            return self._why_read(stage) if stage.kind == "read" else self._why_stream(stage)
        if len(stage.inputs) != 1 or stage.segments:
            return "draws from one stage, and reads nothing itself"
        at = self.stages[stage.inputs[0]].out
        if stage.kind == "window":
            return None if stage.windows >= 0 and not stage.operators else "marks windows that no operator uses"
        for i in stage.operators:
            if not isinstance(self.nodes[i].operator, RowOperator):
                return f"{self.works[i].label} needs order or state, which tasks do not have"
            if (self.nodes[i].exact_rows is not None) != (stage.kind == "group"):
                return f"{self.works[i].label} must run in a stage of groups, and only there"
            if self._real(self.works[i].inputs[0]) != self._real(at):
                return f"{self.works[i].label} does not draw from {self.works[at].label}"
            at = i
        if self._real(stage.out) != self._real(at):
            return f"should deliver the rows of {self.works[stage.out].label}, but its operators do not"
        if stage.kind == "group" and len(stage.operators) != 1:
            return "is of one operator"
        if places := {self.works[i].place for i in stage.operators} - {*HERE, stage.place}:
            return f"runs in {stage.place or 'the place of the run'} what belongs in {', '.join(sorted(places))}"
        keeps = all(self.works[i].preserves_slots for i in stage.operators)
        return None if stage.preserves_units == keeps else "does not count rows as its operators do"

    def _why_stream(self, stage: Stage) -> str | None:
        operator, work = self.nodes[stage.out].operator, self.works[stage.out]
        if not isinstance(operator, StreamOperator) or stage.operators != (stage.out,):
            return "is of one operator that needs order or state"
        given = [self._real(self.stages[i].out) for i in stage.inputs]
        if given != [self._real(i) for i in work.inputs]:
            return f"{work.label} does not draw from what it is written above"
        if operator.ordering.windowed and not all(self._marked(i, stage.out) for i in stage.inputs):
            return f"{work.label} works window by window, but no stage marks where windows end"
        return None

    def _marked(self, number: int, by: int) -> bool:
        """Return whether the read or window stage that feeds an operator marks window ends for that operator."""
        while self.stages[number].kind == "task":
            number = self.stages[number].inputs[0]
        return self.stages[number].windows == by

    def _why_read(self, stage: Stage) -> str | None:
        if stage.inputs or not stage.segments:
            return "reads splits, and draws from no other stage"
        ways = []
        for segment in stage.segments:
            if why := self._why_segment(segment, stage):
                return why
            ways.append([link.input for link in reversed(segment.links) if isinstance(link, Branch)])
        joined = self.works[stage.operators[0]].inputs[0] if stage.operators else stage.out
        if len(ways) != self._leaves(joined) or any(a >= b for a, b in pairwise(ways)):
            return "reads other sources than those it is written above, or in another order"
        links = {i for each in stage.segments for i in (each.source, *each.links) if isinstance(i, int)}
        fills = any(self.works[each.source].refills for each in stage.segments)
        keeps = all(self.works[i].preserves_slots for i in links) and not fills
        return None if stage.preserves_units == keeps else "does not count rows as its operators do"

    def _why_segment(self, segment: Segment, stage: Stage) -> str | None:
        if not isinstance(self.nodes[segment.source].operator, Read):
            return f"{self.works[segment.source].label} is not a source"
        at = segment.source
        for place, link in enumerate(segment.links):
            if isinstance(link, Branch):
                inputs = self.works[link.concat].inputs
                if not self._is_concat(link.concat) or not 0 <= link.input < len(inputs) or inputs[link.input] != at:
                    return f"{self.works[at].label} is not that input of the concat"
                at = link.concat
                continue
            operator = self.nodes[link].operator
            if not isinstance(operator, RowOperator) or self.nodes[link].exact_rows is not None:
                return f"{self.works[link].label} needs order or state, which tasks do not have"
            if self.works[link].inputs != (at,):
                return f"{self.works[link].label} does not draw from {self.works[at].label}"
            if place < segment.kept and self.nodes[link].effects.random:
                return f"keeps what {self.works[link].label} drew"
            at = link
        if segment.kept and self.nodes[segment.cache].storage is None:
            return "caches rows without a cache() in the pipeline"
        if at != stage.out or segment.links[len(segment.links) - len(stage.operators) :] != stage.operators:
            return f"should deliver the rows of {self.works[stage.out].label}, but its operators do not"
        return None

    def _leaves(self, number: int) -> int:
        """Return the number of sources that a tree of concats reads; a source that is read twice counts twice."""
        while isinstance(self.nodes[number].operator, RowOperator):
            number = self.works[number].inputs[0]
        inputs = self.works[number].inputs
        return sum(map(self._leaves, inputs)) if self._is_concat(number) else int(not inputs)

    def _real(self, number: int) -> int:
        """Return the index of the operator whose rows a node delivers: for a ``cache()``, the nearest other input."""
        number %= len(self.works)
        while self.nodes[number].storage is not None:
            number = self.works[number].inputs[0]
        return number

    def _is_concat(self, number: int) -> bool:
        """Return whether the node delivers one input after the other, as ``concat`` does."""
        return self.nodes[number].ordering.preserves_windows
