"""Pipeline methods that show the plan, and statistics and samples of the rows; observers that show a run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, cast

from cedar.core.block import first_rows, frame_of
from cedar.core.errors import Site, invalid_call
from cedar.core.packages import extension, has_extension
from cedar.engine.delivery.loader import Loader
from cedar.engine.delivery.options import Observer, Options
from cedar.operators.take import whole, whole_seed
from cedar.pipeline.planning import PlanOptions, choose_plan, initial_plan

if TYPE_CHECKING:
    import polars as pl

    from cedar.pipeline.core import Pipeline
    from cedar.watch.contact_sheet import Sheet
    from cedar.watch.describe import Description


class LookMethods:
    """explain, head, inspect and describe, and the HTML that notebooks show for a pipeline."""

    __slots__ = ()

    def explain(self, format: Literal["text", "mermaid", "html"] = "text") -> str:
        """Return the logical plan, the physical plan and their costs as text.

        Lists storage and reads metadata. It calls no functions, except that ``dedup()`` reads a sample of rows.

        Args:
            format: "mermaid" returns only the operators, as a flow chart; "html" adds a diagram to the text.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": 1}]).batch(2)
            >>> "batch(2" in p.explain()
            True
            >>> p.explain(format="mermaid").splitlines()[1]
            '  n0["from_items(list of 1)"]'
        """
        node = cast("Pipeline", self).node
        if format == "mermaid":
            return extension("watch.picture").chart(node)  # type: ignore[no-any-return]
        if format not in ("text", "html"):
            raise invalid_call(f"explain(format={format!r})", fix='"text", "mermaid" or "html"')
        from cedar.pipeline.explain import explain

        text = explain(node, initial_plan(node))
        return text if format == "text" else extension("watch.picture").html(node, text)

    def _repr_html_(self) -> str:
        return self.explain("html")

    def head(self, n: int = 10) -> pl.DataFrame:
        """Return the first ``n`` rows as a polars DataFrame, also if the pipeline delivers batches. Reads little more.

        Raises:
            CedarError: any error that the pipeline itself raises.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": i} for i in range(100)]).head(3)["x"].to_list()
            [0, 1, 2]
        """
        n = whole(n, "head(n)")
        node = cast("Pipeline", self).take(n).node
        planner, _ = choose_plan(node, "auto", "inline", 1, None, True, PlanOptions())
        options = Options(rank=0, world=1, subgroup=True, as_blocks=True, executor="inline", planner=planner)
        with Loader(node, options) as loader:
            rows = first_rows(loader, n)
            return rows if rows.width else frame_of(loader.sample()).clear()

    def inspect(self, rows: int = 4, *, seed: int = 0, epoch: int = 0) -> Sheet:
        """Return a sheet of the source's first rows before and after each operator of the pipeline as written.

        Print the sheet, or write a page with images and sound by ``html(path)``. The sheet lists random draws, which
        are those of a run with this seed and epoch. A row ends where it is dropped or where an error occurs. The sheet
        shows which, and ends at the first operator that does not work on single rows; shuffles are ignored.

        Args:
            rows: how many rows to show.
            seed: the run's seed.
            epoch: the run's epoch.

        Raises:
            PipelineError: ``rows``, ``seed`` or ``epoch`` is invalid.
            CedarError: any error that the source raises.

        Examples:
            >>> import cedar
            >>> sheet = cedar.from_items([{"x": -1}]).map(abs, "x").filter(lambda x: x > 1, "x").inspect()
            >>> [cell.values.get("x") or cell.end for cell in sheet.rows[0].cells]
            [-1, 1, 'dropped by filter(<lambda>)']
        """
        rows, epoch = whole(rows, "inspect(rows)", least=1), whole(epoch, "inspect(epoch)")
        seed = whole_seed(seed, "inspect")
        node = cast("Pipeline", self).node
        return extension("watch.inspect").inspect(node, rows, seed, epoch)  # type: ignore[no-any-return]

    def describe(self) -> Description:
        """Compute each column's counts, nulls, minimum, maximum, mean, quantiles and frequent values over one epoch.

        For lists and bytes, the statistics are those of the lengths. Quantiles and frequent values come from
        a random sample of 100,000 rows, or from all rows if there are fewer. The other figures are exact.

        Raises:
            PipelineError: the pipeline never ends.
            CedarError: any error that the pipeline itself raises.

        Examples:
            >>> import cedar
            >>> found = cedar.from_items([{"x": i, "s": "a"} for i in range(5)]).describe()
            >>> found.rows, found.columns["x"].mean, found.columns["s"].top
            (5, 2.0, {'a': 1.0})
        """
        blocks = cast("Pipeline", self)._blocks("describe")
        return extension("watch.describe").describe(blocks)  # type: ignore[no-any-return]


def observers(progress: bool, trace: Any, serve: str | None, on_metrics: Any, site: Site | None) -> Any:
    """Return the observers that arguments of ``Pipeline.loader`` or the environment request, or None.

    Raises:
        PipelineError: invalid arguments.
    """
    asked = progress or any(each is not None for each in (trace, serve, on_metrics))
    if not asked and not (any(name.startswith("OTEL_") for name in os.environ) and has_extension("watch")):
        return None
    return extension("watch.observers").Observers(progress, trace, serve, on_metrics, site) or None


def progress_line(title: str, plain: bool = False) -> Observer:
    """Return a progress line for terminals and notebooks; with ``plain``, print it also if there is neither."""
    return extension("watch.progress").Progress(title, plain=plain) if has_extension("watch") else Observer()
