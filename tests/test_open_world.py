"""What the package needs to know of an operator is declared by it: nothing outside operators/ asks which one it is."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import cedar.operators
from cedar.operators.base import Operator, RowOperator, StreamOperator

PACKAGE = Path(cedar.__file__).parent
KINDS = {"Operator", "RowOperator", "StreamOperator"}  # a row operator works on blocks, a stream operator on streams
# Files that still ask, and how often: numbers go down here, and no file is added.
LEFT: dict[str, int] = {}


def concrete() -> set[str]:
    for module in pkgutil.walk_packages(cedar.operators.__path__, "cedar.operators."):
        if not module.name.endswith("_kernels"):  # they hold no operators, and compile for half a minute
            importlib.import_module(module.name)
    found, waiting = set(), [Operator, RowOperator, StreamOperator]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            if kind.__module__.startswith("cedar.operators."):
                found.add(kind.__name__)
            waiting.append(kind)
    return found - KINDS


def asks(tree: ast.AST, classes: set[str]) -> Iterator[int]:
    """Lines with ``isinstance`` of a concrete operator, or that compare an operator's name."""
    groups: dict[str, set[str]] = {}  # names given to several classes at once
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Tuple, ast.BinOp)):
            for target in node.targets:
                groups[ast.unparse(target)] = named(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            names = named(node.args[1])
            names |= set().union(*(groups.get(name, set()) for name in names))
            if names & classes:
                yield node.lineno
        elif isinstance(node, ast.Compare) and any(ast.unparse(side).endswith("operator.name") for side in sides(node)):
            yield node.lineno
        elif isinstance(node, ast.Match) and named(*(case.pattern for case in node.cases)) & classes:
            yield node.lineno


def sides(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


def named(*nodes: ast.AST) -> set[str]:
    inner = [each for node in nodes for each in ast.walk(node)]
    return {n.id for n in inner if isinstance(n, ast.Name)} | {n.attr for n in inner if isinstance(n, ast.Attribute)}


@pytest.mark.heavy
def test_nobody_outside_asks_which_operator_it_is() -> None:
    classes, found = concrete(), Counter[str]()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("operators/"):
            found[name] += sum(1 for _ in asks(ast.parse(path.read_text("utf-8")), classes))
    assert {name: count for name, count in found.items() if count > LEFT.get(name, 0)} == {}
    assert {name: count for name, count in LEFT.items() if found[name] < count} == {}, "lower the numbers in LEFT"


@pytest.mark.parametrize(
    "source",
    ["isinstance(x, Take)", "isinstance(n.operator, Map | Drop)", "_OURS = (Take, Map)\nisinstance(x, _OURS)",
     "node.operator.name == 'zip'", "operator.name in ('zip', 'mix')"],
)  # fmt: skip
def test_such_questions_are_found(source: str) -> None:
    assert list(asks(ast.parse(source), concrete()))


def test_kinds_may_be_asked_for() -> None:
    assert not list(asks(ast.parse("isinstance(x, RowOperator | StreamOperator); x.name == 'zip'"), concrete()))
