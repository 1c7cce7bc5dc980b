"""scan_columns: what nobody reads is not read from the source."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from cedar.columns import ColumnType
from cedar.datasets.base import Read
from cedar.graph import Node
from cedar.optimizer.edit import rebuilt
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal
from cedar.plan.scan import Scan


def scan_columns(node: Node, facts: Facts) -> Outcome:
    """A source that can select columns gives those that are read further up, in its own order."""
    operator = node.operator
    live, known = facts.live.get(id(node)), facts.schemas[id(node)]
    if not isinstance(operator, Read) or live is None or known is None:
        return None
    names = tuple(name for name in known if name in live) or _least(known)
    if len(names) == len(known):
        return None
    unread = f"{len(known) - len(names)} of {len(known)} columns are not used"
    if not callable(getattr(operator.source, "select", None)):
        return Refusal(f"{unread}, and the source cannot leave them out")
    if facts.skips(node) and hasattr(operator.source, "read_sound"):
        return Refusal(f"{unread}, but rows may fail in them, and are then skipped")
    held = operator if isinstance(operator, Scan) else Scan(operator.source)
    scan = Scan(held.source, names, held.where)
    return Change(rebuilt(node, (), facts, scan), facts.label(node), f"reads {_listed(names)} alone")


def _least(known: Mapping[str, ColumnType]) -> tuple[str, ...]:
    """One column, so that rows are counted: a narrow one."""
    plain = (n for n, kind in known.items() if isinstance(kind, pa.DataType) and pa.types.is_primitive(kind))
    first = next(plain, None) or next(iter(known), None)
    return () if first is None else (first,)


def _listed(names: tuple[str, ...], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
