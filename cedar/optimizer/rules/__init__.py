"""The rewrite rules in the order in which they are tried. Each is a function of a node and the facts.

``MOVES`` move operators and run before the search for an order. ``TRIMS`` change which columns are computed and kept,
and run after the search because they depend on the order. Rules that need measurements do nothing without them.

``inexact`` is first because it depends on the order of operators as written. ``dedup_place`` comes after
``scan_filter``, which determines the rows that are grouped.
"""

from cedar.optimizer.facts import Rule
from cedar.optimizer.rules.caches import cache_place, layout_place
from cedar.optimizer.rules.columns import dead_columns, dead_results, scan_columns
from cedar.optimizer.rules.equal import common, dedup_place
from cedar.optimizer.rules.filters import limit, push_filter, scan_filter
from cedar.optimizer.rules.kernels import group_expressions, inexact
from cedar.optimizer.rules.late import late

__all__ = [
    "MOVES", "RULES", "TRIMS", "cache_place", "common", "dead_columns", "dead_results", "dedup_place",
    "group_expressions", "inexact", "late", "layout_place", "limit", "push_filter", "scan_columns", "scan_filter",
]  # fmt: skip

MOVES: tuple[Rule, ...] = (inexact, push_filter, scan_filter, dedup_place, limit, late, common)
TRIMS: tuple[Rule, ...] = (group_expressions, layout_place, cache_place, dead_results, scan_columns, dead_columns)
RULES: tuple[Rule, ...] = (*MOVES, *TRIMS)
