"""The logical DAG: nodes, how to walk them, and their fingerprints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cedar.errors import CedarError, PipelineError, Site
from cedar.operators.base import Operator, Schema, StreamOperator


@dataclass(frozen=True, eq=False)
class Node:
    """An operator and the nodes it draws from. Two uses of one Node are one shared sub-pipeline."""

    operator: Operator
    inputs: tuple[Node, ...] = ()
    site: Site | None = None

    def __post_init__(self) -> None:
        wanted = self.operator.inputs
        if wanted is not None and wanted != len(self.inputs):
            raise PipelineError(
                f"{self.operator.label()} takes {wanted} input(s), not {len(self.inputs)}", site=self.site
            )


def walk(node: Node) -> Iterator[Node]:
    """Every node once, inputs first; the order is the same for the same graph."""
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(node, False)]
    while stack:
        current, expanded = stack.pop()
        if expanded:
            yield current
        elif id(current) not in seen:
            seen.add(id(current))
            stack.append((current, True))
            stack.extend((child, False) for child in reversed(current.inputs))


def replace(node: Node, rewrite: Callable[[Node], Node | None]) -> Node:
    """The graph with ``rewrite`` applied to every node, inputs first; None keeps a node. Sharing is kept."""
    done: dict[int, Node] = {}
    for current in walk(node):
        inputs = tuple(done[id(child)] for child in current.inputs)
        same = all(a is b for a, b in zip(inputs, current.inputs, strict=True))
        rebuilt = current if same else Node(current.operator, inputs, current.site)
        done[id(current)] = rewrite(rebuilt) or rebuilt
    return done[id(node)]


@contextmanager
def at_site(node: Node) -> Iterator[None]:
    """Gives an error that names no place the user's line that built the operator."""
    try:
        yield
    except CedarError as error:
        error.site = error.site or node.site
        raise


def schemas(node: Node) -> dict[int, Schema]:
    """The schema of every node, by id, without running."""
    known: dict[int, Schema] = {}
    for current in walk(node):
        with at_site(current):
            known[id(current)] = current.operator.schema(*(known[id(child)] for child in current.inputs))
    return known


def batched(node: Node) -> dict[int, bool]:
    """Whether each node's unit is the batch, by id."""
    known: dict[int, bool] = {}
    for current in walk(node):
        below = [known[id(child)] for child in current.inputs]
        operator = current.operator
        with at_site(current):
            known[id(current)] = operator.batched(*below) if isinstance(operator, StreamOperator) else any(below)
    return known


def digest(value: Any) -> str:
    """16 hex digits that stand for a JSON-able value."""
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def topology(node: Node) -> str:
    """Stands for the operators, how they are connected, and the parameters that fix the order of rows."""
    numbers: dict[int, int] = {}
    rows = []
    for current in walk(node):
        numbers[id(current)] = len(numbers)
        parameters = {} if current.operator.inputs == 0 else current.operator.parameters()
        rows.append([current.operator.name, parameters, [numbers[id(child)] for child in current.inputs]])
    return digest(rows)


def sources(node: Node) -> list[Node]:
    """The source nodes, in the order that row keys number them."""
    return [current for current in walk(node) if not current.inputs]


def code_digest(node: Node) -> str:
    """Stands for the functions and expressions of the pipeline."""
    return digest([[_code_of(item) for item in current.operator.code()] for current in walk(node)])


def _code_of(item: Any, depth: int = 0) -> Any:
    """Bytecode, constants, defaults and closure of a function; the text of anything else."""
    inner = getattr(item, "__wrapped__", None) or getattr(item, "__func__", None)
    if inner is not None:
        return _code_of(inner, depth)
    code = getattr(item, "__code__", None)
    if code is None:
        if hasattr(item, "func") and hasattr(item, "args"):  # functools.partial
            return [_code_of(item.func, depth), repr(item.args), repr(sorted(item.keywords.items()))]
        if isinstance(item, type):
            return [item.__qualname__, [_code_of(m, depth + 1) for m in vars(item).values() if hasattr(m, "__code__")]]
        if hasattr(item, "tobytes") and hasattr(item, "dtype"):  # an array
            return [str(item.dtype), list(item.shape), hashlib.sha256(item.tobytes()).hexdigest()]
        if hasattr(item, "meta") and hasattr(item.meta, "serialize"):  # a polars expression
            return str(item)
        return f"{type(item).__module__}.{type(item).__qualname__}"
    constants = [repr(_code_of(_Code(c), depth + 1)) if hasattr(c, "co_code") else repr(c) for c in code.co_consts]
    closure = []
    for cell in getattr(item, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # an empty cell: the name is bound later
            continue
        plain = isinstance(content, (int, float, str, bytes, bool, tuple, type(None)))
        closure.append(
            repr(content) if plain else _code_of(content, depth + 1) if depth < 4 else type(content).__name__
        )
    return [code.co_code.hex(), constants, list(code.co_names), repr(getattr(item, "__defaults__", None)), closure]


class _Code:
    """A nested code object, dressed as a function."""

    def __init__(self, code: Any) -> None:
        self.__code__ = code
