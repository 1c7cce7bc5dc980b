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


_RESULTS = "cedar.optimizer.rules.pushdown"
_STEPS = "cedar.plan.steps"
_ORDER, _PUSHDOWN, _SINGLE, _STEP = (f"{_STEPS}.{name}" for name in ("order", "pushdown", "single", "step"))
_ARRANGE = "cedar.optimizer.arrange"
_SCANNING = "cedar.tasks.scanning"
_SCAN, _LOWER, _TRUTH = "cedar.plan.graph", "cedar.plan.lower", "cedar.datasets.truth"
_SHUFFLE, _BASE = "cedar.operators.shuffle", "cedar.operators.base"

MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(*each)
    for each in (
        # ---- orders
        ("a guard dropped: operators commute", _ORDER, "Reorder.check",
         "if (refused := may_swap(run[below], run[i], facts)) is not None:", "if False:"),
        ("an operator lost", _ORDER, "Reorder.apply", "for i in self.order:", "for i in self.order[:-1]:"),
        ("an order swapped", _ORDER, "Reorder.apply", "for i in self.order:", "for i in self.order[::-1]:"),
        ("any order", _ARRANGE, "find_precedence", "if refused is not None:", "if False:"),
        ("a guard dropped: whole rows", _ORDER, "_walls",
         "for node, other in", "return None\n    for node, other in"),
        ("a guard dropped: columns", _ORDER, "_columns", "first, second =", "return None\n    first, second ="),
        ("reads do not count", _ORDER, "_columns",
         "((theirs.reads or frozenset()) | (theirs.writes or frozenset()))", "(theirs.writes or frozenset())"),
        ("writes do not count", _ORDER, "_columns",
         "((theirs.reads or frozenset()) | (theirs.writes or frozenset()))", "(theirs.reads or frozenset())"),
        ("a guard dropped: what is kept", _ORDER, "_survivors",
         "for node, other in", "return None\n    for node, other in"),
        ("a guard dropped: rows", _ORDER, "_rows", "first, second =", "return None\n    first, second ="),
        ("a guard dropped: rows are skipped", _ORDER, "_skipped",
         "for node, other in", "return None\n    for node, other in"),
        ("a guard dropped: algebra", _ORDER, "_algebra", "first, second =", "return None\n    first, second ="),
        ("nothing skips", _ORDER, "may_skip", "return node.operator.may_fail",
         "return False and node.operator.may_fail"),
        # ---- stream operators
        ("a guard dropped: operators that count rows", _ORDER, "filter_stays",
         "if operator.row_use.counts is not None:", "if False:"),
        ("a guard dropped: others draw from it", _ORDER, "filter_stays",
         "if (why := shared(below, facts)) is not None:", "if False:"),
        ("a guard dropped: rows are skipped", _ORDER, "filter_stays", "if may_skip(node, facts):", "if False:"),
        ("a guard dropped: groups in turns", _SHUFFLE, "Shuffle.row_use",
         "self.by is not None and self.interleave > 1", "False"),
        ("a guard dropped: windows of counted rows", _ORDER, "filter_stays", "if counts is not None:", "if False:"),
        ("a guard dropped: windows above", _ORDER, "filter_stays",
         "above = _windowed_above(node, facts)", "above = None"),
        ("one input of a concat alone", _ORDER, "Cross.apply",
         "tuple(rebuilt(graph, (child,), facts) for child in below.inputs)",
         "tuple(rebuilt(graph, (c,), facts) if c is below.inputs[0] else c for c in below.inputs)"),
        ("the filter lost", _ORDER, "Cross.apply",
         "tuple(rebuilt(graph, (child,), facts) for child in below.inputs)", "below.inputs"),
        ("an operator lost", _ORDER, "Cross.apply",
         "for each in (*run[self.operators :], *run[: self.operators]):",
         "for each in (*run[self.operators :], *run[1 : self.operators]):"),
        ("a stream operator lost", _ORDER, "Cross.apply",
         "for each in (*run[self.operators :], *run[: self.operators]):", "for each in run[: self.operators]:"),
        ("an order swapped", _ORDER, "Cross.apply",
         "for each in (*run[self.operators :], *run[: self.operators]):",
         "for each in (*run[self.operators :], *run[: self.operators][::-1]):"),
        ("a guard dropped: groups of a shuffle", _ORDER, "held",
         "if reads is None or (reads and (writes is None or reads & writes)):",
         "if False:"),
        ("a guard dropped: rows are skipped", _ORDER, "held",
         "if may_skip(moving, facts) else None", "if False else None"),
        ("a guard dropped: operators that change counts", _ORDER, "movable",
         'return moves and node.effects.rows == "1:1"', "return moves"),
        ("a guard dropped: limits over what changes counts", _ORDER, "under_limit",
         'if below.effects.rows != "1:1":', "if False:"),
        ("a guard dropped: limits over what is skipped", _ORDER, "under_limit",
         "if may_skip(below, facts) else None", "if False else None"),
        # ---- scans
        ("a filter lost", _PUSHDOWN, "PushFilter.apply",
         "(*scan.where, rebuilt(graph, graph.inputs, facts))", "scan.where"),
        ("an earlier filter lost", _PUSHDOWN, "PushFilter.apply",
         "(*scan.where, rebuilt(graph, graph.inputs, facts))", "(rebuilt(graph, graph.inputs, facts),)"),
        ("a guard dropped: others draw from it", _PUSHDOWN, "PushFilter.check",
         "if (why := shared(below, facts)) is not None:", "if False:"),
        ("a guard dropped: rows are skipped", _PUSHDOWN, "PushFilter.check",
         "if facts.skips(graph) or facts.skips(below):", "if False:"),
        ("a column too few", _PUSHDOWN, "columns_needed",
         "names = tuple(name for name in known if name in live) or _least(known)",
         "names = tuple(name for name in known if name in live)[1:] or _least(known)"),
        ("a column of the filters alone", _PUSHDOWN, "PushColumns.apply",
         "Scan(scan.source, self.columns, scan.where)", "Scan(scan.source, self.columns)"),
        ("a field too few", _PUSHDOWN, "columns_needed",
         "paths = dotted(name, _read(node, name, facts) or (), whole)",
         "paths = (dotted(name, _read(node, name, facts) or (), whole) or [])[:1] or None"),
        ("a guard dropped: rows of the source are skipped", _PUSHDOWN, "PushColumns.check",
         "if facts.skips(graph) and rows_may_fail(operator.source):", "if False:"),
        # ---- columns
        ("what is read counts as unread", _STEP, "needs",
         "needed = (out - effects.writes) | effects.reads", "needed = out - effects.writes"),
        ("what is written counts as there", _STEP, "needs",
         "needed = (out - effects.writes) | effects.reads", "needed = (out - effects.writes) | (effects.reads - out)"),
        ("one of two readers counts", _STEP, "union",
         "return None if first is None or second is None else first | second",
         "return None if first is None or second is None else first & second"),
        ("renamed columns count as unread", _STEP, "needs",
         " | {old for old in new if new[old] in out}", ""),
        ("whole rows count as unread", _STEP, "needs",
         "if effects.reads is None or effects.writes is None or others_read:",
         "if effects.writes is None:"),
        ("a column too few", _PUSHDOWN, "Keep.apply",
         "only(child, names) if names else child", "only(child, names[:-1]) if names else child"),
        ("a result that is read", _RESULTS, "dead_results",
         "if name not in {None, *live}]", "if name is not None]"),
        ("what may fail", _PUSHDOWN, "DropResults.check",
         "if not operator.never_fails(i, graph.inputs[0].schema):", "if False:"),
        ("another result", _PUSHDOWN, "DropResults.apply",
         "graph.operator.without(self.results)", "graph.operator.without(range(len(self.results)))"),
        ("the order of columns", _PUSHDOWN, "KeepOrder.apply",
         "_wanted(graph.schema, written[id(facts.logical)])", "()"),
        ("the order that functions see", _PUSHDOWN, "KeepOrder.apply", "if sees or lost:", "if False:"),
        ("a drop lost", _STEP, "fitted", "if operator is None:", "if True:"),
        # ---- the same twice
        ("all of a kind are equal", _SINGLE, "_equal", "one.merge_key() == other.merge_key()", "True"),
        ("all functions are equal", _BASE, "_key", "return id(value)", "return 0"),
        ("all expressions are equal", _BASE, "_key", 'return value.meta.serialize(format="binary")', "return 0"),
        ("a guard dropped: random operators", _SINGLE, "Share.check", "if graph.effects.random:", "if False:"),
        ("the wrong one of two", _SINGLE, "Share.apply", "return other", "return graph.inputs[0]"),
        # ---- caches
        ("above what is random", _SINGLE, "Cache.check",
         "any(node.effects.random for node in work[: self.above])", "False"),
        ("a cache instead of what is below", _SINGLE, "Cache.apply",
         "current = node if node.inputs[0] is current else rebuilt(node, (current,), facts)",
         "current = rebuilt(node, (current,) if 'cache' not in node.operator.name else (source,), facts)"),
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
        ("pruned the other way", _SCANNING, "ScanReader.read_blocks",
         "and self.plain.source.prune(split, self.predicate)",
         "and not self.plain.source.prune(split, self.predicate)"),
        ("pruned by one filter for all", _SCANNING, "ScanReader.read_blocks",
         "and self.plain.source.prune(split, self.predicate)",
         "and self.plain.source.prune(split, ~self.predicate)"),
        ("a null rule changed", _TRUTH, "_is_null",
         "return Truth(bounds.nulls > 0, bounds.nulls < bounds.rows, False)",
         "return Truth(bounds.nulls == bounds.rows, bounds.nulls < bounds.rows, False)"),
        ("fields in another place", _SCAN, "narrowed",
         "fields = [narrowed(column.field(positions[f.name]), f.type) for f in kind]",
         "fields = [narrowed(column.field(i), f.type) for i, f in enumerate(kind)]"),
        ("nulls of a struct lost", _SCAN, "narrowed", ", mask=column.is_null())", ")"),
        ("filters of a scan keep columns", _SCAN, "Scan.schema",
         "if known is None or self.columns is None:", "if True:"),
        ("kept although it is drawn", _LOWER, "_Lowering.kept", "if self.nodes[link].effects.random:", "if False:"),
        ("an operator lost", _LOWER, "_Lowering.above", "runs[-1].append(i)", "runs[-1][:] = [i]"),
        ("an order swapped", _LOWER, "_Lowering.chain", "return chain[::-1], at", "return chain, at"),
        ("what reads loses an operator", _LOWER, "_Lowering.read", "shared = above[:cut]", "shared = above[: cut - 1]"),
        ("an input of a concat loses its operators", _LOWER, "_Lowering.segments",
         "links=(*segment.links, *links)", "links=links"),
        ("windows lost", _LOWER, "_Lowering.windowed", "return self.read(*joined, windows=above)",
         "return self.read(*joined)"),
    )
)  # fmt: skip
