"""scan_columns: reads only the columns, and the fields of struct columns, that the pipeline uses."""

from __future__ import annotations

from cedar.datasets.base import Read, rows_may_fail
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal, downward
from cedar.plan.graph import Node
from cedar.plan.scan import chosen_fields
from cedar.plan.steps.scans import PushColumns, columns_needed, columns_of


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
