"""The rewrite rules in the order in which they are tried. Each is a function of a node and the facts, in its own file.

``MOVES`` move operators and run before the search for an order. ``TRIMS`` change which columns are computed and kept,
and run after the search because they depend on the order. Rules that need measurements do nothing without them.

``inexact`` is first because it depends on the order of operators as written. ``dedup_place`` comes after
``scan_filter``, which determines the rows that are grouped.
"""

from cedar.optimizer.facts import Rule
from cedar.optimizer.rules.cache_place import cache_place
from cedar.optimizer.rules.common import common
from cedar.optimizer.rules.dead_columns import dead_columns
from cedar.optimizer.rules.dead_results import dead_results
from cedar.optimizer.rules.dedup_place import dedup_place
from cedar.optimizer.rules.group_expressions import group_expressions
from cedar.optimizer.rules.inexact import inexact
from cedar.optimizer.rules.late import late
from cedar.optimizer.rules.layout_place import layout_place
from cedar.optimizer.rules.limit import limit
from cedar.optimizer.rules.push_filter import push_filter
from cedar.optimizer.rules.scan_columns import scan_columns
from cedar.optimizer.rules.scan_filter import scan_filter

__all__ = [
    "MOVES", "RULES", "TRIMS", "cache_place", "common", "dead_columns", "dead_results", "dedup_place",
    "group_expressions", "inexact", "late", "layout_place", "limit", "push_filter", "scan_columns", "scan_filter",
]  # fmt: skip

MOVES: tuple[Rule, ...] = (inexact, push_filter, scan_filter, dedup_place, limit, late, common)
TRIMS: tuple[Rule, ...] = (group_expressions, layout_place, cache_place, dead_results, scan_columns, dead_columns)
RULES: tuple[Rule, ...] = (*MOVES, *TRIMS)
