"""layout_place: stores preprocessed splits in the folder of ``Budget(layout=)``."""

from __future__ import annotations

from cedar.datasets.base import Read
from cedar.datasets.filesource import FileSource
from cedar.operators.cache import Cache as CacheOperator
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal
from cedar.plan.graph import Node
from cedar.plan.steps.commute import is_row_operator
from cedar.plan.steps.single import Cache, chain_below, kept_above


def layout_place(node: Node, facts: Facts) -> Outcome:
    """Store each split's rows after all operators whose results are the same in every epoch, for ``Budget(layout=)``.

    The position does not depend on measurements, so that later runs find the files that this run wrote.
    """
    if facts.keeping is None or facts.keeping.layout is None or not (is_row_operator(node) or not node.inputs):
        return None
    chain = chain_below(node, facts)
    if chain is None or any(n.storage is not None for n in chain) or kept_above(node, facts):
        return None
    source, *work = chain
    if not isinstance(source.operator, Read) or not isinstance(source.operator.source, FileSource):
        return None
    cache = CacheOperator(facts.keeping.layout, layout=True)
    if facts.streams(source):
        return Refusal(f"of {facts.label(source)}, it cannot be split", cache.label())
    fixed = next((i for i, n in enumerate(work) if n.effects.random), len(work))
    step = Cache(fixed, facts.keeping.layout, layout=True)
    return Change(step, cache.label(), f"above {facts.label(chain[fixed])}")
