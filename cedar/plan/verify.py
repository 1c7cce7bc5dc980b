"""Verify: whether a physical plan does all of the work of the pipeline as written, each part once and where it can.

Nothing is run and nothing is assumed of who made the plan: neither the rules of an optimizer nor ``lower`` are asked.
Whether two operators may change places is not told here: for that there is ``meaning``, and checks on rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from cedar.core.digests import examine
from cedar.core.errors import PlanError
from cedar.datasets.base import Read
from cedar.operators.base import Operator, RowOperator, Schema, StreamOperator
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.lower import HERE, group_size, works
from cedar.plan.physical import Branch, Physical, Segment, Stage
from cedar.plan.scan import Scan

AGAIN = "optimize this pipeline and save that plan"


def verify(physical: Physical, written: Physical) -> None:
    """Checks a plan against the pipeline as written.

    Args:
        physical: the plan; that of the pipeline as written is one, too.
        written: the pipeline as written, lowered.

    Raises:
        PlanError: the first thing that is wrong, and the user's line where that is clear.
    """
    _Graph(physical, written).check()
    _Stages(physical).check()
    if physical is not written:
        _check_cursors(physical, written)


def check_graph(root: Node, written: Physical) -> None:
    """Checks the graph of a plan that may be none, before anything is made of it.

    Raises:
        PlanError: the first thing that is wrong.
    """
    nodes = tuple(graph.walk(root))
    _Graph(Physical(works(nodes, written.root, None, sound=False), (), nodes), written).check()
    for number, node in enumerate(nodes):
        try:
            _ = node.schema, node.batched
        except Exception as error:
            raise PlanError(
                f"node {number} of the plan, {node.operator.label()}: {getattr(error, 'what', error)}",
                site=node.logical.site,
                fix=AGAIN,
            ) from error


# ---- the graph -------------------------------------------------------------------------------------------------------


class _Graph:
    """Which node of a plan does the work of which operator as written."""

    def __init__(self, physical: Physical, written: Physical) -> None:
        self.plan, self.written = physical, written
        self.done: dict[int, list[int]] = {}
        self.own = [self._ordinals(number) for number in range(len(physical.works))]
        for number, ordinals in enumerate(self.own):
            for ordinal in ordinals:
                self.done.setdefault(ordinal, []).append(number)
        self.left_out = [i for i in range(len(written.works)) if i not in self.done]

    def _ordinals(self, number: int) -> list[int]:
        """The operators as written whose work a node does: its own, and the filters inside a scan."""
        work, operator = self.plan.works[number], self.plan.nodes[number].operator
        inside = work.detail[1] if isinstance(operator, Scan) and len(work.detail) == 2 else ()
        return [i for i in (work.ordinal, *inside) if i >= 0]  # type: ignore[misc]

    def check(self) -> None:
        if self.plan is not self.written:
            self._check_once()
            self._check_left_out()
            self._check_takes()
            self._check_ways()
            self._check_counts()
        self._check_columns()

    def _name(self, ordinal: int) -> str:
        return f"operator {ordinal}, {self.written.nodes[ordinal].operator.label()}"

    def _refuse(self, ordinal: int, what: str, fix: str = AGAIN) -> PlanError:
        return PlanError(what, site=self.written.nodes[ordinal].site, fix=fix)

    def _check_once(self) -> None:
        """Twice only on different ways: a row must not pass an operator twice."""
        for ordinal, numbers in self.done.items():
            if len(numbers) < 2:
                continue
            below = [_below(self.plan, number) for number in numbers]
            twice = any(a in below[j] for i, a in enumerate(numbers) for j in range(len(numbers)) if i != j)
            if twice or not isinstance(self.written.nodes[ordinal].operator, RowOperator):
                where = " and ".join(map(str, numbers[:2]))
                what = f"{self._name(ordinal)}, is twice in the plan, in its nodes {where}"
                raise self._refuse(ordinal, what, "leave one of them out")

    def _check_left_out(self) -> None:
        """Left out may be what has no effect on any row."""
        for ordinal in self.left_out:
            if not self._idle(ordinal):
                raise self._refuse(ordinal, f"the plan leaves out {self._name(ordinal)}", f"put it back, or {AGAIN}")

    def _idle(self, ordinal: int) -> bool:
        node = self.written.nodes[ordinal]
        operator = node.operator
        if operator.storage is not None:
            return True
        if any(self._alike[other] == self._alike[ordinal] for other in self.done):
            return True  # computed once for both
        first = first_of(operator)
        if first is not None:
            return any((other := first_of(n.operator)) is not None and other <= first for n in self.plan.nodes)
        if operator.results and node.effects.keeps is None:
            return all(operator.never_fails(i, node.inputs[0].schema) for i in range(len(operator.results)))
        return not operator.appends  # whether its columns were needed, the columns that come out tell

    def _check_takes(self) -> None:
        """A take that stands for several takes the least of their numbers."""
        gone = [self.written.nodes[i].operator for i in self.left_out]
        for ordinal, numbers in self.done.items():
            operator, written = self.plan.nodes[numbers[0]].operator, self.written.nodes[ordinal].operator
            taken, first = first_of(operator), first_of(written)
            if taken is not None and first is not None and taken != first:
                counts = [first, *(n for other in gone if (n := first_of(other)) is not None)]
                if taken != min(counts):
                    least = f"takes {taken} in the plan, not the least of {some(counts)}"
                    raise self._refuse(ordinal, f"{self._name(ordinal)}, {least}")

    def _check_ways(self) -> None:
        """The rows of a source pass the same operators, and the stream operators draw from one another as written."""
        gone = set(self.left_out)
        every = [[number] for number in range(len(self.written.works))]
        have, want = self._passed(self.plan, self.own), self._passed(self.written, every)
        for source, ordinals in want.items():
            wrong = (ordinals ^ have.get(source, set())) - gone
            if wrong and (self.left_out or any(len(numbers) > 1 for numbers in self.done.values())):
                alike = self._alike
                wrong = ({alike[i] for i in ordinals} ^ {alike[i] for i in have.get(source, set())}) - gone
            if wrong:
                what = f"in the plan, other rows pass {self._name(min(wrong))}, than in the pipeline"
                raise self._refuse(min(wrong), what)
        mine, theirs = _skeleton(self.plan, gone), _skeleton(self.written, gone)
        for ordinal, below in theirs.items():
            if mine.get(ordinal, below) != below:
                names = ", ".join(self.written.nodes[o].operator.label() for o in below)
                raise self._refuse(
                    ordinal, f"in the plan, {self._name(ordinal)}, does not draw from {names} as in the pipeline"
                )

    def _passed(self, physical: Physical, own: Sequence[Sequence[int]]) -> dict[int, set[int]]:
        """Of each source, the operators that its rows pass."""
        passed: dict[int, set[int]] = {}
        sources: list[set[int]] = []
        for number, work in enumerate(physical.works):
            below = set().union(*(sources[i] for i in work.inputs))
            sources.append(below or {i for i in own[number] if not self.written.works[i].inputs})
            for source in sources[-1]:
                passed.setdefault(source, set()).update(own[number])
        return passed

    def _check_counts(self) -> None:
        """What adds or drops rows, or sees batches, stands where it counts the same rows as written."""
        mine, theirs = _counted(self.plan), _counted(self.written)
        for ordinal, numbers in self.done.items():
            node = self.written.nodes[ordinal]
            if not isinstance(node.operator, RowOperator) or node.operator.storage is not None:
                continue
            keeps = self.written.works[ordinal].keeps and node.operator.keeps_rows  # not only by counts of its splits
            for number in numbers:
                within = self.plan.works[number].ordinal != ordinal  # a filter inside a scan
                if not within and node.batched and not self.plan.works[number].batched:
                    raise self._refuse(ordinal, f"{self._name(ordinal)}, sees rows in the plan")
                if not keeps and not node.batched and self.plan.works[number].batched:
                    raise self._refuse(ordinal, f"{self._name(ordinal)}, changes how many rows are in a batch")
                if keeps or node.batched or theirs[ordinal] == mine[number]:
                    continue
                above = {i for i in theirs[ordinal] - mine[number] if self._stands_below(number, i)}
                crossed = (mine[number] - theirs[ordinal]) | above
                wrong = sorted(i for i in crossed if not _carries(self.written, i))
                if wrong:
                    what = f"{self._name(ordinal)}, changes how many rows reach {self._name(wrong[0])}"
                    raise self._refuse(ordinal, what)

    def _stands_below(self, number: int, ordinal: int) -> bool:
        """A node of the plan is below one that does the work of an operator."""
        return any(number in _below(self.plan, above) for above in self.done.get(ordinal, ()))

    @cached_property
    def _alike(self) -> list[int]:
        """Of each operator, the first that does the same on rows of the same sources; itself mostly."""
        first: dict[str, int] = {}
        found: list[int] = []
        sources: list[frozenset[int]] = []
        for number, (node, work) in enumerate(zip(self.written.nodes, self.written.works, strict=True)):
            operator = node.operator
            sources.append(frozenset().union(*(sources[i] for i in work.inputs)) or frozenset({number}))
            own = not isinstance(operator, RowOperator) or operator.storage is not None
            code = [examine(item) for item in operator.code()]
            own = own or any(each.unknown for each in code)  # what cannot be read may differ
            does = [operator.name, operator.label(), operator.parameters(), [each.parts for each in code]]
            key = graph.digest([*does, sorted(sources[number]), number if own else None])
            found.append(first.setdefault(key, number))
        return found

    def _check_columns(self) -> None:
        """Nobody needs a column that is gone; columns keep their types; the same columns come out in the same order."""
        works, held = self.plan.works, list[frozenset[str] | None]()
        for number, node in enumerate(self.plan.nodes):
            work = works[number]
            below = held[work.inputs[0]] if len(work.inputs) == 1 else None
            needs = node.effects.reads
            if isinstance(node.operator, Scan):
                given = Read(node.operator.source).schema()
                needs, below = tops(node.operator.columns or (), given), None if given is None else frozenset(given)
            lost = sorted((needs or frozenset()) - below) if below is not None else []
            if lost:
                raise PlanError(
                    f"node {number} of the plan, {node.operator.label()}, needs column {lost[0]!r}, which is not there"
                    f"; there are {some(sorted(below or ()))}",
                    site=node.logical.site,
                    fix=f"keep the column in the plan, or {AGAIN}",
                )
            known = work.schema
            held.append(frozenset(known) if known is not None else _held(node, below))
            if known is not None and len(work.inputs) == 1 and works[work.inputs[0]].schema is not None:
                self._check_edge(number, node, works[work.inputs[0]].schema or {}, known)
        want, have = self.written.works[-1].schema, works[-1].schema
        if want is not None and have is not None and list(want) != list(have):
            names = [a for a, b in zip([*want, None], [*have, None], strict=False) if a != b]
            raise self._refuse(
                len(self.written.nodes) - 1,
                f"the columns that come out of the plan are not those of the pipeline: {', '.join(have)} "
                f"instead of {', '.join(want)} (the first difference is at {names[0]!r})",
            )

    def _check_edge(self, number: int, node: Node, below: dict[str, Any], above: dict[str, Any]) -> None:
        """The columns that an operator does not write pass it as they are."""
        effects = node.effects
        if effects.writes is None:
            return
        wrong = sorted(above.keys() - below.keys() - effects.writes)
        for name, kind in below.items():
            passes = name not in effects.writes and (effects.keeps is None or name in effects.keeps)
            if passes and (name not in above or (above[name] is not kind and above[name] != kind)):
                wrong.append(name)
        if wrong:
            raise PlanError(
                f"node {number} of the plan, {node.operator.label()}, changes column {wrong[0]!r} without writing it",
                site=node.logical.site,
                fix=AGAIN,
            )


def _below(physical: Physical, number: int) -> set[int]:
    """A node and all below it."""
    found, stack = set[int](), [number]
    while stack:
        at = stack.pop()
        if at not in found:
            found.add(at)
            stack += physical.works[at].inputs
    return found


def _skeleton(physical: Physical, gone: set[int]) -> dict[int, tuple[int, ...]]:
    """Of each stream operator, the stream operators and sources that it draws from, over row operators."""
    below: list[tuple[int, ...]] = []
    found: dict[int, tuple[int, ...]] = {}
    for work, node in zip(physical.works, physical.nodes, strict=True):
        inputs = tuple(o for i in work.inputs for o in below[i])
        through = work.ordinal < 0 or isinstance(node.operator, RowOperator) or work.ordinal in gone
        if through and work.inputs:
            below.append(inputs)
            continue
        below.append((work.ordinal,))
        found[work.ordinal] = inputs
    return found


def _counted(physical: Physical) -> list[frozenset[int]]:
    """Of each node, the stream operators at or below it, as written, that count rows."""
    found: list[frozenset[int]] = []
    for work, node in zip(physical.works, physical.nodes, strict=True):
        below = frozenset().union(*(found[i] for i in work.inputs))
        streams = isinstance(node.operator, StreamOperator) and not node.operator.keeps_windows
        grouped = group_size(node) is not None
        found.append(below | {work.ordinal} if (streams or grouped) and work.ordinal >= 0 else below)
    return found


def _carries(written: Physical, ordinal: int) -> bool:
    """A shuffle whose windows are those of sources: rows that are dropped below it or above it leave the same order."""
    node = written.nodes[ordinal]
    operator = node.operator
    mixing = operator.mixing if isinstance(operator, StreamOperator) and operator.windowed else None
    if mixing is None or mixing.by is not None:
        return False
    stage = next(stage for stage in written.stages if stage.windows == ordinal)
    return stage.kind == "read"


def some(values: Sequence[Any]) -> str:
    """The first of them, for people."""
    return ", ".join(map(str, values[:12]))


def tops(names: Sequence[str], known: Schema | tuple[str, ...]) -> frozenset[str]:
    """The columns that names stand for: a column's own, or ``a.b``, a field of column ``a``."""
    return frozenset(name if name in (known or names) else name.partition(".")[0] for name in names)


