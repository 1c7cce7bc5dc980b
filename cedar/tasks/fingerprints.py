"""Fingerprints: identify what a cached part of a pipeline computes, independent of the plan that computes it.

A record consists of the operators before the cache, in the order in which the user wrote them, and of the output
columns. It does not depend on how a plan orders, fuses or distributes the work. It is saved with its entries, to
explain why a later run finds no entry.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from cedar.core.digests import digest_of, examine
from cedar.core.errors import Skip
from cedar.core.packages import is_library
from cedar.datasets.base import BaseSource, Read
from cedar.datasets.filesource import FileSource
from cedar.operators.base import Operator, RowOperator
from cedar.plan import graph
from cedar.plan.graph import Node, Scan
from cedar.store.blocks import versions

# The identity of the data covers the files, and the policy for bad rows is a separate part of the key.
_EXCLUDED_OF_SOURCES = frozenset({"paths", "manifest", "split_bytes", "storage_options"})
_EXCLUDED_OF_OPERATORS = frozenset({"on_error", "survey"})


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
    """The parts of a key that all splits of a cache share."""

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

    def as_json(self, group: str, data: str, policy: str) -> dict[str, Any]:
        """Return the record, with the other parts of the entries' keys, as JSON."""
        return dataclasses.asdict(self) | {"group": group, "data": data, "policy": policy}


def _row_nodes(node: Node) -> Iterator[Node]:
    """Yield the nodes that process rows, including those inside a scan."""
    for current in graph.walk(node):
        if current.storage is None:
            yield current
        if isinstance(current.operator, Scan):
            yield from current.operator.where


def record_of(node: Node, root: Node | None, version: str | None, known: dict[Any, Any]) -> Record:
    """Return the record of the output of ``node``, a node of the pipeline or of a plan for it.

    Args:
        node: the last cached operator.
        root: the root of the pipeline as written, used to distinguish operators of the plan from the user's.
        version: the user's version, which replaces the digests of the functions; None if not set.
        known: the digests of operators, by operator and version. An operator is described once for a loader, so that
            its digest stays the same if a function changes its closure later.
    """

    def digests(operator: Operator) -> OperatorDigests:
        key = id(operator), version
        if key not in known:
            known[key] = operator, describe(operator, version)  # keeps the operator alive, so that its id stays unique
        found: OperatorDigests = known[key][1]
        return found

    written = {id(n) for n in graph.walk(root)} if root is not None else None
    logical: dict[int, Node] = {}
    changed: list[Operator] = []  # the plan's own operators
    for current in _row_nodes(node):
        if written is not None and id(current.logical) not in written and current.projection is not None:
            continue  # the output columns already include this
        logical.setdefault(id(current.logical), current.logical)
        operator = current.operator
        if operator is not current.logical.operator and not isinstance(operator, Scan):
            changed.append(operator)  # the plan's operator may also do the work of other nodes
    schema = graph.schemas(node)[id(node)]
    columns = None if schema is None else tuple(schema)
    if columns is None:  # the output columns are unknown, so they depend on the plan's operators
        changed += [n.operator for n in _row_nodes(node)]
    nodes = sorted(logical.values(), key=lambda n: sum(1 for _ in graph.walk(n)))  # inputs first
    made = tuple(digests(each.operator) for each in nodes)
    inside = [digests(operator) for operator in changed]
    physical = graph.digest([[each.parameters, each.code] for each in inside]) if inside else ""
    several = sum(1 for each in nodes if not each.inputs) > 1
    unknown = tuple(dict.fromkeys(f"{each.label}: {text}" for each in (*made, *inside) for text in each.unknown))
    return Record(made, columns, physical, versions(), several, unknown, _inputs(nodes))


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
    if not type(operator).__module__.startswith("cedar."):  # the user's own operator, whose kernel is in its class
        functions = (*functions, type(operator))
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
    skipped = None if policy is None else (policy.refill, policy.blocks)
    fields = _fields(operator, _EXCLUDED_OF_OPERATORS)
    return [operator.name, {n: v for n, v in fields.items() if not any(v is f for f in functions)}, skipped]


def _fields(item: Any, excluded: frozenset[str]) -> dict[str, Any]:
    if not dataclasses.is_dataclass(item):
        return {"": item}
    return {f.name: getattr(item, f.name) for f in dataclasses.fields(item) if f.name not in excluded}


def _reading_options(source: BaseSource) -> Any:
    """Return what determines how a source reads: the options of a file source, or the class of a user's source."""
    if isinstance(source, FileSource):
        return [source.reader, _fields(source, _EXCLUDED_OF_SOURCES)]
    kind = type(source.original)
    return kind if not is_library(kind.__module__) else kind.__qualname__


_MAX_DIFFERENCES = 64  # more than any record has
_MAX_CHARACTERS = 2000  # maximum characters of an explanation


def why_missing(records: list[dict[str, Any]], record: dict[str, Any]) -> str:
    """Explain why no entry of a store matches: list the differences from the most similar record."""
    record = json.loads(json.dumps(record))
    if not records:
        return "nothing is kept there yet"
    if any(known.get("group") == record["group"] for known in records):
        return "what was kept there was removed, or made room for others"
    differences = []
    for known in records:
        try:
            operators = _operator_changes(known["operators"], record["operators"])
            differences.append([*operators, *_other_changes(known, record)])
        except (KeyError, TypeError, AttributeError):
            differences.append(["its record cannot be read"] * _MAX_DIFFERENCES)
    nearest = min(reversed(differences), key=len)
    if len(nearest) > max(3, len(record["operators"])):
        return "what is kept there comes from other pipelines"
    text = "".join(c if c.isprintable() else "?" for c in "; ".join(nearest))  # a record may contain anything
    return text[:_MAX_CHARACTERS]


def _operator_changes(known: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    if [o["label"] for o in known] != [o["label"] for o in now]:
        old, new = {o["label"] for o in known}, {o["label"] for o in now}
        news = [f"{', '.join(sorted(n))} is {how}" if n else "" for n, how in ((new - old, "new"), (old - new, "gone"))]
        several = len(old ^ new) or 1
        return [" and ".join(w for w in news if w) or "the operators are in another order"] * several
    changes = []
    for before, after in zip(known, now, strict=True):
        label = after["label"]
        if before["parameters"] != after["parameters"]:
            changes.append(f"the parameters of {label} changed")
        names = sorted(n for n in {*before["code"], *after["code"]} if before["code"].get(n) != after["code"].get(n))
        changes += [f"the {_part_text(name)} of {label} changed" for name in names]
    return changes


def _part_text(part: str) -> str:
    kind, _, name = part.partition(" ")
    if kind == "closure":
        return f"value of {name!r}, which the function closes over,"
    return f"global {name!r}" if kind == "global" else part


def _other_changes(known: dict[str, Any], now: dict[str, Any]) -> list[str]:
    changes = ["the data changed (other files, sizes or times of change)"] if known["data"] != now["data"] else []
    before, after = known["versions"], now["versions"]
    changes += [f"{name} was {before.get(name)}, is {after[name]}" for name in after if before.get(name) != after[name]]
    if known["policy"] != now["policy"]:
        changes.append("on_error changed")
    if known.get("inputs", []) != now["inputs"]:
        changes.append("the operators are connected in another way")
    if known["physical"] != now["physical"]:
        changes.append("the plan computes it in another way")
    return changes
