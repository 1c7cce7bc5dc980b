"""The rewrite rules in the order in which they are tried. Each is a function of a node and the facts.

``MOVES`` move operators and run before the search for an order. ``TRIMS`` change which columns are computed and kept,
and run after the search because they depend on the order. Rules that need measurements do nothing without them.

``inexact`` is first because it depends on the order of operators as written. ``dedup_place`` comes after
``scan_filter``, which determines the rows that are grouped.
"""

from cedar.optimizer.rewrite import Rule
from cedar.optimizer.rules.order import group_expressions, inexact, late
from cedar.optimizer.rules.pushdown import dead_columns, dead_results, limit, push_filter, scan_columns, scan_filter
from cedar.optimizer.rules.reuse import cache_place, common, dedup_place, layout_place

__all__ = [
    "MOVES", "RULES", "TRIMS", "cache_place", "common", "dead_columns", "dead_results", "dedup_place",
    "group_expressions", "inexact", "late", "layout_place", "limit", "push_filter", "scan_columns", "scan_filter",
]  # fmt: skip

MOVES: tuple[Rule, ...] = (inexact, push_filter, scan_filter, dedup_place, limit, late, common)
TRIMS: tuple[Rule, ...] = (group_expressions, layout_place, cache_place, dead_results, scan_columns, dead_columns)
RULES: tuple[Rule, ...] = (*MOVES, *TRIMS)
