"""optimize_layout: what ``Budget(layout=)`` does while an epoch runs, at once."""

from __future__ import annotations

import math
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from cedar.core.errors import PipelineError, user_site
from cedar.optimizer.budget import Budget
from cedar.plan.data import Plan

if TYPE_CHECKING:
    from cedar.pipeline.core import Pipeline


def optimize_layout(
    pipeline: Pipeline, budget: Budget, *, executor: str | Executor = "auto", workers: int | None = None
) -> Plan:
    """Read all files once, and lay out what comes of them in the folder that the budget names.

    Loaders with the same budget read what is there, in this process and in others; so does one with the plan. Splits
    that are there already are not made again.

    Args:
        pipeline: with an end.
        budget: ``cedar.Budget(layout=...)``.
        executor, workers: as of ``loader``.

    Returns:
        A plan that reads the new layout: ``p.loader(plan=plan)``.

    Raises:
        PipelineError: the budget names no place, the pipeline has no end, or reads no files.

    Example:
        >>> import cedar
        >>> written = cedar.from_items([{"x": i} for i in range(6)]).write("rows")
        >>> p = cedar.read_parquet("rows").map(float, "x").shuffle().batch(2)
        >>> plan = cedar.optimize_layout(p, cedar.Budget(layout="laid_out"))
        >>> sum(len(batch["x"]) for batch in p.loader(plan=plan))
        6
    """
    if budget.layout is None:
        raise PipelineError(
            "optimize_layout: the budget names no place", site=user_site(), fix='cedar.Budget(layout="a folder")'
        )
    with pipeline.loader(budget=budget, executor=executor, workers=workers, rank=0, world=1, subgroup=True) as loader:
        if loader.units() == math.inf:
            raise PipelineError("optimize_layout of a pipeline without end", site=user_site(), fix="leave repeat() out")
        if not any(d.applied and d.rule == "layout_place" for d in loader.plan.decisions):
            why = next((f": {d.why}" for d in loader.plan.decisions if d.rule == "layout_place"), "")
            raise PipelineError(
                f"optimize_layout: there is nothing to lay out{why}", site=user_site(),
                fix="it is for pipelines that read files split by split, without a cache() of their own",
            )  # fmt: skip
        for _ in loader:
            pass
        return loader.plan
