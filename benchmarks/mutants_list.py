"""The mutants: faults put on purpose into rules, and into what compiles a plan; one line of source each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A fault.

    Args:
        what: the kind of fault, and where.
        module: that holds the function.
        function: or ``Class.method``.
        old, new: a piece of its source, found there once, and what stands in its place.
    """

    what: str
    module: str
    function: str
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.module.rpartition('.')[2]}.{self.function}: {self.what}"


_RULES = "cedar.optimizer.rules"
_PUSH, _SCAN_FILTER, _SCAN_COLUMNS = f"{_RULES}.push_filter", f"{_RULES}.scan_filter", f"{_RULES}.scan_columns"
_LIMIT, _LATE, _COMMON = f"{_RULES}.limit", f"{_RULES}.late", f"{_RULES}.common"
_RESULTS, _COLUMNS, _GROUP = f"{_RULES}.dead_results", f"{_RULES}.dead_columns", f"{_RULES}.group_expressions"
_CACHE = f"{_RULES}.cache_place"
_LIVE, _COMMUTE, _EDIT = (f"cedar.optimizer.{name}" for name in ("live", "commute", "edit"))
_ARRANGE, _ORDERING, _FIELDS = (f"cedar.optimizer.{name}" for name in ("arrange", "ordering", "fields"))
_SCANNING = "cedar.tasks.scanning"
_SCAN, _LOWER, _TRUTH = "cedar.plan.scan", "cedar.plan.lower", "cedar.datasets.truth"
_SHUFFLE, _MERGING = "cedar.operators.shuffle", "cedar.operators.merging"

MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(*each)
    for each in (
        # ---- filters
        ("a guard dropped: others draw from it", _PUSH, "_shared",
         "if len(facts.consumers[id(below)]) > 1:", "if False:"),
        ("a guard dropped: operators commute", _PUSH, "_below",
         "refused = _shared(current, facts) or may_swap(current, node, facts)", "refused = _shared(current, facts)"),
        ("a guard dropped: operators that count rows", _PUSH, "_reason",
         "if operator.counts_rows is not None:", "if False:"),
        ("a guard dropped: rows are skipped", _PUSH, "_reason", "if may_skip(node, facts):", "if False:"),
        ("a guard dropped: groups in turns", _SHUFFLE, "Shuffle.counts_rows",
         "if self.by is not None and self.interleave > 1", "if False"),
        ("a guard dropped: windows of counted rows", _PUSH, "_reason", "if counts is not None:", "if False:"),
        ("a guard dropped: windows above", _PUSH, "_reason",
         "above = _windowed_above(node, facts)", "above = None"),
        ("one input of a concat alone", _PUSH, "_through",
         "inputs = tuple(rebuilt(node, (child,), facts) for child in below.inputs)",
         "inputs = tuple(rebuilt(node, (c,), facts) if c is below.inputs[0] else c for c in below.inputs)"),
        ("an operator lost", _PUSH, "_moved", "for below in reversed(passed):", "for below in reversed(passed[1:]):"),
        ("an order swapped", _PUSH, "_moved", "for below in reversed(passed):", "for below in passed:"),
        ("the filter lost", _PUSH, "_moved",
         "current = rebuilt(node, passed[-1].inputs, facts)", "current = passed[-1].inputs[0]"),
        ("a filter lost", _SCAN_FILTER, "scan_filter",
         "(*before.where, rebuilt(node, node.inputs, facts))", "before.where"),
        ("an earlier filter lost", _SCAN_FILTER, "scan_filter",
         "(*before.where, rebuilt(node, node.inputs, facts))", "(rebuilt(node, node.inputs, facts),)"),
        ("a guard dropped: others draw from it", _SCAN_FILTER, "_reason",
         "if len(facts.consumers[id(below)]) > 1:", "if False:"),
        ("a guard dropped: rows are skipped", _SCAN_FILTER, "_reason",
         "if facts.skips(node) or facts.skips(below):", "if False:"),
        # ---- columns
        ("a column too few", _SCAN_COLUMNS, "scan_columns",
         "names = tuple(name for name in known if name in live) or _least(known)",
         "names = tuple(name for name in known if name in live)[1:] or _least(known)"),
        ("a column of the filters alone", _SCAN_COLUMNS, "scan_columns",
         "scan = Scan(before.source, columns, before.where)", "scan = Scan(before.source, columns)"),
        ("a field too few", _SCAN_COLUMNS, "_fields",
         "paths = dotted(name, _read(node, name, facts) or (), known)",
         "paths = (dotted(name, _read(node, name, facts) or (), known) or [])[:1] or None"),
        ("a guard dropped: rows of the source are skipped", _SCAN_COLUMNS, "scan_columns",
         "if facts.skips(node) and rows_may_fail(operator.source):", "if False:"),
        ("what is read counts as unread", _LIVE, "needs",
         "needed = (out - effects.writes) | effects.reads", "needed = out - effects.writes"),
        ("what is written counts as there", _LIVE, "needs",
         "needed = (out - effects.writes) | effects.reads", "needed = (out - effects.writes) | (effects.reads - out)"),
        ("one of two readers counts", _LIVE, "union",
         "return None if first is None or second is None else first | second",
         "return None if first is None or second is None else first & second"),
        ("renamed columns count as unread", _LIVE, "needs",
         " | {old for old in new if new[old] in out}", ""),
        ("whole rows count as unread", _LIVE, "needs",
         "if effects.reads is None or effects.writes is None or _keeps_for_others(operator):",
         "if effects.writes is None:"),
        ("a column too few", _COLUMNS, "_kept",
         "return tuple(name for name in schema if name in live)",
         "return tuple(name for name in schema if name in live)[:-1]"),
        ("one input of a concat alone", _COLUMNS, "_kept_of",
         "if alike(node.operator) and not all(kept):", "if False:"),
        ("a result that is read", _RESULTS, "dead_results",
         "if name not in {None, *live}]", "if name is not None]"),
        ("what may fail", _RESULTS, "dead_results", "if operator.never_fails(number, types)]", "]"),
        ("another result", _RESULTS, "dead_results",
         "fewer = operator.without(gone)", "fewer = operator.without(range(len(gone)))"),
        ("the order of columns", _EDIT, "restore_order",
         "names = _wanted(facts.schemas[id(root)], written[id(facts.logical)])", "names = ()"),
        ("the order that functions see", _EDIT, "_sees_order", "lost = facts", "return False\n    lost = facts"),
        ("a drop lost", _EDIT, "fitted", "if operator is None:", "if operator is None or not node.operator.appends:"),
        ("a field that is read", _FIELDS, "_union",
         "return None if first is None or second is None else first | second",
         "return None if first is None or second is None else first or second"),
        # ---- limits
        ("a guard dropped: operators that change counts", _LIMIT, "_reason",
         'if below.effects.rows != "1:1":', "if False:"),
        ("a guard dropped: rows are skipped", _LIMIT, "_reason",
         "if may_skip(below, facts) else None", "if False else None"),
        ("a guard dropped: others draw from it", _LIMIT, "_reason",
         "if len(facts.consumers[id(below)]) > 1:", "if False:"),
        ("an order swapped", _LIMIT, "limit", "for below in reversed(passed):", "for below in passed:"),
        ("the limit lost", _LIMIT, "limit",
         "top = rebuilt(node, passed[-1].inputs, facts)", "top = passed[-1].inputs[0]"),
        ("an operator lost", _LIMIT, "limit", "for below in reversed(passed):", "for below in reversed(passed[1:]):"),
        ("another limit", _LIMIT, "limit",
         "top = rebuilt(node, passed[-1].inputs, facts)",
         "top = rebuilt(node, passed[-1].inputs, facts, Take(node.operator.n + 1))"),
        # ---- late and early
        ("a guard dropped: groups of a shuffle", _LATE, "_held",
         "if reads is None or (reads and (writes is None or reads & writes)):",
         "if False:"),
        ("a guard dropped: rows are skipped", _LATE, "_held",
         "if may_skip(moving, facts) else None", "if False else None"),
        ("an operator lost", _LATE, "_above", "for each in reversed(run):", "for each in reversed(run[1:]):"),
        ("an order swapped", _LATE, "_above", "for each in reversed(run):", "for each in run:"),
        ("a guard dropped: operators that change counts", _LATE, "_movable",
         'return movable and node.effects.rows == "1:1"', "return movable"),
        ("the shuffle lost", _LATE, "_sunk",
         "top = rebuilt(stream, (rebuilt(node, stream.inputs, facts),), facts)",
         "top = rebuilt(node, stream.inputs, facts)"),
        # ---- the same twice
        ("all of a kind are equal", _COMMON, "_equal", "key == second.operator.merge_key()", "True"),
        ("all functions are equal", _MERGING, "_key", "return id(value)", "return 0"),
        ("all expressions are equal", _MERGING, "_key", 'return value.meta.serialize(format="binary")', "return 0"),
        ("a guard dropped: random operators", _COMMON, "common",
         "if node.effects.random:", "if False:"),
        ("the wrong one of two", _COMMON, "common",
         "return Change(other, facts.label(node)", "return Change(below, facts.label(node)"),
        # ---- orders
        ("a guard dropped: operators commute", _GROUP, "_between",
         "may_swap(current, node, facts) is not None", "False"),
        ("an operator lost", _GROUP, "group_expressions",
         "for each in reversed(passed):", "for each in reversed(passed[1:]):"),
        ("above what is random", _CACHE, "_placed",
         "if n.effects.random), len(work))", "if False), len(work))"),
        ("a cache instead of what is below", _CACHE, "stacked",
         "current = node if node.inputs[0] is current else rebuilt(node, (current,), facts)",
         "current = rebuilt(node, (current,) if 'cache' not in node.operator.name else (source,), facts)"),
        ("a guard dropped: whole rows", _COMMUTE, "_walls",
         "for node, other in", "return None\n    for node, other in"),
        ("a guard dropped: columns", _COMMUTE, "_columns", "first, second =", "return None\n    first, second ="),
        ("reads do not count", _COMMUTE, "_columns",
         "((theirs.reads or frozenset()) | (theirs.writes or frozenset()))", "(theirs.writes or frozenset())"),
        ("writes do not count", _COMMUTE, "_columns",
         "((theirs.reads or frozenset()) | (theirs.writes or frozenset()))", "(theirs.reads or frozenset())"),
        ("a guard dropped: what is kept", _COMMUTE, "_survivors",
         "for node, other in", "return None\n    for node, other in"),
        ("a guard dropped: rows", _COMMUTE, "_rows", "first, second =", "return None\n    first, second ="),
        ("a guard dropped: rows are skipped", _COMMUTE, "_skipped",
         "for node, other in", "return None\n    for node, other in"),
        ("a guard dropped: algebra", _COMMUTE, "_algebra", "first, second =", "return None\n    first, second ="),
        ("nothing skips", _COMMUTE, "may_skip", "return node.operator.may_fail",
         "return False and node.operator.may_fail"),
        ("any order", _ORDERING, "find_precedence", "if refused is not None:", "if False:"),
        ("an operator lost", _ARRANGE, "_rebuilt",
         "for index, place in zip(chosen.order, chosen.places, strict=True):",
         "for index, place in list(zip(chosen.order, chosen.places, strict=True))[: max(1, len(chosen.order) - 1)]:"),
        ("an order swapped", _ARRANGE, "_rebuilt",
         "for index, place in zip(chosen.order, chosen.places, strict=True):",
         "for index, place in zip(sorted(chosen.order, reverse=True), chosen.places, strict=True):"),
        # ---- lowering
        ("a filter lost", _SCANNING, "scan_reader",
         "fused = tuple(fuse_steps(steps))", "fused = tuple(fuse_steps(steps[:1]))"),
        ("a column lost", _SCANNING, "scan_reader",
         "rest = [path for path in wanted if path not in first]",
         "rest = [path for path in wanted if path not in first][:-1]"),
        ("places of rows in a later piece", _SCANNING, "ScanReader._filtered",
         "places.append(rows + start)", "places.append(rows)"),
        ("a count of what is left", _SCANNING, "ScanReader._filtered",
         "start += block.slots", "start += len(rows)"),
        ("places of the other columns", _SCANNING, "ScanReader._with_rest",
         "rest = _gather(rest, places[done:upto] - start)", "rest = _gather(rest, places[done:upto] * 0)"),
        ("rows that a filter dropped", _SCANNING, "ScanReader._kept",
         "if len(rows) == block.slots:", "if len(rows):"),
        ("pruned the other way", _SCANNING, "ScanReader._pruned",
         "return bool(prune(split, self.predicate))", "return not prune(split, self.predicate)"),
        ("pruned by one filter for all", _SCANNING, "ScanReader._pruned",
         "return bool(prune(split, self.predicate))", "return bool(prune(split, ~self.predicate))"),
        ("a null rule changed", _TRUTH, "IsNull.truth",
         "return Truth(bounds.nulls > 0, bounds.nulls < bounds.rows, False)",
         "return Truth(bounds.nulls == bounds.rows, bounds.nulls < bounds.rows, False)"),
        ("fields in another place", _SCAN, "narrowed",
         "fields = [narrowed(column.field(positions[f.name]), f.type) for f in kind]",
         "fields = [narrowed(column.field(i), f.type) for i, f in enumerate(kind)]"),
        ("nulls of a struct lost", _SCAN, "narrowed", ", mask=column.is_null())", ")"),
        ("filters of a scan keep columns", _SCAN, "Scan.schema",
         "if known is None or self.columns is None:", "if True:"),
        ("kept although it is drawn", _LOWER, "_Lowering.kept", "if self.nodes[link].effects.random:", "if False:"),
        ("an operator lost", _LOWER, "_Lowering.by_place", "runs[-1].append(i)", "runs[-1][:] = [i]"),
        ("an order swapped", _LOWER, "_Lowering.chain", "return chain[::-1], at", "return chain, at"),
        ("what reads loses an operator", _LOWER, "_Lowering.read", "shared = above[:cut]", "shared = above[: cut - 1]"),
        ("an input of a concat loses its operators", _LOWER, "_Lowering.segments",
         "links=(*segment.links, *links)", "links=links"),
        ("windows lost", _LOWER, "_Lowering.windowed", "return self.read(*joined, windows=above)",
         "return self.read(*joined)"),
    )
)  # fmt: skip
