"""push_filter: rows that a filter drops anyway need not come as far as the filter."""

from __future__ import annotations

from cedar.datasets.base import Read
from cedar.operators.base import RowOperator, StreamOperator
from cedar.optimizer.commute import is_row_operator, may_skip, may_swap
from cedar.optimizer.edit import rebuilt
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal
from cedar.plan import graph
from cedar.plan.graph import Node

_GAIN = 0.95  # a function filter moves where the chain then costs less than this share: figures have noise


def push_filter(node: Node, facts: Facts) -> Outcome:
    """A filter by expression goes as far down as it may; one by a function only as far as measured costs tell."""
    if node.operator.condition is not None:
        passed, refused = _below(node, facts)
        while passed and passed[-1].operator.condition is not None:
            passed.pop()  # which of two filters comes first is a matter of costs
        return _moved(node, passed, facts) if passed else _through(node, refused, facts)
    if node.operator.filters:
        return _by_cost(node, facts)
    return None


def _below(node: Node, facts: Facts) -> tuple[list[Node], Refusal | None]:
    """The operators below that ``node`` may run before, top first, and why it may not go on."""
    passed: list[Node] = []
    current = node.inputs[0]
    while isinstance(current.operator, RowOperator):
        refused = _shared(current, facts) or may_swap(current, node, facts)
        if refused is not None:
            return passed, Refusal(refused.reason, facts.label(node))
        passed.append(current)
        current = current.inputs[0]
    return passed, None


def _shared(below: Node, facts: Facts) -> Refusal | None:
    if len(facts.consumers[id(below)]) > 1:
        return Refusal(f"others draw from {facts.label(below)}, too")
    return None


def _moved(node: Node, passed: list[Node], facts: Facts) -> Change:
    current = rebuilt(node, passed[-1].inputs, facts)
    for below in reversed(passed):
        current = rebuilt(below, (current,), facts)
    seen = [facts.label(below) for below in passed if facts.ordinal(below) is not None]
    return Change(current, facts.label(node), f"below {', '.join(seen)}" if seen else "")


# ---- through stream operators ----------------------------------------------------------------------------------------


def _through(node: Node, refused: Refusal | None, facts: Facts) -> Outcome:
    below = node.inputs[0]
    while below.operator.condition is not None and refused is None:
        below = below.inputs[0]
    if refused is not None or isinstance(below.operator, Read):
        return refused
    assert isinstance(below.operator, StreamOperator)
    if below is not node.inputs[0]:
        return None  # the filter below goes first
    reason = _reason(node, below, facts)
    if reason is not None:
        return Refusal(reason)
    inputs = tuple(rebuilt(node, (child,), facts) for child in below.inputs)
    how = f"into every input of {facts.label(below)}" if len(below.inputs) > 1 else f"below {facts.label(below)}"
    return Change(rebuilt(below, inputs, facts), facts.label(node), how)


def _reason(node: Node, below: Node, facts: Facts) -> str | None:
    """Why the rows of ``below`` cannot be filtered before it."""
    operator, label = below.operator, facts.label(below)
    assert isinstance(operator, StreamOperator)
    if operator.counts_rows is not None:
        return f"{label} {operator.counts_rows}"
    shared = _shared(below, facts)
    if shared is not None:
        return shared.reason
    if may_skip(node, facts):
        return f"it may skip rows, which are told apart by what is below {label}"
    if operator.windowed:
        counts = _counted(below.inputs)
        if counts is not None:
            return f"{label} has windows of the rows of {facts.label(counts)}"
    elif any(facts.streams(source) for source in graph.sources(below)):
        return "inputs are read from their beginning, and a shuffle above would count their rows"
    above = _windowed_above(node, facts)
    if above is not None and (operator.windowed or _counted(below.inputs) is not None):
        return f"{facts.label(above)} has windows of the rows of {label}"
    return None


def _windowed_above(node: Node, facts: Facts) -> Node | None:
    """An operator with windows, with nothing but functions of single rows between: its windows are of what is below."""
    above = list(facts.consumers[id(node)])
    while above:
        current = above.pop()
        if getattr(current.operator, "windowed", False):
            return current
        if is_row_operator(current):
            above += facts.consumers[id(current)]
    return None


def _counted(inputs: tuple[Node, ...]) -> Node | None:
    """What keeps a shuffle from taking its windows from the sources: it has them of so many rows then."""
    inner = [n for node in inputs for n in graph.walk(node)]
    streams = (n for n in inner if isinstance(n.operator, StreamOperator) and not n.operator.keeps_windows)
    return next(streams, None) or _sized(inner)


def _sized(nodes: list[Node]) -> Node | None:
    """A function that sees exactly so many rows."""
    return next((n for n in nodes if n.operator.exact_rows is not None), None)


# ---- by cost ---------------------------------------------------------------------------------------------------------


def _by_cost(node: Node, facts: Facts) -> Outcome:
    passed, _ = _below(node, facts)
    passed = [below for below in passed if facts.ordinal(below) is not None]
    if not passed or passed != _run(node, len(passed)):
        return None
    if facts.profile is None:
        return Refusal("whether it is cheaper further down must be measured")
    best, least = 0, _cost([*reversed(passed), node], facts)
    if least is None:
        return Refusal("nothing was measured of what is below it")
    limit = least * _GAIN
    for count in range(1, len(passed) + 1):
        if passed[count - 1].operator.condition is not None:
            continue  # which would come back below; which of two filters comes first is for the search
        order = [*reversed(passed[count:]), node, *reversed(passed[:count])]
        cost = _cost(order, facts)
        if cost is not None and cost < limit:
            best, limit = count, cost
    return _moved(node, passed[:best], facts) if best else Refusal("it costs more than it saves further down")


def _run(node: Node, length: int) -> list[Node]:
    nodes = [node.inputs[0]]
    while len(nodes) < length:
        nodes.append(nodes[-1].inputs[0])
    return nodes


def _cost(order: list[Node], facts: Facts) -> float | None:
    """Core seconds per row that enters a run of operators, lowest first."""
    total, rows = 0.0, 1.0
    for node in order:
        figures = facts.figures(node)
        if figures is None:
            return None
        total += rows * figures.cpu
        rows *= figures.keep
    return total
