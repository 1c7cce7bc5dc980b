"""Plan: the optimized graph that runs in place of the pipeline as written, the rewrites that produced it, the resources
that it may use, and checks of its output. The engine and the optimizer do not import each other.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cedar.core.errors import invalid_call
from cedar.core.limits import as_int, parse_bytes
from cedar.core.numeric import NumericEnvironment
from cedar.core.printable import brief, escape
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
        rows_per_second: predicted throughput, in rows read from the sources per second.
        bottleneck: the limiting resource, such as "cores", "GIL", "process shipping", "storage".
        more: predicted relative speedup from more hardware, such as {"one more core": 0.38} for 38% more.
    """

    rows_per_second: float
    bottleneck: str
    more: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A rewritten pipeline, which delivers the same rows in the same order at a different cost.

    Args:
        logical: the pipeline as written.
        root: the graph that runs; each node refers to the node of ``logical`` that it replaces.
        decisions: every rewrite that was considered, applied or refused.
        prediction: the predicted throughput; None if nothing was measured yet.
        method: the name of the search that chose the order of operators.
        executor: the executor of operators that the plan assigns to no executor; "" means that the run chooses it.
        workers: the maximum number of concurrent tasks; None means that the run chooses it.
        profile: the measurements from which the plan was chosen.
        cache_bytes: the memory limit for ``cache()``; None means that the run chooses it.
        memory_bytes: the memory limit for this process and its workers; None means that the run chooses it.
        numeric: the numeric environment of user functions; None means that the run chooses it.
        sweeps: the steps that turn ``logical`` into ``root``, grouped by pass over the graph.

    Examples:
        >>> print(cedar.from_items([{"x": 1}]).optimize().executor)
        threads
    """

    logical: Node
    root: Node
    decisions: tuple[Decision, ...] = ()
    prediction: Prediction | None = None
    method: Literal["as written", "rules", "exact", "local", "loaded"] = "as written"
    executor: str = ""
    workers: int | None = None
    profile: Profile | None = None
    cache_bytes: int | None = None
    memory_bytes: int | None = None
    numeric: NumericEnvironment | None = None
    sweeps: tuple[Sweep, ...] = ()

    @staticmethod
    def as_written(root: Node) -> Plan:
        """Return the plan that runs the pipeline unoptimized."""
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
        """Load a saved plan for a pipeline with the same operators, connections and declared effects.

        Functions and data may have changed or moved since the plan was saved; ``decisions`` lists changed functions.

        Args:
            path: path or URL of a file that ``save`` wrote.
            pipeline: the pipeline that the plan will run.
            cluster: a Dask client or scheduler address, for stages that run on a cluster. The file never contains this
                or any other address, folder or URL.

        Raises:
            PlanError: the file is not a plan, has another version, or does not fit; names the node and the user's line.
        """
        from cedar.plan.saved import read

        return read(path, pipeline, cluster)

    def __str__(self) -> str:
        from cedar.plan.saved import format_plan

        return format_plan(self)

    __repr__ = brief

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


@dataclass(frozen=True)
class Difference:
    """Where a plan's output on the first rows differs from the pipeline as written."""

    what: str  # such as "column 'x', row 3: 1.0 as written, 2.0 in the plan"


Check: TypeAlias = Callable[[Plan], "Difference | None"]
"""Runs a plan and the pipeline as written on the same first rows."""


# ---- resources -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """Resources that a plan may use. Resources that are not given default to what the machine has.

    Args:
        cpus: number of cores, an integer of at least 1.
        memory: limit for this process and all processes that it starts, in bytes or as a string such as "2GiB". cedar
            adapts read-ahead and caches to measured memory. If a run still exceeds the limit, the log and the report
            name the component that did so.
        cache: limit for ``cache()``, in bytes or as a string.
        cluster: a Dask cluster that may also run stages, given as its scheduler's address or a client. cedar measures
            its overhead once. A saved plan does not contain the cluster; pass it to ``Plan.load(cluster=)``.
        layout: a directory or URL in which cedar stores preprocessed splits as memory-mapped Arrow files, after all
            operators whose results are the same in every epoch. Later epochs read these files, and so do later runs
            with the same pipeline and data. Rows, order and states stay the same. ``cache=`` limits the files' size.

    Raises:
        PipelineError: an invalid value, at the user's line.

    Examples:
        >>> Budget(cpus=4, memory="2GiB").memory_bytes
        2147483648
    """

    cpus: int | None = None
    memory: int | str | None = None
    cache: int | str | None = None
    cluster: Any = None
    layout: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "cpus", as_int(self.cpus))
        if self.cpus is not None and not _whole(self.cpus, least=1):
            raise invalid_call(f"Budget(cpus={self.cpus!r}): an integer of cores, at least 1", fix="such as cpus=8")
        _size(self.memory, "memory", least=1)
        _size(self.cache, "cache", least=0)
        if self.cluster is not None and not _names_cluster(self.cluster):
            raise invalid_call(
                f"Budget(cluster={self.cluster!r:.80}): neither the address of a Dask scheduler nor a Dask client",
                fix='such as cluster="tcp://10.0.0.1:8786"',
            )

        if self.layout is not None and not (isinstance(self.layout, str | os.PathLike) and os.fspath(self.layout)):
            raise invalid_call(f"Budget(layout={self.layout!r:.80}) names no place", fix="a directory or a URL")

    @property
    def layout_place(self) -> str | None:
        """The directory or URL for preprocessed splits."""
        return None if self.layout is None else os.fspath(self.layout)

    @property
    def memory_bytes(self) -> int | None:
        """Bytes that the process and its workers may use."""
        return _size(self.memory, "memory", least=1)

    @property
    def cache_bytes(self) -> int | None:
        """Bytes that ``cache()`` may store; 0 disables it."""
        return _size(self.cache, "cache", least=0)


@dataclass(frozen=True)
class Cluster:
    """A cluster that may run stages, and its measured overhead.

    Args:
        address: the scheduler's address, which is also the executor's name in plans.
        threads: how many tasks run concurrently.
        ship_seconds: seconds to send a task and get its result, not counting the transfer of rows.
        ship_bytes: bytes per second to and from the cluster.
    """

    address: str
    threads: int
    ship_seconds: float
    ship_bytes: float


def _names_cluster(value: Any) -> bool:
    return "://" in value if isinstance(value, str) else hasattr(value, "scheduler")


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _size(value: Any, option: str, least: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        return parse_bytes(value, option)
    if not _whole(value, least):
        raise invalid_call(
            f"Budget({option}={value!r}): an integer of bytes, or a size as text", fix=f'such as {option}="2GiB"'
        )
    return int(value)
