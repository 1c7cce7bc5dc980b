"""Plan: the graph that runs in place of the pipeline as written, and the decisions that led to it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from cedar.core.numeric import NumericEnvironment
from cedar.core.printable import escape
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.profile import Profile

if TYPE_CHECKING:
    from cedar.plan.saved import HasNode
    from cedar.plan.steps.sweep import Sweep


@dataclass(frozen=True)
class Decision:
    """A rewrite that was applied or refused, and why."""

    rule: str
    what: str
    applied: bool
    why: str = ""

    def __str__(self) -> str:
        return f"{'applied' if self.applied else 'refused'}  {self.rule}: {self.what}" + (
            f"  ({self.why})" if self.why else ""
        )


@dataclass(frozen=True)
class Prediction:
    """What the cost model predicts for a plan.

    Args:
        rows_per_second: rows read from the sources.
        bottleneck: the limiting resource, such as "cores", "GIL", "process shipping", "storage".
        use: seconds per row read by resource, divided by its capacity; the largest is the bottleneck's.
        operators: core seconds per row read, by operator number.
        more: relative gains of more hardware, such as {"one more core": 0.38}.
    """

    rows_per_second: float
    bottleneck: str
    use: dict[str, float] = field(default_factory=dict)
    operators: dict[int, float] = field(default_factory=dict)
    more: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A rewritten pipeline: the same rows in the same order, at a different cost.

    Args:
        logical: the pipeline as written.
        root: the graph that runs; its nodes refer to the nodes of ``logical`` whose work they do.
        decisions: every rewrite, applied or refused.
        prediction: None before anything was measured.
        method: how the order was found.
        executor: the executor of operators without a place of their own; "" leaves it to the run.
        workers: how many tasks run at once; None leaves it to the run.
        profile: the measurements that it was chosen from.
        cache_bytes: limit for ``cache()``; None leaves it to the run.
        memory_bytes: memory limit for this process and its workers; None leaves it to the run.
        numeric: the numeric environment that functions run in; None leaves it to the run.
        sweeps: the steps from ``logical`` to ``root``, one sweep per pass.

    Examples:
        >>> print(cedar.from_items([{"x": 1}]).optimize().executor)
        threads
    """

    logical: Node
    root: Node
    decisions: tuple[Decision, ...] = ()
    prediction: Prediction | None = None
    method: Literal["as written", "rules", "exact", "beam", "loaded"] = "as written"
    executor: str = ""
    workers: int | None = None
    profile: Profile | None = None
    cache_bytes: int | None = None
    memory_bytes: int | None = None
    numeric: NumericEnvironment | None = None
    sweeps: tuple[Sweep, ...] = ()

    @staticmethod
    def as_written(root: Node) -> Plan:
        """Return the plan that changes nothing."""
        return Plan(root, root)

    @property
    def in_processes(self) -> bool:
        """Whether some operators run in worker processes."""
        return any(node.place == "processes" for node in graph.walk(self.root))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON for review, one step per line. It contains no functions and no data.

        Raises:
            PlanError: the file cannot be written, or a step inserts an operator that JSON cannot describe.

        Examples:
            >>> import cedar, os, tempfile
            >>> p = cedar.from_items([{"x": 1}]).batch(1)
            >>> path = os.path.join(tempfile.mkdtemp(), "plan.json")
            >>> Plan.as_written(p.node).save(path)
            >>> print(cedar.Plan.load(path, p))
            plan (loaded): 2 nodes
              0  from_items(list of 1)
              1  batch(1)  of 0
        """
        from cedar.plan.saved import write

        write(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str], pipeline: HasNode, *, cluster: Any = None) -> Plan:
        """Load a saved plan for a pipeline that it fits: the same operators and connections, with the same effects.

        Functions and data may have changed or moved since. The decisions list functions that changed.

        Args:
            path: path or URL of a file that ``save`` wrote.
            pipeline: the pipeline that the plan will run.
            cluster: a Dask scheduler's address, or a client, for stages that the plan places on a cluster. The file
                never contains this or any other address, folder or URL.

        Raises:
            PlanError: the file is not a plan, has another version, or does not fit; names the node and the user's line.
        """
        from cedar.plan.saved import read

        return read(path, pipeline, cluster)

    def __str__(self) -> str:
        from cedar.plan.saved import format_plan

        return format_plan(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
