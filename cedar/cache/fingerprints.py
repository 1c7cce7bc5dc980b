"""Fingerprints: identify what a cached part of a pipeline computes, independent of the plan that computes it.

A fingerprint consists of the operators before the cache, in the order in which the user wrote them, and of the output
columns. It does not depend on how a plan orders, fuses or distributes the work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from cedar.cache.entries import versions
from cedar.core.digests import digest_of, examine
from cedar.core.packages import is_library
from cedar.core.skip import Skip
from cedar.datasets.base import BaseSource, Read
from cedar.datasets.filesource import FileSource
from cedar.operators.base import Operator, RowOperator
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.scan import Scan

# The identity of the data covers the files, and the policy for bad rows is a separate part of the key.
_EXCLUDED_FIELDS = frozenset({"paths", "manifest", "split_bytes", "on_error", "storage_options", "survey"})


@dataclass(frozen=True)
class OperatorDigests:
    """Digests of an operator's parameters, and of each part of its functions.

    If ``unknown`` is not empty, the digests are incomplete and only valid in this loader.
    """

    label: str
    parameters: str
    code: dict[str, str]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """The parts of a key that all splits of a cache share. It is saved with the entries, to explain later misses."""

    operators: tuple[OperatorDigests, ...]
    columns: tuple[str, ...] | None
    physical: str
    versions: dict[str, str]
    several: bool  # the cache has several sources, whose row numbers overlap
    unknown: tuple[str, ...] = ()  # objects that another run cannot recognize, since their state cannot be read
    inputs: tuple[tuple[int, ...], ...] = ()  # see ``_inputs``

    def key(self) -> list[Any]:
        """Return the parts to hash, without columns, since a run can use entries with more columns than it needs."""
        operators = [[m.parameters, m.code] for m in self.operators]
        return [self.versions, operators, self.physical, *([self.inputs] if self.inputs else [])]


@dataclass(frozen=True)
class Fingerprint:
    """The nodes whose output is cached. They are described when first needed."""

    nodes: tuple[Node, ...]  # as the user wrote them, inputs first
    columns: tuple[str, ...] | None
    physical: tuple[Operator, ...] = field(repr=False, default=())

    def __reduce__(self) -> tuple[Any, ...]:
        return Fingerprint, ((), self.columns)  # workers receive the record instead of the nodes


def fingerprint(node: Node, root: Node | None = None) -> Fingerprint:
    """Return the fingerprint of the output of ``node``, a node of the pipeline or of a plan for it.

    Args:
        node: the last cached operator.
        root: the root of the pipeline as written, used to distinguish operators of the plan from the user's.
    """
    written = {id(n) for n in graph.walk(root)} if root is not None else None
    logical: dict[int, Node] = {}
    physical: list[Operator] = []
    for current in _row_nodes(node):
        if written is not None and id(current.logical) not in written and current.projection is not None:
            continue  # the output columns already include this
        logical.setdefault(id(current.logical), current.logical)
        operator = current.operator
        if operator is not current.logical.operator and not isinstance(operator, Scan):
            physical.append(operator)  # the plan's operator may also do the work of other nodes
    columns = _columns(node)
    if columns is None:  # the output columns are unknown, so they depend on the plan's operators
        physical += [n.operator for n in _row_nodes(node)]
    ordered = sorted(logical.values(), key=lambda n: sum(1 for _ in graph.walk(n)))
    return Fingerprint(tuple(ordered), columns, tuple(physical))


def _row_nodes(node: Node) -> Iterator[Node]:
    """Yield the nodes that process rows, including those inside a scan."""
    for current in graph.walk(node):
        if current.storage is None:
            yield current
        if isinstance(current.operator, Scan):
            yield from current.operator.where


def _columns(node: Node) -> tuple[str, ...] | None:
    known = graph.schemas(node)[id(node)]
    return None if known is None else tuple(known)


class Describer:
    """Describes each operator once, so that its digest stays the same if a function changes its closure later."""

    def __init__(self) -> None:
        # The value keeps the operator alive, so that no other object gets its id.
        self._known: dict[tuple[int, str | None], tuple[Operator, OperatorDigests]] = {}

    def __call__(self, given: Fingerprint, version: str | None = None) -> Record:
        made = tuple(self._described(node.operator, version) for node in given.nodes)
        inside = [self._described(operator, version) for operator in given.physical]
        physical = [[m.parameters, m.code] for m in inside]
        several = sum(1 for node in given.nodes if not node.inputs) > 1
        unknown = tuple(dict.fromkeys(f"{m.label}: {text}" for m in (*made, *inside) for text in m.unknown))
        inside_digest = graph.digest(physical) if physical else ""
        return Record(made, given.columns, inside_digest, versions(), several, unknown, _inputs(given.nodes))

    def _described(self, operator: Operator, version: str | None) -> OperatorDigests:
        key = id(operator), version
        if key not in self._known:
            self._known[key] = (operator, describe(operator, version))
        return self._known[key][1]


def _inputs(nodes: Sequence[Node]) -> tuple[tuple[int, ...], ...]:
    """Return the indices of the nodes that each node reads; () if each node reads only the one before it."""
    places = {id(node): place for place, node in enumerate(nodes)}

    def nearest(node: Node) -> tuple[int, ...]:
        node = node.logical
        return (places[id(node)],) if id(node) in places else below(node)

    def below(node: Node) -> tuple[int, ...]:
        return tuple(place for child in node.inputs for place in nearest(child))

    found = tuple(map(below, nodes))
    return found if any(inputs != (place - 1,) for place, inputs in enumerate(found) if place) else ()


def key_of(root: Node, on_error: Skip | None, *asked: object) -> str | None:
    """Return a digest of a pipeline's rows, the policy and the other arguments; None if a part cannot be identified."""
    nodes = [node for node in graph.walk(root) if node.storage is None]
    described = [describe(node.operator) for node in nodes]
    identities = [node.operator.source.identity() for node in nodes if isinstance(node.operator, Read)]
    if None in identities or any(each.unknown for each in described):
        return None
    operators = [[each.parameters, each.code] for each in described]
    return digest_of([versions(), operators, _inputs(nodes), identities, repr(on_error), *map(repr, asked)])[:32]


