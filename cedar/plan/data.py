"""Plan: the graph that runs instead of the pipeline as written, and why it is as it is."""

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
    """A rewrite that was applied, or refused, and why."""

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
    """What a cost model expects of a plan.

    Args:
        rows_per_second: rows read from the sources.
        bottleneck: the resource that limits it, such as "cores", "GIL", "process shipping", "storage".
        use: resource to seconds per row read, over the resource's capacity: the largest is the bottleneck.
        operators: ordinal to core seconds per row read.
        more: what more hardware would buy, such as {"one more core": 0.38}.
    """

    rows_per_second: float
    bottleneck: str
    use: dict[str, float] = field(default_factory=dict)
    operators: dict[int, float] = field(default_factory=dict)
    more: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A rewritten pipeline: the same rows in the same order, at another cost.

    Args:
        logical: the pipeline as written.
        root: the graph that runs; its nodes name the nodes of ``logical`` that they stand for.
        decisions: every rewrite, applied or refused.
        prediction: None before anything was measured.
        method: how the order was found.
        executor: of what has no place of its own; "" leaves it to the run.
        workers: tasks at once; None leaves it to the run.
        profile: the figures it was chosen from.
        cache_bytes: what ``cache()`` may keep; None leaves it to the run.
        memory_bytes: what this process and its workers may hold; None leaves it to the run.
        numeric: the environment that functions run in; None leaves it to the run.
        sweeps: the steps that lead from ``logical`` to ``root``, pass by pass.

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
        """The plan that changes nothing."""
        return Plan(root, root)

    @property
    def in_processes(self) -> bool:
        """Some operator runs in processes next to this one."""
        return any(node.place == "processes" for node in graph.walk(self.root))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON that can be reviewed: a step a line; it holds no function and no data.

        Raises:
            PlanError: the file cannot be written, or a step puts in an operator that only a program has.

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
        """A saved plan, for a pipeline that it fits: the same operators, connected alike, with the same effects.

        Functions may have changed since (the decisions say so), and the data, which may have moved.

        Args:
            path: what ``save`` wrote, a path or URL.
            pipeline: what it is to run.
            cluster: where stages run that the plan places on a cluster: the address of a Dask scheduler, or a client.
                The file never says so itself, nor any other address, folder or URL.

        Raises:
            PlanError: the file is not a plan, of another version, or does not fit; says which node, and the user's
                line.
        """
        from cedar.plan.saved import read

        return read(path, pipeline, cluster)

    def __str__(self) -> str:
        from cedar.plan.saved import shown

        return shown(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
