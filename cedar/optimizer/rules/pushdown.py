"""Rules that drop rows earlier, and omit columns and results that no operator reads."""

from __future__ import annotations

from cedar.datasets.base import Read, rows_may_fail
from cedar.operators.base import RowOperator
from cedar.operators.expressions import SeparateResults
from cedar.optimizer.rewrite import Change, Outcome, downward
from cedar.plan.graph import Node, chosen_fields
from cedar.plan.steps.order import Cross, Reorder, falls_away, may_swap, under_limit
from cedar.plan.steps.pushdown import DropResults, Keep, PushColumns, PushFilter, columns_needed, columns_of, unread
from cedar.plan.steps.step import Facts, Refusal, is_inserted, run_below, shared

_GAIN = 0.95  # a function filter moves only if that cuts the chain's cost below this share; measurements are noisy


def push_filter(node: Node, facts: Facts) -> Outcome:
    """Move an expression filter down as far as allowed, and a function filter as far as measurements justify."""
    if node.condition is not None:
        passed, refused = _below(node, facts)
        while passed and passed[-1].condition is not None:
            passed.pop()  # the search orders filters by cost
        if passed:
            return _moved(node, passed, facts)
        below = node.inputs[0]
        if refused is not None or isinstance(below.operator, Read) or below.condition is not None:
            return refused  # below another filter, that one moves first
        how = f"into every input of {facts.label(below)}" if len(below.inputs) > 1 else f"below {facts.label(below)}"
        return Change(Cross("down"), facts.label(node), how)
    return _by_cost(node, facts) if node.filters else None


def _below(node: Node, facts: Facts) -> tuple[list[Node], Refusal | None]:
    """Return the operators below that ``node`` may run before, top first, and why it may not move further."""
    passed: list[Node] = []
    current = node.inputs[0]
    while isinstance(current.operator, RowOperator):
        why = shared(current, facts)
        refused = may_swap(current, node, facts) if why is None else Refusal(why)
        if refused is not None:
            return passed, Refusal(refused.reason, facts.label(node))
        passed.append(current)
        current = current.inputs[0]
    return passed, None


def _moved(node: Node, passed: list[Node], facts: Facts) -> Change:
    seen = [facts.label(below) for below in passed if facts.ordinal(below) is not None]
    count = sum(not falls_away(below, facts) for below in passed)
    return Change(Reorder((count, *range(count))), facts.label(node), f"below {', '.join(seen)}" if seen else "")


# ---- by cost ---------------------------------------------------------------------------------------------------------


def _by_cost(node: Node, facts: Facts) -> Outcome:
    passed, _ = _below(node, facts)
    passed = [below for below in passed if facts.ordinal(below) is not None]
    if not passed or run_below(node, len(passed) + 1) != [*reversed(passed), node]:
        return None
    if facts.profile is None:
        return Refusal("it needs measurements to decide whether moving it down pays off")
    best, least = 0, _cost([*reversed(passed), node], facts)
    if least is None:
        return Refusal("the operators below it were not measured")
    limit = least * _GAIN
    for count in range(1, len(passed) + 1):
        if passed[count - 1].condition is not None:
            continue  # do not stop right below a filter, which would then move below this one
        order = [*reversed(passed[count:]), node, *reversed(passed[:count])]
        cost = _cost(order, facts)
        if cost is not None and cost < limit:
            best, limit = count, cost
    return _moved(node, passed[:best], facts) if best else Refusal("moving it down costs more than it saves")


def _cost(order: list[Node], facts: Facts) -> float | None:
    """Return the core seconds per input row of consecutive operators, given in the order in which they run."""
    total, rows = 0.0, 1.0
    for node in order:
        figures = facts.figures(node)
        if figures is None:
            return None
        total += rows * figures.cpu
        rows *= figures.keep
    return total


def scan_filter(node: Node, facts: Facts) -> Outcome:
    """Move expression filters into sources that can read the filters' columns before other columns."""
    below = node.inputs[0] if node.inputs else None
    if below is None or node.condition is None or not isinstance(below.operator, Read):
        return None
    if not below.operator.source.selects:
        return None
    return Change(PushFilter(), facts.label(node), f"into {facts.label(below)}")


def limit(node: Node, facts: Facts) -> Outcome:
    """Move ``take`` below operators that keep the number of rows."""
    if node.row_use.rows != "first":
        return None
    passed: list[Node] = []
    current, refused = node.inputs[0], None
    while current.is_row_operator and current.storage is None:
        refused = shared(current, facts) or under_limit(current, facts)
        if refused is not None:
            break
        passed.append(current)
        current = current.inputs[0]
    if refused is None and current.row_use.rows == "first":
        refused = f"{facts.label(current)} counts rows, too, and states hold how far each of the two is"
    while passed and is_inserted(passed[-1], facts):
        passed.pop()  # an inserted selection computes nothing, so passing it gains nothing
    if not passed:
        return None if refused is None else Refusal(refused)
    names = [facts.label(each) for each in passed if not is_inserted(each, facts)]
    return Change(Cross("up", len(passed)), facts.label(node), f"below {', '.join(names)}")


# ---- columns ---------------------------------------------------------------------------------------------------------


@downward
def dead_columns(node: Node, facts: Facts) -> Outcome:
    """Drop unused columns below stream operators, ``cache("auto")`` and functions that run once per row.

    Such operators buffer rows, or may start new tasks to which rows are transferred.
    """
    effects = node.effects
    holds = effects.rows == "stream" or node.storage is not None
    if not node.inputs or not (holds or effects.per_row):
        return None
    chains = [None if each.link is None else each.link.transform.chain for each in (node, *node.inputs)]
    if chains[0] is not None and all(chain is chains[0] for chain in chains):
        return None  # a selection would separate it from the operator below, with which it may run as one kernel
    kept = unread(node, facts)
    if not any(kept):
        return None
    pairs = [(child.schema, names) for child, names in zip(node.inputs, kept, strict=True)]
    gone = set[str]().union(*(set(schema or ()) - set(names) for schema, names in pairs if names))
    listed = sorted(gone)[:6] + ([f"{len(gone) - 6} more"] if len(gone) > 6 else [])
    return Change(Keep(kept), facts.label(node), f"{', '.join(listed)} dropped below it")


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
    names, types = operator.results, node.inputs[0].schema
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
    if columns is None or columns == columns_of(node):
        return None
    assert isinstance(operator, Read)
    known = node.schema or {}
    unread = f"{len(known) - len(chosen_fields(columns, known))} of {len(known)} columns are not used"
    if not operator.source.selects:
        return Refusal(f"{unread}, and the source cannot leave them out")
    if facts.skips(node) and rows_may_fail(operator.source):
        return Refusal(f"{unread}, but rows may fail in them, and are then skipped")
    return Change(PushColumns(columns), facts.label(node), f"reads {_listed(columns)} alone")


def _listed(names: tuple[str, ...], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
