"""Surveys: passes over a pipeline's rows that an operator needs before it can run. See ``cedar.operators.surveys``."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from cedar.core.block import Block
from cedar.core.columns import ColumnType
from cedar.core.errors import CedarError, PipelineError, Site, Skip, invalid_call
from cedar.engine.binding import Binding
from cedar.engine.delivery.loader import Loader
from cedar.engine.delivery.options import Observer, Options
from cedar.operators.base import Env
from cedar.operators.expressions import Select
from cedar.pipeline.look import progress_line
from cedar.pipeline.planning import PlanOptions, choose_plan
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.steps.step import leave_unread, live_columns

if TYPE_CHECKING:
    from cedar.pipeline.core import Pipeline

_log = logging.getLogger("cedar")


def survey(node: Node, columns: Iterable[str] | None, method: str, on_error: Skip | None = None) -> Iterator[Block]:
    """Yield blocks with all rows of an epoch and their keys.

    Args:
        node: the node whose rows to read.
        columns: the columns to read; None reads all.
        method: name of the pipeline method that needs the pass, for the progress line and errors.
        on_error: policy for rows that fail.
    """
    narrow = leave_unread(node if columns is None else Node(Select(tuple(columns)), (node,), node.site))
    with progress_line(method) as progress, whole_epoch(narrow, method, progress, on_error, node.site) as loader:
        progress.position = loader.position
        yield from loader
        if skipped := loader.skipped:
            each = ", ".join(f"{label} {number}" for label, number in skipped.items())
            text = "%s: %d row(s) failed in the pass before the epoch, and were left out: %s"
            _log.warning(text, method, sum(skipped.values()), each)


def whole_epoch(
    node: Node, method: str, observer: Observer | None, on_error: Skip | None = None, site: Site | None = None
) -> Loader:
    """Return a loader of blocks with all rows of an epoch, even if this process is one of several ranks.

    Raises:
        PipelineError: the pipeline never ends.
    """
    planner, _ = choose_plan(node, "auto", "auto", None, on_error, True, PlanOptions())
    options = Options(
        rank=0, world=1, subgroup=True, as_blocks=True, on_error=on_error, observer=observer, planner=planner
    )
    loader = Loader(node, options)
    if loader.units() == math.inf:
        raise PipelineError(
            f"{method}() needs a pipeline that ends; this one never ends",
            site=site,
            fix="end it with take(n), or give repeat(n) a number",
        )
    return loader


def in_order(node: Node) -> Node:
    """Return the graph without shuffles, so that rows come in the order of the sources."""
    return graph.replace(node, lambda each: each.inputs[0] if shuffles(each) else None)


def without_repeats(node: Node) -> Node:
    """Return the graph without ``repeat``, so that each row comes once."""
    return graph.replace(node, lambda each: each.inputs[0] if each.row_use.rows == "repeated" else None)


def shuffles(node: Node) -> bool:
    """Return whether a node only reorders the rows of its input, differently in each epoch."""
    return node.row_use.rows == "each" and node.ordering.mixing is not None


def sampled_types(pipeline: Pipeline) -> dict[str, ColumnType]:
    """Return column names and types, found by running a few sample rows. Rows that fail are ignored."""
    binding = Binding(pipeline.node, None, Env(sampling=True))
    try:
        return binding.types(pipeline.node)
    except CedarError as error:
        error.row = None if error.row is None else binding.located(error.row)
        raise


def require_rows(pipeline: Pipeline, method: str) -> None:
    """Raise an error at the user's line if the pipeline delivers batches."""
    if pipeline.given.batched:
        raise invalid_call(f"{method} works on rows, and its input gives batches", fix=f"call {method} before batch()")


def require_steady(pipeline: Pipeline, columns: Iterable[str] | None, method: str) -> None:
    """Raise an error at the user's line if rows differ between epochs, since one pass must be valid for all epochs."""
    require_rows(pipeline, method)
    root = pipeline.given
    live = live_columns(root, None if columns is None else frozenset(columns))
    for node in graph.walk(root):
        effects, needed = node.effects, live[id(node)]
        if node.row_use.unsteady is not None:
            raise _unsteady_error(node, method, node.row_use.unsteady)
        if effects.random and (effects.rows != "1:1" or effects.writes is None or _touches(effects.writes, needed)):
            raise _unsteady_error(
                node, method, f"draws other {'rows' if effects.rows != '1:1' else 'values'} in each epoch"
            )
        if node.row_use.rows in ("first", "rest") and _reordered_below(node):
            raise _unsteady_error(node, method, "leaves other rows in each epoch, as it comes after a shuffle or mix")
        if node.row_use.rows == "repeated":
            raise _unsteady_error(node, method, "has every row several times")


def _touches(writes: frozenset[str], needed: frozenset[str] | None) -> bool:
    return needed is None or bool(writes & needed)


def _reordered_below(node: Node) -> bool:
    below = [each for each in graph.walk(node) if each is not node]
    return any(each.row_use.rows in ("mixed", "drawn") or shuffles(each) for each in below)


def _unsteady_error(node: Node, method: str, why: str) -> PipelineError:
    label = node.operator.label()
    return invalid_call(f"{method} after {label}, which {why}", fix=f"call {method} before {label}")
