"""Fingerprints: what a kept sub-plan computes, whatever the plan that computes it.

A fingerprint is made of the operators of the pipeline as written whose work is done below the cache, in the order in
which they were written, and of the columns that come out. How a plan orders, fuses or places that work is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cedar import graph
from cedar.datasets.base import Read
from cedar.datasets.filesource import FileSource
from cedar.digests import digest_of, parts_of
from cedar.execution.keeping.entries import versions
from cedar.graph import Node
from cedar.operators.base import Operator, RowOperator
from cedar.operators.cache import Cache
from cedar.operators.expressions import Select
from cedar.plan.scan import Scan
from cedar.references import is_library

_KNOBS = frozenset({"paths", "split_bytes", "on_error"})  # the identity of the data has the files; policies are apart


@dataclass(frozen=True)
class Made:
    """What an operator does: digests of its parameters, and of each part of its functions."""

    label: str
    parameters: str
    code: dict[str, str]


@dataclass(frozen=True)
class Record:
    """The parts of a key that all splits of a cache share, kept beside the entries to tell why a later one differs."""

    operators: tuple[Made, ...]
    columns: tuple[str, ...] | None
    physical: str
    versions: dict[str, str]
    several: bool  # several sources lie below, which number their rows

    def key(self) -> list[Any]:
        """What is hashed; columns are no part of it: an entry serves whoever needs some of its columns."""
        operators = [[m.parameters, m.code] for m in self.operators]
        return [self.versions, operators, self.physical]


@dataclass(frozen=True)
class Fingerprint:
    """The nodes below a cache, to be described when they are first needed."""

    nodes: tuple[Node, ...]  # as written, inputs first
    columns: tuple[str, ...] | None
    physical: tuple[Operator, ...] = field(repr=False, default=())

    def __reduce__(self) -> tuple[Any, ...]:
        return Fingerprint, ((), self.columns)  # a worker gets the record that was made of it


def fingerprint(node: Node, root: Node | None = None) -> Fingerprint:
    """What comes out of ``node``, a node of the pipeline or of a plan for it.

    Args:
        node: the last operator whose results are kept.
        root: of the pipeline as written; tells what a plan inserted from what the user wrote.
    """
    written = {id(n) for n in graph.walk(root)} if root is not None else None
    logical: dict[int, Node] = {}
    physical: list[Operator] = []
    for current in _working(node):
        if written is not None and id(current.logical) not in written and _drops(current.operator):
            continue  # the columns that come out tell as much
        logical.setdefault(id(current.logical), current.logical)
        operator = current.operator
        if operator is not current.logical.operator and not isinstance(operator, Scan):
            physical.append(operator)  # it may do more than the work of its own node
    columns = _columns(node)
    if columns is None:  # then only the plan itself can tell what comes out
        physical += [n.operator for n in _working(node)]
    ordered = sorted(logical.values(), key=lambda n: sum(1 for _ in graph.walk(n)))
    return Fingerprint(tuple(ordered), columns, tuple(physical))


def _drops(operator: Operator) -> bool:
    """It does no more than to leave columns out, or to put them in another order."""
    return isinstance(operator, Select) and not operator.code()


def _working(node: Node) -> Iterator[Node]:
    """The nodes that do something to rows, those inside a scan too."""
    for current in graph.walk(node):
        if not isinstance(current.operator, Cache):
            yield current
        if isinstance(current.operator, Scan):
            yield from current.operator.where


def _columns(node: Node) -> tuple[str, ...] | None:
    known = graph.schemas(node)[id(node)]
    return None if known is None else tuple(known)


class Describer:
    """Describes each operator once: a function that counts its calls in a list it closes over stays what it was."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Operator, Made]] = {}  # the operator is held, so that no other gets its id

    def __call__(self, given: Fingerprint) -> Record:
        made = tuple(self._made(node.operator) for node in given.nodes)
        physical = [[m.parameters, m.code] for m in map(self._made, given.physical)]
        several = sum(1 for node in given.nodes if not node.inputs) > 1
        return Record(made, given.columns, graph.digest(physical) if physical else "", versions(), several)

    def _made(self, operator: Operator) -> Made:
        if id(operator) not in self._known:
            self._known[id(operator)] = (operator, describe(operator))
        return self._known[id(operator)][1]


def describe(operator: Operator) -> Made:
    """What an operator does."""
    if isinstance(operator, Read):
        return Made(operator.label(), _reading(operator.source), {})
    code: dict[str, str] = {}
    functions = operator.code()
    for number, item in enumerate(functions):
        prefix = f"{number} " if len(functions) > 1 else ""
        code |= {prefix + name: value for name, value in parts_of(item).items()}
    policy = operator.policy() if isinstance(operator, RowOperator) else None
    refill = None if policy is None else policy.refill
    fields = {name: v for name, v in _fields(operator).items() if not any(v is item for item in functions)}
    return Made(operator.label(), digest_of([operator.name, fields, refill]), code)


def _fields(item: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(item):
        return {"": item}
    return {f.name: getattr(item, f.name) for f in dataclasses.fields(item) if f.name not in _KNOBS}


def _reading(source: Any) -> str:
    """How a source reads: the options of one over files, the code of a user's own."""
    if isinstance(source, FileSource):
        return digest_of([source.reader, _fields(source)])
    kind = type(getattr(source, "inner", source))
    return digest_of(kind) if not is_library(kind.__module__) else kind.__qualname__
