"""Verify, of the graph: which node of a plan does the work of which operator as written, and whether all is done."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from cedar.core.digests import examine
from cedar.core.errors import PlanError
from cedar.datasets.base import Read
from cedar.operators.base import Operator, RowOperator, Schema, StreamOperator
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.lower import group_size
from cedar.plan.physical import Physical
from cedar.plan.scan import Scan

AGAIN = "optimize this pipeline and save that plan"


class GraphCheck:
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

    def _refuse(self, ordinal: int, message: str, fix: str = AGAIN) -> PlanError:
        return PlanError(message, site=self.written.nodes[ordinal].site, fix=fix)

    def _check_once(self) -> None:
        """Twice only on different ways: a row must not pass an operator twice."""
        for ordinal, numbers in self.done.items():
            if len(numbers) < 2:
                continue
            below = [_below(self.plan, number) for number in numbers]
            twice = any(a in below[j] for i, a in enumerate(numbers) for j in range(len(numbers)) if i != j)
            if twice or not isinstance(self.written.nodes[ordinal].operator, RowOperator):
                where = " and ".join(map(str, numbers[:2]))
                message = f"{self._name(ordinal)}, is twice in the plan, in its nodes {where}"
                raise self._refuse(ordinal, message, "leave one of them out")

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
                message = f"in the plan, other rows pass {self._name(min(wrong))}, than in the pipeline"
                raise self._refuse(min(wrong), message)
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
                    message = f"{self._name(ordinal)}, changes how many rows reach {self._name(wrong[0])}"
                    raise self._refuse(ordinal, message)

    def _stands_below(self, number: int, ordinal: int) -> bool:
        """A node of the plan is below one that does the work of an operator."""
        return any(number in _below(self.plan, above) for above in self.done.get(ordinal, ()))

    @cached_property
    def _alike(self) -> list[int]:
        """Of each operator, the first that does the same on rows of the same sources; itself mostly."""
        first: dict[str, int] = {}
        alike: list[int] = []
        sources: list[frozenset[int]] = []
        for number, (node, work) in enumerate(zip(self.written.nodes, self.written.works, strict=True)):
            operator = node.operator
            sources.append(frozenset().union(*(sources[i] for i in work.inputs)) or frozenset({number}))
            own = not isinstance(operator, RowOperator) or operator.storage is not None
            code = [examine(item) for item in operator.code()]
            own = own or any(each.unknown for each in code)  # what cannot be read may differ
            does = [operator.name, operator.label(), operator.parameters(), [each.parts for each in code]]
            key = graph.digest([*does, sorted(sources[number]), number if own else None])
            alike.append(first.setdefault(key, number))
        return alike

    def _check_columns(self) -> None:
        """Nobody needs a column that is gone; columns keep their types; the same columns come out in the same order."""
        works, columns = self.plan.works, list[frozenset[str] | None]()
        for number, node in enumerate(self.plan.nodes):
            work = works[number]
            below = columns[work.inputs[0]] if len(work.inputs) == 1 else None
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
            columns.append(frozenset(known) if known is not None else _held(node, below))
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
    reached, stack = set[int](), [number]
    while stack:
        at = stack.pop()
        if at not in reached:
            reached.add(at)
            stack += physical.works[at].inputs
    return reached


def _skeleton(physical: Physical, gone: set[int]) -> dict[int, tuple[int, ...]]:
    """Of each stream operator, the stream operators and sources that it draws from, over row operators."""
    below: list[tuple[int, ...]] = []
    drawn: dict[int, tuple[int, ...]] = {}
    for work, node in zip(physical.works, physical.nodes, strict=True):
        inputs = tuple(o for i in work.inputs for o in below[i])
        through = work.ordinal < 0 or isinstance(node.operator, RowOperator) or work.ordinal in gone
        if through and work.inputs:
            below.append(inputs)
            continue
        below.append((work.ordinal,))
        drawn[work.ordinal] = inputs
    return drawn


def _counted(physical: Physical) -> list[frozenset[int]]:
    """Of each node, the stream operators at or below it, as written, that count rows."""
    counted: list[frozenset[int]] = []
    for work, node in zip(physical.works, physical.nodes, strict=True):
        below = frozenset().union(*(counted[i] for i in work.inputs))
        streams = isinstance(node.operator, StreamOperator) and not node.operator.keeps_windows
        grouped = group_size(node) is not None
        counted.append(below | {work.ordinal} if (streams or grouped) and work.ordinal >= 0 else below)
    return counted


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


def first_of(operator: Operator) -> int | None:
    """The units that it takes."""
    return operator.first if isinstance(operator, StreamOperator) else None
