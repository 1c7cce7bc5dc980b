"""dead_columns, dead_results and scan_columns: rules that omit columns and results that no operator reads."""

from __future__ import annotations

from cedar.datasets.base import Read, rows_may_fail
from cedar.operators.base import RowOperator
from cedar.operators.expressions import SeparateResults
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal, downward
from cedar.plan.graph import Node
from cedar.plan.scan import chosen_fields
from cedar.plan.steps.columns import DropResults, Keep, unread
from cedar.plan.steps.scans import PushColumns, columns_needed, columns_of


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
    chains = [None if each.link is None else each.link.transform.chain for each in (node, *node.inputs)]
    return chains[0] is not None and all(chain is chains[0] for chain in chains)


@downward
def dead_results(node: Node, facts: Facts) -> Outcome:
    """Skip unused expressions that cannot fail. Functions are always called, since they may have side effects."""
    operator, live = node.operator, facts.live.get(id(node))
    if live is None:
        return None
    if not isinstance(operator, SeparateResults):
        writes, alone = node.effects.writes, isinstance(operator, RowOperator) and node.effects.rows != "1:n"
        if alone and writes and not live & writes and operator.calls_functions:
            return Refusal("no operator reads its result, but the function may have side effects")
        return None
    names, types = operator.results, facts.schemas[id(node.inputs[0])]
    dead = [number for number, name in enumerate(names) if name not in {None, *live}]
    gone = [number for number in dead if operator.never_fails(number, types)]
    fewer = operator.without(gone) if gone else operator
    reported = ", ".join(str(names[number]) for number in gone or dead)
    if not gone or (fewer is not None and not fewer.results):
        return Refusal(f"nothing reads {reported}, but they may fail on some row") if dead and not gone else None
    return Change(DropResults(tuple(gone)), facts.label(node), f"{reported} not computed, as nothing reads it")


@downward
def scan_columns(node: Node, facts: Facts) -> Outcome:
    """Read only used columns, in the source's order, from sources that can select columns.

    If the source can also select fields, a partly used struct column contains only the used fields.
    """
    operator = node.operator
    columns = columns_needed(node, facts) if isinstance(operator, Read) else None
    if columns is None or columns == columns_of(node, facts):
        return None
    assert isinstance(operator, Read)
    known = facts.schemas[id(node)] or {}
    unread = f"{len(known) - len(chosen_fields(columns, known))} of {len(known)} columns are not used"
    if not operator.source.selects:
        return Refusal(f"{unread}, and the source cannot leave them out")
    if facts.skips(node) and rows_may_fail(operator.source):
        return Refusal(f"{unread}, but rows may fail in them, and are then skipped")
    return Change(PushColumns(columns), facts.label(node), f"reads {_listed(columns)} alone")


def _listed(names: tuple[str, ...], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
