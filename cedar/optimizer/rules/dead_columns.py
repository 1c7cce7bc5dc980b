"""dead_columns: drops unused columns before rows are buffered, cached, split into tasks, transferred or batched."""

from __future__ import annotations

from cedar.operators.transform import Chain
from cedar.optimizer.facts import Change, Facts, Outcome, downward
from cedar.plan.graph import Node
from cedar.plan.steps.columns import Keep, unread


@downward
def dead_columns(node: Node, facts: Facts) -> Outcome:
    """Drop unused columns below stream operators, ``cache("auto")`` and functions that run once per row.

    Such operators buffer rows, or may start new tasks to which rows are transferred.
    """
    effects = node.effects
    holds = effects.rows == "stream" or node.storage is not None
    if not node.inputs or not (holds or effects.per_row) or _chained(node):
        return None
    kept = unread(node, facts)
    if not any(kept):
        return None
    pairs = [(facts.schemas[id(child)], names) for child, names in zip(node.inputs, kept, strict=True)]
    gone = set[str]().union(*(set(schema or ()) - set(names) for schema, names in pairs if names))
    listed = sorted(gone)[:6] + ([f"{len(gone) - 6} more"] if len(gone) > 6 else [])
    return Change(Keep(kept), facts.label(node), f"{', '.join(listed)} dropped below it")


def _chained(node: Node) -> bool:
    """Return whether the node may run as one kernel with the operator below, which a selection would separate."""
    chain = _chain(node)
    return chain is not None and all(_chain(child) is chain for child in node.inputs)


def _chain(node: Node) -> Chain | None:
    link = node.link
    return None if link is None else link.transform.chain
