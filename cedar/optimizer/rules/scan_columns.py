"""scan_columns: what nobody reads is not read from the source, down to the fields of struct columns."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from cedar.core.columns import ColumnType
from cedar.datasets.base import Read, rows_may_fail
from cedar.optimizer.edit import rebuilt
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal, downward
from cedar.optimizer.fields import Fields, fields_read, live_fields
from cedar.plan.graph import Node
from cedar.plan.scan import Scan, dotted


@downward
def scan_columns(node: Node, facts: Facts) -> Outcome:
    """A source that can select columns gives those that are read further up, in its own order.

    Where it can select fields, a struct column of which only some are read holds these alone.
    """
    operator = node.operator
    live, known = facts.live.get(id(node)), facts.schemas[id(node)]
    if not isinstance(operator, Read) or live is None or known is None:
        return None
    names = tuple(name for name in known if name in live) or _least(known)
    fields = _fields(node, names, facts)
    columns = tuple(path for name in names for path in fields.get(name, [name]))
    if columns == (tuple(known) if not isinstance(operator, Scan) or operator.columns is None else operator.columns):
        return None
    unread = f"{len(known) - len(names)} of {len(known)} columns are not used"
    if not callable(getattr(operator.source, "select", None)):
        return Refusal(f"{unread}, and the source cannot leave them out")
    if facts.skips(node) and rows_may_fail(operator.source):
        return Refusal(f"{unread}, but rows may fail in them, and are then skipped")
    before = operator if isinstance(operator, Scan) else Scan(operator.source)
    scan = Scan(before.source, columns, before.where)
    return Change(rebuilt(node, (), facts, scan), facts.label(node), f"reads {_listed(columns)} alone")


def _fields(node: Node, names: tuple[str, ...], facts: Facts) -> dict[str, list[str]]:
    """The paths to read of the struct columns that are read in part."""
    assert isinstance(node.operator, Read)
    source = node.operator.source
    if not getattr(source, "selects_fields", False):
        return {}
    known = Read(source).schema()
    by_column = {}
    for name in names:
        kind = (known or {}).get(name)
        if isinstance(kind, pa.DataType) and pa.types.is_struct(kind):
            paths = dotted(name, _read(node, name, facts) or (), known)
            if paths is not None:
                by_column[name] = paths
    return by_column


def _read(node: Node, name: str, facts: Facts) -> Fields:
    """What is read above the scan, and by the filters inside it: the column that leaves holds both."""
    read = live_fields(node, name, facts)
    for each in node.operator.where if isinstance(node.operator, Scan) else ():
        inside = fields_read(each, name)
        read = None if read is None or inside is None else read | inside
    return read


def _least(known: Mapping[str, ColumnType]) -> tuple[str, ...]:
    """One column, so that rows are counted: a narrow one."""
    plain = (n for n, kind in known.items() if isinstance(kind, pa.DataType) and pa.types.is_primitive(kind))
    first = next(plain, None) or next(iter(known), None)
    return () if first is None else (first,)


def _listed(names: tuple[str, ...], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
