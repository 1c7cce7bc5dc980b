"""Entries: the nodes of a plan as plain data, and back.

An entry names an operator of the pipeline as written by its ordinal and says only what the plan changed of it, so that
a saved plan holds no function and no data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from cedar.core.errors import PlanError
from cedar.core.redact import redact_url
from cedar.datasets.base import Read
from cedar.operators.base import Operator
from cedar.operators.cache import Cache
from cedar.operators.expressions import Select
from cedar.plan.graph import Node, walk
from cedar.plan.places import kind
from cedar.plan.places import place as place_at
from cedar.plan.scan import Scan

_CACHES = ("auto", "memory")


def entries_of(root: Node, logical: Sequence[Node]) -> list[dict[str, Any]]:
    """The entries of a graph, inputs first.

    Raises:
        PlanError: a node that text cannot say: an operator changed in a way that no rule changes it.
    """
    ordinals = {id(node): i for i, node in enumerate(logical)}
    numbers: dict[int, int] = {}
    entries = []
    for node in walk(root):
        number = numbers[id(node)] = len(numbers)
        ordinal = ordinals.get(id(node.logical))
        entry: dict[str, Any] = {"id": number}
        if ordinal is None:
            entry |= _inserted(node, number)
        else:
            entry |= {"op": ordinal, "is": logical[ordinal].operator.label()}
            entry |= _changes(node.operator, logical[ordinal].operator, ordinals, number)
        if node.inputs:
            entry["inputs"] = [numbers[id(child)] for child in node.inputs]
        if node.place:
            entry["place"] = kind(node.place)
        entries.append(entry)
    return entries


def _inserted(node: Node, number: int) -> dict[str, Any]:
    """What the optimizer put in."""
    operator = node.operator
    if operator.storage in _CACHES:
        return {"cache": operator.storage}
    if getattr(operator, "layout", False):  # a plan names no folder: what it keeps, it keeps in memory
        return {"cache": "auto"}
    if operator.projection is not None:
        return {"keep": list(operator.projection)}
    raise _unspeakable(number, operator, "belongs to no operator of the pipeline")


def _changes(operator: Operator, written: Operator, ordinals: Mapping[int, int], number: int) -> dict[str, Any]:
    """How a node's operator differs from the one in the pipeline as written."""
    if operator is written:
        return {}
    if isinstance(operator, Scan) and isinstance(written, Read) and operator.source is written.source:
        return _scan(operator, ordinals, number)
    if type(operator) is not type(written) or not dataclasses.is_dataclass(operator):
        raise _unspeakable(number, operator, f"stands for {written.label()}, which is of another kind")
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(operator):
        mine, theirs = getattr(operator, field.name), getattr(written, field.name)
        if _same(mine, theirs):
            continue
        change = operator.plan_changes.get(field.name)
        if change is None:
            raise _unspeakable(number, operator, f"has another {field.name} than in the pipeline")
        parts = change == "parts"
        changed[field.name] = [_place_of(item, theirs, number, operator) for item in mine] if parts else mine
    return changed


def _scan(operator: Scan, ordinals: Mapping[int, int], number: int) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    if operator.columns is not None:
        changed["columns"] = list(operator.columns)
    if operator.where:
        filters = [ordinals.get(id(node.logical)) for node in operator.where]
        if any(n is None or node.operator is not node.logical.operator
               for n, node in zip(filters, operator.where, strict=True)):  # fmt: skip
            raise _unspeakable(number, operator, "reads with a filter that is not in the pipeline")
        changed["where"] = filters
    return changed


def _place_of(item: Any, items: Sequence[Any], number: int, operator: Operator) -> int:
    """Which of the items it is."""
    index = next((i for i, other in enumerate(items) if _same(item, other)), None)
    if index is None:
        raise _unspeakable(number, operator, "does something that is not in the pipeline")
    return index


def _same(a: Any, b: Any) -> bool:
    """Equal, where that can be told: expressions are equal only to themselves."""
    if a is b:
        return True
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # noqa: BLE001 - arrays and expressions refuse to be a bool
        return False


def _unspeakable(number: int, operator: Operator, why: str) -> PlanError:
    return PlanError(
        f"the plan cannot be saved: its node {number}, {operator.label()}, {why}",
        fix="save a plan that p.optimize() made, or leave out what changed it since",
    )


# ---- back ------------------------------------------------------------------------------------------------------------


def graph_of(entries: Sequence[Mapping[str, Any]], logical: Sequence[Node], cluster: Any = None) -> Node:
    """The graph that entries describe; its operators are those of the pipeline, or made from them.

    Args:
        cluster: the caller's: an address, a Dask client, or None.

    Raises:
        PlanError: an entry that cannot be, or an operator that cannot be changed as it says.
    """
    built: list[Node] = []
    for number, entry in enumerate(entries):
        if entry.get("id") != number:
            raise PlanError(
                f"node {number} of the plan has the id {entry.get('id')!r}",
                fix="number the nodes from 0, each behind its inputs",
            )
        inputs = tuple(built[i] for i in ordinals_in(entry, "inputs", number, number))
        built.append(_node(entry, number, inputs, logical, cluster))
    if not built:
        raise PlanError("the plan has no nodes", fix="save it again")
    reached = {id(node) for node in walk(built[-1])}
    for number, node in enumerate(built):
        if id(node) not in reached:
            raise PlanError(
                f"node {number} of the plan, {node.operator.label()}, leads nowhere: no node draws from it",
                fix="save the plan again, or make it the input of another node",
            )
    return built[-1]


