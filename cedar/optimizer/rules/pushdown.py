"""Rules that drop rows earlier, and omit columns and results that no operator reads."""

from __future__ import annotations

from collections.abc import Sequence

from cedar.datasets.base import Read, rows_may_fail
from cedar.operators.base import RowOperator
from cedar.operators.expressions import SeparateResults
from cedar.optimizer.rewrite import Change, Outcome, downward
from cedar.plan.graph import Node, chosen_fields
from cedar.plan.steps.order import Cross, Reorder, falls_away, may_swap, rivals, under_limit
from cedar.plan.steps.pushdown import DropResults, Keep, PushColumns, PushFilter, columns_needed, columns_of, unread
from cedar.plan.steps.step import Facts, Refusal, is_inserted, shared

_GAIN = 0.95  # a function filter moves only if that cuts the chain's cost below this share; measurements are noisy


def push_filter(node: Node, facts: Facts) -> Outcome:
    """Move an expression filter down as far as allowed, and a function filter as far as measurements justify.

    The last filter of a run of row operators proposes one step for all filters of the run.
    """
    if not node.filters:
        return None
    below = node.inputs[0]
    if node.condition is not None and not isinstance(below.operator, RowOperator | Read):
        how = f"into every input of {facts.label(below)}" if len(below.inputs) > 1 else f"below {facts.label(below)}"
        return Change(Cross("down"), facts.label(node), how)
    above = facts.consumers[id(node)]
    while not facts.alone and len(above) == 1 and isinstance(above[0].operator, RowOperator):
        if above[0].filters:
            return None
        above = facts.consumers[id(above[0])]
    return _arranged(node, facts)


def _arranged(last: Node, facts: Facts) -> Outcome:
    """Move the filters of the run that ends in ``last``, or ``last`` alone."""
    run, end = [last], None
    below = last.inputs[0]
    while isinstance(below.operator, RowOperator) and (end := shared(below, facts)) is None:
        run += [] if falls_away(below, facts) else [below]
        below = below.inputs[0]
    run.reverse()
    order, moves, refusals = list(run), list[tuple[str, str]](), list[Refusal]()
    for node, earlier in zip(run, rivals(run, facts), strict=True):
        if not node.filters or (facts.alone and node is not last):
            continue
        at, lowest, why = order.index(node), 0, end
        for place in sorted([order.index(run[i]) for i in earlier], reverse=True):
            if (refused := may_swap(order[place], node, facts)) is not None:
                lowest, why = place + 1, refused.reason
                break
        passed, label = order[lowest:at][::-1], facts.label(node)
        if node.condition is None:
            passed, why = _by_cost(node, passed, facts)
        while node.condition is not None and passed and passed[-1].condition is not None:
            passed.pop()  # the search orders filters by cost
        if passed:
            order.insert(at - len(passed), order.pop(at))
            seen = [facts.label(each) for each in passed if facts.ordinal(each) is not None]
            moves.append((label, f"below {_listed(seen)}" if seen else ""))
        elif why is not None:
            refusals.append(Refusal(why, label))
    if not moves:
        return tuple(refusals) or None
    same = next(i for i, node in enumerate(order) if node is not run[i])
    return Change(Reorder(tuple(run.index(node) - same for node in order[same:])), *moves[0], tuple(moves[1:]))


# ---- by cost ---------------------------------------------------------------------------------------------------------


def _by_cost(node: Node, below: list[Node], facts: Facts) -> tuple[list[Node], str | None]:
    """Return the operators below a function filter, top first, that it passes; if none, also why."""
    passed = [each for each in below if facts.ordinal(each) is not None]
    if not passed or below[: len(passed)] != passed:
        return [], None
    if facts.profile is None:
        return [], "it needs measurements to decide whether moving it down pays off"
    best, least = 0, _cost([*reversed(passed), node], facts)
    if least is None:
        return [], "the operators below it were not measured"
    limit = least * _GAIN
    for count in range(1, len(passed) + 1):
        if passed[count - 1].condition is not None:
            continue  # do not stop right below a filter, which would then move below this one
        order = [*reversed(passed[count:]), node, *reversed(passed[:count])]
        cost = _cost(order, facts)
        if cost is not None and cost < limit:
            best, limit = count, cost
    return passed[:best], "moving it down costs more than it saves"


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


def _listed(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
