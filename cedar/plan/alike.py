"""Which plans do the same."""

from __future__ import annotations

from cedar import graph
from cedar.graph import Node
from cedar.plan.scan import Scan


def rewritten(logical: Node, root: Node) -> bool:
    """Whether a graph does anything else than the pipeline as written, places aside."""
    return signature(logical, root, places=False) != signature(logical, logical, places=False)


def signature(logical: Node, root: Node, *, places: bool = True) -> list[tuple[object, ...]]:
    """Equal for graphs that do the same in the same order, and in the same places."""
    own = {id(node) for node in graph.walk(logical)}
    numbers: dict[int, int] = {}
    rows: list[tuple[object, ...]] = []
    for node in graph.walk(root):
        numbers[id(node)] = len(numbers)
        operator = node.operator
        where = operator.where if isinstance(operator, Scan) else ()
        scan = (getattr(operator, "columns", None), tuple(id(w.logical) for w in where))
        stands_for = id(node.logical) if id(node.logical) in own else 0
        place = "" if node.place == "threads" or not places else node.place
        rows.append((stands_for, operator.label(), scan, place, *(numbers[id(child)] for child in node.inputs)))
    return rows
