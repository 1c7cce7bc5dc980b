"""Verify: whether a physical plan does all of the work of the pipeline as written, each part once and where it can.

Nothing is run and nothing is assumed of who made the plan: neither the rules of an optimizer nor ``lower`` are asked.
Whether two operators may change places is not told here: for that there is ``meaning``, and checks on rows.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from cedar.core.errors import PlanError
from cedar.datasets.base import Read
from cedar.operators.base import RowOperator, StreamOperator
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.lower import HERE, group_size, works
from cedar.plan.physical import Branch, Physical, Segment, Stage
from cedar.plan.verify_graph import AGAIN, GraphCheck


def verify(physical: Physical, written: Physical) -> None:
    """Checks a plan against the pipeline as written.

    Args:
        physical: the plan; that of the pipeline as written is one, too.
        written: the pipeline as written, lowered.

    Raises:
        PlanError: the first thing that is wrong, and the user's line where that is clear.
    """
    GraphCheck(physical, written).check()
    _Stages(physical).check()
    if physical is not written:
        _check_cursors(physical, written)


def check_graph(root: Node, written: Physical) -> None:
    """Checks the graph of a plan that may be none, before anything is made of it.

    Raises:
        PlanError: the first thing that is wrong.
    """
    nodes = tuple(graph.walk(root))
    GraphCheck(Physical(works(nodes, written.root, None, sound=False), (), nodes), written).check()
    for number, node in enumerate(nodes):
        try:
            _ = node.schema, node.batched
        except Exception as error:
            raise PlanError(
                f"node {number} of the plan, {node.operator.label()}: {getattr(error, 'what', error)}",
                site=node.logical.site,
                fix=AGAIN,
            ) from error


# ---- stages ----------------------------------------------------------------------------------------------------------


class _Stages:
    """Whether the stages of a plan do the work of its graph: each stage a piece of the way, from what it draws from."""

    def __init__(self, physical: Physical) -> None:
        self.plan, self.works, self.nodes = physical, physical.works, physical.nodes
        self.stages = physical.stages

    def check(self) -> None:
        used = {i for stage in self.stages for i in stage.inputs}
        deals = [i for i, stage in enumerate(self.stages) if stage.kind == "deal"]
        for number, stage in enumerate(self.stages):
            why = "draws from a later stage" if any(not 0 <= i < number for i in stage.inputs) else self._why(stage)
            last = number == len(self.stages) - 1
            why = why or ("nobody draws from it" if not last and number not in used else None)
            line = len(deals) == 1 and number > deals[0]
            why = why or ("ranks part below it" if line and stage.inputs != (number - 1,) else None)
            if why:
                raise PlanError(
                    f"stage {number} of the plan, {self.plan.describe(stage).strip()}: {why}",
                    site=self.nodes[stage.out].logical.site if 0 <= stage.out < len(self.nodes) else None,
                    fix=AGAIN,
                )
        if len(deals) != 1 or self.stages[-1].kind != "task" or self._real(self.stages[-1].out) != self._real(-1):
            raise PlanError("the plan does not end in what the pipeline gives, dealt to ranks once", fix=AGAIN)

    def _why(self, stage: Stage) -> str | None:
        """What is wrong with a stage, or None."""
        if not all(0 <= i < len(self.works) for i in (stage.out, *stage.operators)):
            return "does the work of an operator that is not there"
        if stage.kind == "read":
            return self._why_read(stage)
        if stage.kind == "stream":
            return self._why_stream(stage)
        if len(stage.inputs) != 1 or stage.segments:
            return "draws from one stage, and reads nothing itself"
        at = self.stages[stage.inputs[0]].out
        if stage.kind == "window":
            return None if stage.windows >= 0 and not stage.operators else "marks windows that nobody asks for"
        for i in stage.operators:
            if not isinstance(self.nodes[i].operator, RowOperator):
                return f"{self.works[i].label} needs order or state, which no task has"
            if (group_size(self.nodes[i]) is not None) != (stage.kind == "group"):
                return f"{self.works[i].label} sees rows in groups in a stage of its own, and there alone"
            if self._real(self.works[i].inputs[0]) != self._real(at):
                return f"{self.works[i].label} does not draw from {self.works[at].label}"
            at = i
        if self._real(stage.out) != self._real(at):
            return f"gives what {self.works[stage.out].label} gives, and does not do its work"
        if stage.kind == "group" and len(stage.operators) != 1:
            return "is of one operator"
        return self._why_tasks(stage)

    def _why_tasks(self, stage: Stage) -> str | None:
        """Of stages that have tasks: rows, places and padding are as their operators say."""
        places = {self.works[i].place for i in stage.operators} - {*HERE, stage.place}
        if places:
            return f"runs in {stage.place or 'the place of the run'} what belongs in {', '.join(sorted(places))}"
        if stage.keeps != all(self.works[i].keeps for i in stage.operators):
            return "counts rows in another way than its operators do"
        if stage.kind == "task" and stage.pads != self._pads(self.stages[stage.inputs[0]].out):
            return "short batches are filled elsewhere"
        return None

    def _why_stream(self, stage: Stage) -> str | None:
        operator, work = self.nodes[stage.out].operator, self.works[stage.out]
        if not isinstance(operator, StreamOperator) or stage.operators != (stage.out,):
            return "is of one operator that needs order or state"
        given = [self._real(self.stages[i].out) for i in stage.inputs]
        if given != [self._real(i) for i in work.inputs]:
            return f"{work.label} does not draw from what it is written above"
        if operator.windowed and not all(self._marked(i, stage.out) for i in stage.inputs):
            return f"{work.label} works window by window, and nobody tells where they end"
        return None

    def _marked(self, number: int, by: int) -> bool:
        """The windows of an operator end where the stage says, over tasks."""
        while self.stages[number].kind == "task":
            number = self.stages[number].inputs[0]
        return self.stages[number].windows == by

    def _why_read(self, stage: Stage) -> str | None:
        if stage.inputs or not stage.segments:
            return "reads splits, and draws from no other stage"
        ways = []
        for segment in stage.segments:
            why = self._why_segment(segment, stage)
            if why:
                return why
            ways.append([link.input for link in reversed(segment.links) if isinstance(link, Branch)])
        joined = stage.operators[0] if stage.operators else stage.out
        joined = self.works[joined].inputs[0] if stage.operators else joined
        if len(ways) != self._leaves(joined) or any(a >= b for a, b in pairwise(ways)):
            return "reads other sources than those it is written above, or in another order"
        links = {i for each in stage.segments for i in (each.source, *each.links) if isinstance(i, int)}
        fills = any(self.works[each.source].refills for each in stage.segments)
        if stage.keeps != (all(self.works[i].keeps for i in links) and not fills):
            return "counts rows in another way than its operators do"
        return None

    def _why_segment(self, segment: Segment, stage: Stage) -> str | None:
        if not isinstance(self.nodes[segment.source].operator, Read):
            return f"{self.works[segment.source].label} is no source"
        at = segment.source
        for place, link in enumerate(segment.links):
            if isinstance(link, Branch):
                inputs = self.works[link.concat].inputs
                concat = is_concat(self.nodes[link.concat])
                if not concat or not 0 <= link.input < len(inputs) or inputs[link.input] != at:
                    return f"{self.works[at].label} is no such input of a concat"
                at = link.concat
                continue
            operator = self.nodes[link].operator
            if not isinstance(operator, RowOperator) or group_size(self.nodes[link]) is not None:
                return f"{self.works[link].label} needs order or state, which no task has"
            if self.works[link].inputs != (at,):
                return f"{self.works[link].label} does not draw from {self.works[at].label}"
            if place < segment.kept and self.nodes[link].effects.random:
                return f"keeps what {self.works[link].label} drew"
            at = link
        if segment.kept and self.nodes[segment.cache].operator.storage is None:
            return "keeps rows that nobody asked to keep"
        if at != stage.out or segment.links[len(segment.links) - len(stage.operators) :] != stage.operators:
            return f"gives what {self.works[stage.out].label} gives, and does not do its work"
        return None

    def _leaves(self, number: int) -> int:
        """How many sources there are below a concat, each as often as it is read."""
        work, total = self.works[number], 0
        if is_concat(self.nodes[number]):
            return sum(map(self._leaves, work.inputs))
        while work.inputs and isinstance(self.nodes[number].operator, RowOperator):
            number = work.inputs[0]
            work = self.works[number]
        total = self._leaves(number) if is_concat(self.nodes[number]) else not work.inputs
        return int(total)

    def _real(self, number: int) -> int:
        """The operator whose rows a node gives: those of a ``cache()`` are those below it."""
        number %= len(self.works)
        while self.nodes[number].operator.storage is not None:
            number = self.works[number].inputs[0]
        return number

    def _pads(self, number: int) -> int:
        """The batch whose short batches have to be filled above a node; -1 for none."""
        while isinstance(self.nodes[number].operator, StreamOperator):
            operator = self.nodes[number].operator
            if isinstance(operator, StreamOperator) and operator.batch_rows is not None:
                return number if operator.last == "pad" else -1
            number = self.works[number].inputs[0]
        return -1


# ---- cursors ---------------------------------------------------------------------------------------------------------


def _check_cursors(physical: Physical, written: Physical) -> None:
    """A state says where each source and each stream operator is: they are the same under any plan."""
    done = {work.ordinal for work in physical.works}
    gone = {i for i in range(len(written.works)) if i not in done}
    places: dict[tuple[object, ...], int] = {}
    want = _cursor(written, gone, places)
    known = len(places)
    if _cursor(physical, gone, places) != want:
        kind, own, by, *_ = list(places)[known] if len(places) > known else list(places)[-1]
        ordinals = [i for i in (own, by) if isinstance(i, int) and i >= 0]
        name = f" of {written.works[ordinals[0]].label}" if ordinals else ""
        raise PlanError(f"a state of the plan would say where its {kind}{name} is: the pipeline has no such", fix=AGAIN)


def _cursor(physical: Physical, gone: set[int], places: dict[tuple[object, ...], int]) -> int:
    """What holds a place in the rows, and what it draws from; equal ones have one number in ``places``."""
    works = physical.works
    numbers: list[int] = []
    for stage in physical.stages:
        skipped = stage.kind == "stream" and works[stage.out].ordinal in gone
        if stage.kind in ("task", "deal") or skipped:  # which hold none
            numbers.append(numbers[stage.inputs[0]])
            continue
        own = works[stage.out].ordinal if stage.kind in ("stream", "group") else -1
        by = works[stage.windows].ordinal if stage.windows >= 0 else -1
        sources = tuple(works[segment.source].ordinal for segment in stage.segments)
        key = stage.kind, own, by, sources, tuple(numbers[i] for i in stage.inputs)
        numbers.append(places.setdefault(key, len(places)))
    return numbers[-1]


def is_concat(node: Any) -> bool:
    """One input after the other."""
    return isinstance(node.operator, StreamOperator) and node.operator.keeps_windows