def _node(
    entry: Mapping[str, Any], number: int, inputs: tuple[Node, ...], logical: Sequence[Node], cluster: Any
) -> Node:
    place = place_at(entry.get("place", ""), cluster, f"the 'place' of node {number}")
    if "op" not in entry:
        return _new(entry, number, inputs, place)
    ordinal = ordinal_in(entry, "op", number, len(logical))
    written = logical[ordinal]
    try:
        operator = _operator(entry, number, written, logical)
        same = operator is written.operator and not place
        if same and len(inputs) == len(written.inputs) and all(map(_is, inputs, written.inputs)):
            return written
        return Node(operator, inputs, written.site, origin=written, place=place)
    except PlanError as error:
        error.site = error.site or written.site
        raise
    except Exception as error:
        raise PlanError(
            f"node {number} of the plan cannot stand for {written.operator.label()}: {getattr(error, 'what', error)}",
            site=written.site,
            fix="mend the text, or save the plan again",
        ) from error


def _is(a: Node, b: Node) -> bool:
    return a is b


def _new(entry: Mapping[str, Any], number: int, inputs: tuple[Node, ...], place: str) -> Node:
    if ("keep" in entry or "cache" in entry) and len(inputs) != 1:
        raise PlanError(f"node {number} of the plan has {len(inputs)} inputs", fix="give it one")
    if "keep" in entry:
        return Node(Select(tuple(names_in(entry, "keep", number))), inputs, place=place)
    if entry.get("cache") in _CACHES:
        return Node(Cache(entry["cache"]), inputs, place=place)
    if "cache" in entry:
        raise PlanError(
            f"node {number} of the plan puts in cache({redact_url(str(entry['cache']))!r:.80}): "
            "a plan names no folder or URL",
            fix="write cache(where) in the pipeline; a plan puts in 'auto' or 'memory'",
        )
    raise PlanError(
        f"node {number} of the plan says neither which operator it is ('op') nor what it puts in ('keep', 'cache')",
        fix="save the plan again",
    )


def _operator(entry: Mapping[str, Any], number: int, origin: Node, logical: Sequence[Node]) -> Operator:
    written = origin.operator
    known = {"id", "op", "is", "inputs", "place"}
    if isinstance(written, Read):
        _only(entry, known | {"columns", "where"}, number, written)
        columns = tuple(names_in(entry, "columns", number)) if "columns" in entry else None
        where = tuple(logical[i] for i in ordinals_in(entry, "where", number, len(logical)))
        for node in where:
            if node.operator.condition is None:
                raise PlanError(
                    f"node {number} of the plan reads where {node.operator.label()}, "
                    "which is no filter by an expression",
                    site=node.site,
                    fix="give it a node of its own",
                )
        return Scan(written.source, columns, where) if columns is not None or where else written
    _only(entry, known | written.plan_changes.keys(), number, written)
    changed = {name: _changed(entry, name, number, written) for name in written.plan_changes if name in entry}
    return dataclasses.replace(written, **changed) if changed else written  # type: ignore[type-var]


def _changed(entry: Mapping[str, Any], name: str, number: int, written: Operator) -> Any:
    """The value of a field that an entry changes."""
    change, given = written.plan_changes[name], getattr(written, name)
    if change == "parts":
        return tuple(given[i] for i in ordinals_in(entry, name, number, len(given)))
    if change == "fewer":
        return ordinal_in(entry, name, number)
    if entry[name] is not False:
        raise _odd(number, name, entry[name], "false")
    return False


def _only(entry: Mapping[str, Any], known: set[str], number: int, operator: Operator) -> None:
    odd = sorted(set(entry) - known)
    if odd:
        raise PlanError(
            f"node {number} of the plan changes {', '.join(map(repr, odd))} of {operator.label()}, which no plan may",
            fix="remove that from the plan, or change the pipeline",
        )


def ordinal_in(entry: Mapping[str, Any], key: str, number: int, below: int | None = None) -> int:
    """A whole number in an entry, from 0 and below ``below``."""
    value = entry.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or (below is not None and value >= below):
        raise _odd(number, key, value, "a whole number" + (f" from 0 to {below - 1}" if below else ""))
    return value


def ordinals_in(entry: Mapping[str, Any], key: str, number: int, below: int) -> list[int]:
    """Whole numbers in an entry."""
    values = _listed(entry, key, number)
    return [ordinal_in({key: value}, key, number, below) for value in values]


def names_in(entry: Mapping[str, Any], key: str, number: int) -> list[str]:
    """Names of columns in an entry, each once."""
    values = _listed(entry, key, number)
    if not all(isinstance(value, str) for value in values) or len(set(values)) < len(values):
        raise _odd(number, key, values, "a list of names, each once")
    return list(values)


def _listed(entry: Mapping[str, Any], key: str, number: int) -> list[Any]:
    values = entry.get(key, [])
    if not isinstance(values, list):
        raise _odd(number, key, values, "a list")
    return values


def _odd(number: int, key: str, value: Any, wanted: str) -> PlanError:
    return PlanError(
        f"node {number} of the plan: {key!r} is {value!r:.60}, not {wanted}",
        fix="mend the text, or save the plan again",
    )