def describe(operator: Operator, version: str | None = None) -> OperatorDigests:
    """Describe what an operator does; ``version`` replaces the digests of its functions."""
    code: dict[str, str] = {}
    unknown: list[str] = []
    functions = () if isinstance(operator, Read) else operator.code()
    for number, item in enumerate(functions):
        if version is not None and not hasattr(item, "meta"):
            code["version"] = version
            continue
        examined = examine(item)
        prefix = f"{number} " if len(functions) > 1 else ""
        code |= {prefix + name: value for name, value in examined.parts.items()}
        unknown += examined.unknown
    parameters = examine(
        _reading_options(operator.source) if isinstance(operator, Read) else _parameters(operator), "parameters"
    )
    unknown += parameters.unknown
    if unknown and version is None:
        code["what cannot be read"] = uuid4().hex
    made = digest_of(sorted(parameters.parts.items()))
    return OperatorDigests(operator.label(), made, code, tuple(unknown) if version is None else ())


def _parameters(operator: Operator) -> Any:
    functions = operator.code()
    policy = operator.on_error if isinstance(operator, RowOperator) else None
    refill = None if policy is None else policy.refill
    return [operator.name, {n: v for n, v in _fields(operator).items() if not any(v is f for f in functions)}, refill]


def _fields(item: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(item):
        return {"": item}
    return {f.name: getattr(item, f.name) for f in dataclasses.fields(item) if f.name not in _EXCLUDED_FIELDS}


def _reading_options(source: BaseSource) -> Any:
    """Return what determines how a source reads: the options of a file source, or the class of a user's source."""
    if isinstance(source, FileSource):
        return [source.reader, _fields(source)]
    kind = type(source.original)
    return kind if not is_library(kind.__module__) else kind.__qualname__