def _held(node: Node, below: frozenset[str] | None) -> frozenset[str] | None:
    """The columns that can be there behind a node whose schema is not known."""
    if isinstance(node.operator, Scan) and node.operator.columns is not None:
        return tops(node.operator.columns, None)
    effects = node.effects
    if below is None or effects.writes is None:
        return None
    return (below if effects.keeps is None else below & effects.keeps) | effects.writes


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
    found: list[int] = []
    for stage in physical.stages:
        skipped = stage.kind == "stream" and works[stage.out].ordinal in gone
        if stage.kind in ("task", "deal") or skipped:  # which hold none
            found.append(found[stage.inputs[0]])
            continue
        own = works[stage.out].ordinal if stage.kind in ("stream", "group") else -1
        by = works[stage.windows].ordinal if stage.windows >= 0 else -1
        sources = tuple(works[segment.source].ordinal for segment in stage.segments)
        key = stage.kind, own, by, sources, tuple(found[i] for i in stage.inputs)
        found.append(places.setdefault(key, len(places)))
    return found[-1]


def first_of(operator: Operator) -> int | None:
    """The units that it takes."""
    return operator.first if isinstance(operator, StreamOperator) else None


def is_concat(node: Any) -> bool:
    """One input after the other."""
    return isinstance(node.operator, StreamOperator) and node.operator.keeps_windows
