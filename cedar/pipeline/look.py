"""Methods that show a pipeline, and what its rows hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from cedar.core.errors import PipelineError, user_site
from cedar.core.extensions import extension
from cedar.core.frames import first_rows
from cedar.engine.delivery.loader import Loader
from cedar.engine.delivery.options import Options
from cedar.operators.take import whole
from cedar.pipeline.explain import explain
from cedar.pipeline.planning import PlanOptions, choose_plan, plan_of

if TYPE_CHECKING:
    import polars as pl

    from cedar.pipeline.core import Pipeline
    from cedar.watch.contact_sheet import Sheet
    from cedar.watch.describe import Description


class LookMethods:
    """explain, head, inspect, describe, and how notebooks show a pipeline."""

    __slots__ = ()

    def explain(self, format: Literal["text", "mermaid", "html"] = "text") -> str:
        """The logical plan, the physical plan, and what they cost, as text. Storage is listed; nothing is run.

        Args:
            format: "mermaid" gives the operators alone, as a flow chart; "html" a picture of them and the text.

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
            raise PipelineError(f"explain(format={format!r})", site=user_site(), fix='"text", "mermaid" or "html"')
        text = explain(node, plan_of(node))
        return text if format == "text" else extension("watch.picture").html(node, text)

    def _repr_html_(self) -> str:
        return self.explain("html")

    def head(self, n: int = 10) -> pl.DataFrame:
        """The first ``n`` rows, as a polars frame; of batches their rows. Reads little more than these rows.

        Raises:
            CedarError: whatever the pipeline itself raises.

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
            return first_rows(loader, n)

    def inspect(self, rows: int = 4, *, seed: int = 0, epoch: int = 0) -> Sheet:
        """The first rows of the source before and after each operator, as written: print it, or write it as a page.

        ``html(path)`` shows images and sound. Next to each row stands what random operators drew for it: what they draw
        in a run with that seed, in that epoch. A row ends where it is dropped, or at an error, which is shown. The
        sheet ends at the first operator that is not work on single rows; shuffles are left out.

        Args:
            rows: how many.
            seed: of the run.
            epoch: of the run.

        Raises:
            PipelineError: invalid numbers.
            CedarError: whatever the source raises.

        Examples:
            >>> import cedar
            >>> sheet = cedar.from_items([{"x": -1}]).map(abs, "x").filter(lambda x: x > 1, "x").inspect()
            >>> [cell.values.get("x") or cell.end for cell in sheet.rows[0].cells]
            [-1, 1, 'dropped by filter(<lambda>)']
        """
        rows, epoch = whole(rows, "inspect(rows)", least=1), whole(epoch, "inspect(epoch)")
        seed = whole(seed, "inspect(seed)", least=-(1 << 63))
        node = cast("Pipeline", self).node
        return extension("watch.inspect").inspect(node, rows, seed, epoch)  # type: ignore[no-any-return]

    def describe(self) -> Description:
        """Counts, nulls, least and most, mean, quantiles and frequent values of each column, from one epoch.

        Of lists, bytes and arrays the figures are those of their lengths. Everything but quantiles and frequent values
        is exact; these come from 100,000 rows drawn at random, or from all if there are no more.

        Raises:
            PipelineError: a pipeline without end.
            CedarError: whatever the pipeline itself raises.

        Examples:
            >>> import cedar
            >>> found = cedar.from_items([{"x": i, "s": "a"} for i in range(5)]).describe()
            >>> found.rows, found.columns["x"].mean, found.columns["s"].top
            (5, 2.0, {'a': 1.0})
        """
        blocks = cast("Pipeline", self)._blocks("describe")
        return extension("watch.describe").describe(blocks)  # type: ignore[no-any-return]
