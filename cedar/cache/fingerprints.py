"""Fingerprints: what a kept sub-plan computes, whatever the plan that computes it.

A fingerprint is made of the operators of the pipeline as written whose work is done below the cache, in the order in
which they were written, and of the columns that come out. How a plan orders, fuses or places that work is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from cedar.cache.entries import versions
from cedar.core.digests import digest_of, examine
from cedar.core.packages import is_library
from cedar.core.skip import Skip
from cedar.datasets.base import Read
from cedar.datasets.filesource import FileSource
from cedar.operators.base import Operator, RowOperator
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.scan import Scan

# The identity of the data has the files; policies are apart.
_KNOBS = frozenset({"paths", "manifest", "split_bytes", "on_error", "storage_options", "survey"})


@dataclass(frozen=True)
class OperatorDigests:
    """What an operator does: digests of its parameters, and of each part of its functions.

    Where these do not stand for all of it (``unknown``), they are this loader's alone.
    """

    label: str
    parameters: str
    code: dict[str, str]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """The parts of a key that all splits of a cache share, kept next to the entries to tell why a later one differs."""

    operators: tuple[OperatorDigests, ...]
    columns: tuple[str, ...] | None
    physical: str
    versions: dict[str, str]
    several: bool  # several sources are below, which number their rows
    unknown: tuple[
        str, ...
    ] = ()  # objects whose state cannot be read: another run cannot know that its own are the same

    def key(self) -> list[Any]:
        """What is hashed; columns are no part of it: an entry serves any code that needs some of its columns."""
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
    return operator.projection is not None


def _working(node: Node) -> Iterator[Node]:
    """The nodes that do something to rows, those inside a scan too."""
    for current in graph.walk(node):
        if current.operator.storage is None:
            yield current
        if isinstance(current.operator, Scan):
            yield from current.operator.where


def _columns(node: Node) -> tuple[str, ...] | None:
    known = graph.schemas(node)[id(node)]
    return None if known is None else tuple(known)


class Describer:
    """Describes each operator once: a function that counts its calls in a list it closes over stays what it was."""

    def __init__(self) -> None:
        # The operator is held, so that no other gets its id.
        self._known: dict[tuple[int, str | None], tuple[Operator, OperatorDigests]] = {}

    def __call__(self, given: Fingerprint, version: str | None = None) -> Record:
        made = tuple(self._made(node.operator, version) for node in given.nodes)
        inside = [self._made(operator, version) for operator in given.physical]
        physical = [[m.parameters, m.code] for m in inside]
        several = sum(1 for node in given.nodes if not node.inputs) > 1
        unknown = tuple(dict.fromkeys(f"{m.label}: {text}" for m in (*made, *inside) for text in m.unknown))
        return Record(made, given.columns, graph.digest(physical) if physical else "", versions(), several, unknown)

    def _made(self, operator: Operator, version: str | None) -> OperatorDigests:
        key = id(operator), version
        if key not in self._known:
            self._known[key] = (operator, describe(operator, version))
        return self._known[key][1]


def key_of(node: Node, on_error: Skip | None, *asked: object) -> str | None:
    """Identifies the rows of a node under a policy, and what is asked of them; None if a part cannot be identified."""
    record = Describer()(fingerprint(node, node))
    sources = [each.operator.source for each in graph.sources(node) if isinstance(each.operator, Read)]
    identities = [source.identity() if hasattr(source, "identity") else None for source in sources]
    if record.unknown or any(identity is None for identity in identities):
        return None
    return digest_of([record.key(), record.several, identities, repr(on_error), *map(repr, asked)])[:32]


def describe(operator: Operator, version: str | None = None) -> OperatorDigests:
    """What an operator does; ``version`` stands for its functions, and for whatever in them cannot be read."""
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
        _reading(operator.source) if isinstance(operator, Read) else _parameters(operator), "parameters"
    )
    unknown += parameters.unknown
    if unknown and version is None:
        code["what cannot be read"] = uuid4().hex
    made = digest_of(sorted(parameters.parts.items()))
    return OperatorDigests(operator.label(), made, code, tuple(unknown) if version is None else ())


def _parameters(operator: Operator) -> Any:
    functions = operator.code()
    policy = operator.policy() if isinstance(operator, RowOperator) else None
    refill = None if policy is None else policy.refill
    return [operator.name, {n: v for n, v in _fields(operator).items() if not any(v is f for f in functions)}, refill]


def _fields(item: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(item):
        return {"": item}
    return {f.name: getattr(item, f.name) for f in dataclasses.fields(item) if f.name not in _KNOBS}


def _reading(source: Any) -> Any:
    """How a source reads: the options of one over files, the code of a user's own."""
    if isinstance(source, FileSource):
        return [source.reader, _fields(source)]
    kind = type(getattr(source, "inner", source))
    return kind if not is_library(kind.__module__) else kind.__qualname__
