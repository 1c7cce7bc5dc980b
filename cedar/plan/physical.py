"""Physical plan: what a run does, as data: its stages, the streams between them, and where each stage runs.

Operators are identified by number: their index in ``graph.walk`` of the lowered graph, inputs first. Stages are
numbered in the order in which rows pass them. The cost model prices a physical plan, the executor runs it,
``explain()`` shows it, a saved plan recreates it, and checks and audits compare it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from cedar.operators.base import Schema
from cedar.plan.graph import Node

TASK_SECONDS = 0.05  # target duration of tasks whose kernels run Python once per row

Kind: TypeAlias = Literal["read", "task", "group", "window", "stream", "deal"]


@dataclass(frozen=True)
class Branch:
    """A marker in a row's path: from here on, the row belongs to this input of a concat."""

    concat: int
    input: int


Link: TypeAlias = "int | Branch"


@dataclass(frozen=True)
class Work:
    """An operator of the graph, as the rest of the plan needs it.

    Args:
        ordinal: number of the operator as written whose work it does; -1 if an optimizer inserted it.
        label: its name in messages.
        inputs: numbers of its input operators.
        place: the executor it was assigned to; "" means its input's. Stages say where it actually runs.
        detail: what a plan changed about it, such as the columns that a scan reads.
        batched: it delivers batches.
        preserves_slots: it delivers one output position per input position, even if the row is skipped.
        refills: the next row may take the position of a row that failed.
        schema: the output columns, as far as they are known without running.
    """

    ordinal: int
    label: str
    inputs: tuple[int, ...] = ()
    place: str = field(default="", compare=False)
    detail: tuple[object, ...] = ()
    batched: bool = False
    preserves_slots: bool = True
    refills: bool = False
    schema: Schema = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Segment:
    """A source, and the operators that the reading task applies to its rows.

    Args:
        links: the operators and concat branches, lowest first.
        kept: how many of them have their output cached, by the ``cache()`` with number ``cache``.
        streaming: it can only be read from its start.
    """

    source: int
    links: tuple[Link, ...] = ()
    kept: int = 0
    cache: int = -1
    streaming: bool = False


@dataclass(frozen=True)
class Stage:
    """Operators that run together.

    Args:
        kind: "read" reads splits; "task" processes rows or batches; "group" processes groups of exactly n rows;
            "window" ends a stream's windows; a "stream" operator runs in the coordinator; "deal" divides units by rank.
        out: the operator whose rows leave the stage.
        inputs: numbers of its input stages.
        operators: lowest first; in a read stage, those that all segments share.
        segments: what is read, in order.
        place: the executor of its tasks, if it differs from the run's.
        windows: the operator above that works window by window; -1 if none does.
        pads: the ``batch`` whose batches are padded first; -1 for none.
        preserves_units: it delivers exactly the units that it receives.
        small: Python runs once per row, so tasks are sized by measured time.
    """

    kind: Kind
    out: int
    inputs: tuple[int, ...] = ()
    operators: tuple[int, ...] = ()
    segments: tuple[Segment, ...] = ()
    place: str = ""
    windows: int = -1
    pads: int = -1
    preserves_units: bool = True
    small: bool = False


@dataclass(frozen=True)
class Physical:
    """A plan as it runs, the same on every rank and in every epoch.

    Args:
        works: the operators of the graph.
        stages: inputs first; the loader pulls from the last one.
        nodes: the graph's nodes, for code that binds kernels to them.
    """

    works: tuple[Work, ...]
    stages: tuple[Stage, ...]
    nodes: tuple[Node, ...] = field(repr=False, compare=False)

    @property
    def root(self) -> Node:
        """The root node of the graph."""
        return self.nodes[-1]

    @cached_property
    def deal(self) -> int:
        """The number of the stage that distributes units over ranks."""
        return next(i for i, stage in enumerate(self.stages) if stage.kind == "deal")

    def __str__(self) -> str:
        """Return one line per stage."""
        return "\n".join(f"{number:>3}  {self.describe(stage)}" for number, stage in enumerate(self.stages))

    def describe(self, stage: Stage) -> str:
        """Describe a stage on one line."""
        sources = [segment.source for segment in stage.segments]
        work = " -> ".join(self.works[i].label for i in (*sources, *stage.operators)) or "gather"
        reported = [
            f"in {stage.place}" if stage.place else "",
            f"windows of {self.works[stage.windows].label}" if stage.windows >= 0 else "",
            "small tasks" if stage.small else "",
            f"of {', '.join(map(str, stage.inputs))}" if stage.inputs else "",
        ]
        return "  ".join([f"{stage.kind:<6}", work, *filter(None, reported)])
