"""Properties of a pipeline's nodes: batch sizes, how an epoch ends, and how operators behave with several ranks."""

from __future__ import annotations

from collections.abc import Iterable

from cedar.core.errors import warn_user
from cedar.operators.base import StreamOperator
from cedar.operators.batch import MakesBatches
from cedar.plan.graph import Node, walk
from cedar.plan.physical import Physical
from cedar.plan.steps.order import batch_rows


def any_order_stage(physical: Physical) -> int:
    """Return the number of the stage whose rows may be delivered out of order; -1 if an operator needs their order.
    It is the stage below ``batch()``, or the last stage if there are no batches. All plans of a pipeline have the same.
    """
    stages, works = physical.stages, physical.works
    (number,) = stages[physical.deal].inputs
    while works[stages[number].out].batched:
        stage = stages[number]
        in_order = stage.kind == "stream" and batch_rows(physical.nodes[stage.out]) is None
        if in_order or len(stage.inputs) != 1:
            return -1
        (number,) = stage.inputs
    return number if sum(stage.inputs.count(number) for stage in stages) == 1 else -1


def over_ranks(nodes: Iterable[Node]) -> Node | None:
    """Return the first node that moves rows between the ranks' batches of a step; None if there is none."""
    for node in nodes:
        if node.row_use.rows == "balanced":
            return node
    return None


def endless(root: Node) -> bool:
    """Whether the pipeline never runs out of rows."""
    known: dict[int, bool] = {}
    for node in walk(root):
        below = [known[id(child)] for child in node.inputs]
        known[id(node)] = node.operator.endless(*below) if isinstance(node.operator, StreamOperator) else any(below)
    return known[id(root)]


def rows_per_unit(node: Node) -> int:
    """Return the (maximum) batch size of the nearest batching operator at or below a node; 1 if there is none."""
    batching = _batching(node)
    return 1 if batching is None else batching.max_rows


def sizes_per_unit(node: Node) -> tuple[int, ...]:
    """Return the sizes of full batches of the nearest batching operator at or below a node; 1 if there is none."""
    batching = _batching(node)
    return (1,) if batching is None else batching.full_sizes


def last_mode(node: Node) -> str | None:
    """Return how the epoch ends: the ``last`` mode of the nearest batching operator; "keep" if there is none."""
    batching = _batching(node)
    return "keep" if batching is None else batching.last


def _batching(node: Node) -> MakesBatches | None:
    while node.inputs:
        if isinstance(node.operator, MakesBatches):
            return node.operator
        node = node.inputs[0]
    return None


def deal_mode(node: Node) -> str | None:
    """Return the ``last`` mode for units assigned to ranks. With ``last=None``, units that do not fill a step on all
    ranks are cut into smaller batches (None), or dropped ("drop") if a stream operator follows the batching.
    """
    current, last = node, last_mode(node)
    while last is None and current.inputs:
        operator = current.operator
        if isinstance(operator, StreamOperator) and current.row_use.rows != "balanced":
            return None if isinstance(operator, MakesBatches) else "drop"
        current = current.inputs[0]
    return last


def warn_of_cuts(root: Node, epoch: int) -> None:
    """Warn about each ``take`` or ``skip`` above a shuffle, since it selects different rows in each epoch.

    The first epoch causes no warning unless a ``repeat`` is above.
    """
    nodes = walk(root)
    for node in nodes:
        if node.row_use.rows not in ("first", "rest"):
            continue
        if epoch == 0 and not any(each.row_use.rows == "repeated" and node in walk(each) for each in nodes):
            continue
        label = node.operator.label()
        for below in walk(node):
            if below.ordering.mixing is not None:
                warn_user(
                    f"{label} comes after {below.operator.label()}, whose order changes in every epoch: so do the rows "
                    f"that {label} keeps, and rows leak between splits made by take() and skip(). Use "
                    'p.split({"train": 0.9, "val": 0.1}), or put take() and skip() before shuffle()',
                    node.site,
                )
                break
