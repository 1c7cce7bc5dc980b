"""Fits: whether a saved plan is one of this pipeline, and does all of its work once.

What can be seen from the graph alone is checked here; whether operators may stand in another order is for the rules of
the optimizer to say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cedar import graph
from cedar.datasets.base import Read
from cedar.digests import digest_of, examine
from cedar.errors import PlanError
from cedar.graph import Node, walk
from cedar.operators.base import Operator, RowOperator
from cedar.operators.cache import Cache
from cedar.operators.columns_ops import Drop, Rename
from cedar.operators.expression_steps import never_fails
from cedar.operators.expressions import WithColumns
from cedar.operators.take import Take
from cedar.plan.entries import filters_of
from cedar.plan.scan import Scan

_LONG = 200  # parameters of more characters are written as a digest
_AGAIN = "optimize this pipeline and save that plan"


def operator_entries(logical: Sequence[Node]) -> list[dict[str, Any]]:
    """The pipeline as written, an entry per operator: what a plan was made for."""
    ordinals = {id(node): i for i, node in enumerate(logical)}
    found = []
    for number, node in enumerate(logical):
        operator, effects = node.operator, node.operator.effects()
        entry: dict[str, Any] = {"op": number, "is": operator.label()}
        if node.inputs:
            entry["inputs"] = [ordinals[id(child)] for child in node.inputs]
            entry["parameters"] = _parameters(operator)
            if not entry["parameters"]:
                del entry["parameters"]
        if effects.rows != "stream" and node.inputs:
            entry["reads"] = None if effects.reads is None else sorted(effects.reads)
            entry["writes"] = None if effects.writes is None else sorted(effects.writes)
            entry["rows"] = effects.rows
            entry |= {"random": True} if effects.random else {}
            entry |= {"keeps": sorted(effects.keeps)} if effects.keeps is not None else {}
            entry |= {"algebra": effects.algebra} if effects.algebra is not None else {}
        if operator.code():
            entry["code"] = graph.digest([digest_of(item, data=False) for item in operator.code()])
        found.append(entry)
    return found


def _parameters(operator: Operator) -> Any:
    text = json.dumps(operator.parameters(), sort_keys=True, default=repr)
    return json.loads(text) if len(text) <= _LONG else graph.digest(text)


def check_pipeline(saved: Sequence[Mapping[str, Any]], logical: Sequence[Node]) -> list[str]:
    """Compares operator by operator; the labels of those whose code changed.

    Raises:
        PlanError: the first operator that is another one, or is connected in another way.
    """
    changed = []
    for number, mine in enumerate(operator_entries(logical)):
        node = logical[number]
        if number >= len(saved):
            raise PlanError(
                f"the plan is of a pipeline of {len(saved)} operators; this one has {mine['is']} besides",
                site=node.site,
                fix=_AGAIN,
            )
        theirs = saved[number]
        _compare(number, theirs, mine, node)
        if theirs.get("code") != mine.get("code"):
            changed.append(str(mine["is"]))
    if len(saved) > len(logical):
        extra = saved[len(logical)].get("is")
        raise PlanError(
            f"operator {len(logical)} of the plan is {extra}; the pipeline has only {len(logical)} operators",
            site=logical[-1].site,
            fix=_AGAIN,
        )
    return changed


def _compare(number: int, theirs: Mapping[str, Any], mine: Mapping[str, Any], node: Node) -> None:
    if _kind(str(theirs.get("is"))) != _kind(str(mine["is"])):
        raise PlanError(
            f"operator {number} of the plan is {theirs.get('is')}, the pipeline has {mine['is']} there",
            site=node.site,
            fix=_AGAIN,
        )
    for key, what in (
        ("inputs", "draws from operators"), ("parameters", "has the parameters"), ("reads", "reads"),
        ("writes", "writes"), ("rows", "gives rows"), ("random", "is random:"), ("keeps", "keeps"),
        ("algebra", "has the algebra"),
    ):  # fmt: skip
        if theirs.get(key) != mine.get(key):
            raise PlanError(
                f"operator {number}, {mine['is']}, {what} {_said(key, mine)}; in the plan {_said(key, theirs)}",
                site=node.site,
                fix=_AGAIN,
            )


def _kind(label: str) -> str:
    """``map`` of ``map(decode)``: functions, values and places may have other names."""
    return label.partition("(")[0]


def _said(key: str, entry: Mapping[str, Any]) -> str:
    value = entry.get(key)
    if value is None and key in ("reads", "writes"):
        return "the whole row"
    return f"{value!r:.200}"


# ---- the graph -------------------------------------------------------------------------------------------------------


def check_graph(root: Node, logical: Sequence[Node]) -> None:
    """Every operator once, on the same way from the same sources, between the same stream operators.

    Raises:
        PlanError: the first operator that is left out, done twice, or stands where it cannot.
    """
    work = _Work(root, logical)
    work.check_once()
    work.check_left_out()
    work.check_takes()
    work.check_ways()
    _check_columns(root, logical)


class _Work:
    """Which node of a plan does the work of which operator."""

    def __init__(self, root: Node, logical: Sequence[Node]) -> None:
        self.nodes = list(walk(root))
        self.logical = logical
        self._ordinals = {id(node): i for i, node in enumerate(logical)}
        self._alike = _alike(logical)
        self._numbers = {id(node): i for i, node in enumerate(self.nodes)}
        self.done: dict[int, list[Node]] = {}
        for node in self.nodes:
            for worker in (node, *filters_of(node)):
                ordinal = self._ordinals.get(id(worker.logical))
                if ordinal is not None:
                    self.done.setdefault(ordinal, []).append(node)
        self.left_out = [i for i in range(len(logical)) if i not in self.done]

    def _name(self, ordinal: int) -> str:
        return f"operator {ordinal}, {self.logical[ordinal].operator.label()}"

    def check_once(self) -> None:
        """Twice only on different ways: a row must not pass an operator twice."""
        for ordinal, nodes in self.done.items():
            if len(nodes) < 2:
                continue
            node = self.logical[ordinal]
            below = [{id(n) for n in walk(one)} for one in nodes]
            twice = len({id(n) for n in nodes}) < len(nodes) or any(
                id(a) in below[j] for i, a in enumerate(nodes) for j in range(len(nodes)) if i != j
            )
            if twice or not isinstance(node.operator, RowOperator):
                where = " and ".join(str(self._numbers[id(n)]) for n in nodes[:2])
                raise PlanError(
                    f"{self._name(ordinal)}, is twice in the plan, in its nodes {where}",
                    site=node.site,
                    fix="leave one of them out",
                )

    def check_left_out(self) -> None:
        """Left out may be what has no effect on any row."""
        for ordinal in self.left_out:
            if not self._idle(ordinal):
                raise PlanError(
                    f"the plan leaves out {self._name(ordinal)}",
                    site=self.logical[ordinal].site,
                    fix="put it back, or " + _AGAIN,
                )

    def _idle(self, ordinal: int) -> bool:
        operator = self.logical[ordinal].operator
        if isinstance(operator, Cache):
            return True
        if any(self._alike[other] == self._alike[ordinal] for other in self.done):
            return True  # computed once for both
        if isinstance(operator, Take):
            return any(isinstance(n.operator, Take) and n.operator.n <= operator.n for n in self.nodes)
        if isinstance(operator, WithColumns):
            types = graph.schemas(self.logical[-1])[id(self.logical[ordinal].inputs[0])]
            return all(never_fails(expr, types) for _, expr in operator.items)
        return isinstance(operator, Drop | Rename)  # whether its columns were needed, the columns that come out tell

    def check_takes(self) -> None:
        """A take that stands for several takes the least of their numbers."""
        gone = [self.logical[i].operator for i in self.left_out]
        for ordinal, nodes in self.done.items():
            operator, written = nodes[0].operator, self.logical[ordinal].operator
            if isinstance(operator, Take) and isinstance(written, Take) and operator.n != written.n:
                numbers = [written.n, *(other.n for other in gone if isinstance(other, Take))]
                if operator.n != min(numbers):
                    raise PlanError(
                        f"{self._name(ordinal)}, takes {operator.n} in the plan, not the least of {_some(numbers)}",
                        site=self.logical[ordinal].site,
                        fix=_AGAIN,
                    )

    def check_ways(self) -> None:
        """The rows of a source pass the same operators, and the stream operators draw from one another as written."""
        gone = set(self.left_out)
        want, have = self._above(self.logical), self._above(self.nodes)
        for source, ordinals in want.items():
            wrong = (ordinals ^ have.get(source, set())) - gone
            if wrong:
                raise PlanError(
                    f"in the plan, other rows pass {self._name(min(wrong))}, than in the pipeline",
                    site=self.logical[min(wrong)].site,
                    fix=_AGAIN,
                )
        mine, theirs = self._skeleton(self.nodes, gone), self._skeleton(self.logical, gone)
        for ordinal, below in theirs.items():
            if mine.get(ordinal, below) != below:
                names = ", ".join(self.logical[o].operator.label() for o in below)
                raise PlanError(
                    f"in the plan, {self._name(ordinal)}, does not draw from {names} as in the pipeline",
                    site=self.logical[ordinal].site,
                    fix=_AGAIN,
                )

    def _above(self, nodes: Sequence[Node]) -> dict[int, set[int]]:
        """Of each source, the operators that its rows pass; operators alike count as one."""
        passed: dict[int, set[int]] = {}
        sources: dict[int, set[int]] = {}
        for node in nodes:
            here = {self._ordinals.get(id(n.logical)) for n in (node, *filters_of(node))} - {None}
            below = {source for child in node.inputs for source in sources[id(child)]}
            sources[id(node)] = below or {o for o in here if o is not None and not self.logical[o].inputs}
            for source in sources[id(node)]:
                passed.setdefault(source, set()).update(self._alike[o] for o in here if o is not None)
        return passed

    def _skeleton(self, nodes: Sequence[Node], gone: set[int]) -> dict[int, tuple[int, ...]]:
        """Of each stream operator, the stream operators and sources that it draws from, over row operators."""
        below: dict[int, tuple[int, ...]] = {}
        found: dict[int, tuple[int, ...]] = {}
        for node in nodes:
            ordinal = self._ordinals.get(id(node.logical))
            inputs = tuple(o for child in node.inputs for o in below[id(child)])
            through = ordinal is None or isinstance(node.operator, RowOperator) or ordinal in gone
            if through and not isinstance(node.operator, Read):
                below[id(node)] = inputs
                continue
            number = -1 if ordinal is None else ordinal
            below[id(node)] = (number,)
            found[number] = inputs
        return found


def _some(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values[:12]))


def _alike(logical: Sequence[Node]) -> list[int]:
    """Of each operator, the first that does the same on rows of the same sources; itself mostly."""
    first: dict[str, int] = {}
    found: list[int] = []
    sources: dict[int, frozenset[int]] = {}
    for number, node in enumerate(logical):
        operator = node.operator
        sources[id(node)] = frozenset().union(*(sources[id(child)] for child in node.inputs)) or frozenset({number})
        own = not isinstance(operator, RowOperator) or isinstance(operator, Cache)
        code = [examine(item) for item in operator.code()]
        own = own or any(each.unknown for each in code)  # what cannot be read may differ
        work = [operator.name, operator.label(), operator.parameters(), [each.parts for each in code]]
        key = graph.digest([*work, sorted(sources[id(node)]), number if own else None])
        found.append(first.setdefault(key, number))
    return found


def _check_columns(root: Node, logical: Sequence[Node]) -> None:
    """Nobody needs a column that is gone, and the same columns come out as far as they are known."""
    held: dict[int, frozenset[str] | None] = {}
    schemas: dict[int, Any] = {}
    for number, node in enumerate(walk(root)):
        below = held[id(node.inputs[0])] if node.inputs else None
        needs = node.operator.effects().reads
        if isinstance(node.operator, Scan):
            given = Read(node.operator.source).schema()
            needs, below = _tops(node.operator.columns or (), given), None if given is None else frozenset(given)
        lost = sorted((needs or frozenset()) - below) if below is not None else []
        if lost:
            raise _unknown_column(number, node, lost[0], below)
        try:
            schemas[id(node)] = node.operator.schema(*(schemas[id(child)] for child in node.inputs))
        except Exception as error:
            raise PlanError(
                f"node {number} of the plan, {node.operator.label()}: {getattr(error, 'what', error)}",
                site=node.logical.site,
                fix=_AGAIN,
            ) from error
        known = schemas[id(node)]
        held[id(node)] = frozenset(known) if known is not None else _held(node, below)
    want, have = graph.schemas(logical[-1])[id(logical[-1])], schemas[id(root)]
    if want is not None and have is not None and list(want) != list(have):
        names = [a for a, b in zip([*want, None], [*have, None], strict=False) if a != b]
        raise PlanError(
            f"the columns that come out of the plan are not those of the pipeline: {', '.join(have)} "
            f"instead of {', '.join(want)} (the first difference is at {names[0]!r})",
            site=logical[-1].site,
            fix=_AGAIN,
        )


def _tops(names: Sequence[str], known: Any) -> frozenset[str]:
    """The columns that names stand for: a column's own, or ``a.b``, a field of column ``a``."""
    return frozenset(name if name in (known or names) else name.partition(".")[0] for name in names)


def _held(node: Node, below: frozenset[str] | None) -> frozenset[str] | None:
    """The columns that can be there behind a node whose schema is not known."""
    if isinstance(node.operator, Scan) and node.operator.columns is not None:
        return _tops(node.operator.columns, None)
    effects = node.operator.effects()
    if below is None or effects.writes is None or len(node.inputs) != 1:
        return None
    return (below if effects.keeps is None else below & effects.keeps) | effects.writes


def _unknown_column(number: int, node: Node, name: str, known: frozenset[str] | None) -> PlanError:
    return PlanError(
        f"node {number} of the plan, {node.operator.label()}, needs column {name!r}, which is not there; "
        f"there are {_some(sorted(known or ()))}",
        site=node.logical.site,
        fix="keep the column in the plan, or " + _AGAIN,
    )
