"""Methods that show a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cedar.pipeline.planning import plan_of
from cedar.report.explain import explain, explain_html

if TYPE_CHECKING:
    from cedar.pipeline.core import Pipeline


class LookMethods:
    """explain, and how notebooks show a pipeline."""

    __slots__ = ()

    def explain(self) -> str:
        """The logical plan, the physical plan, and what they cost, as text. Storage is listed; nothing is run.

        Example:
            >>> import cedar
            >>> "batch(2" in cedar.from_items([{"x": 1}]).batch(2).explain()
            True
        """
        node = cast("Pipeline", self).node
        return explain(node, plan_of(node))

    def _repr_html_(self) -> str:
        node = cast("Pipeline", self).node
        return explain_html(node, plan_of(node))
