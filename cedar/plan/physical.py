"""Physical: what a run does, as data: stages, the streams between them, and where each of them runs.

Operators are known by their numbers: places in ``graph.walk`` of the graph that was lowered, inputs first. Stages are
numbered in the order in which rows pass them. The cost model prices this value, the executor runs it, ``explain()``
shows it, a saved plan gives it back, and checks and audits compare it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from cedar.operators.base import Schema
from cedar.plan.graph import Node

TASK_SECONDS = 0.05  # of work in a task whose kernels run Python once per row

Kind: TypeAlias = Literal["read", "task", "group", "window", "stream", "deal"]


@dataclass(frozen=True)
class Branch:
    """On a row's way: from here on it is one of this input of a concat."""

    concat: int
    input: int


Link: TypeAlias = "int | Branch"


@dataclass(frozen=True)
class Work:
    """An operator of the graph, as the rest of the plan needs to know it.

    Args:
        ordinal: of the operator as written whose work it does; -1 for what an optimizer put in.
        label: what people call it.
        inputs: the operators that it draws from.
        place: the executor it was placed on; "" if that of what is below it will do. Where it runs, stages tell.
        detail: what a plan changed of it, such as the columns that a scan reads.
        batched: its unit is the batch.
        keeps_slots: slots in and slots out are the same.
        refills: slots may come from it whose place the next row takes.
        schema: the columns that leave it, as far as they are known without running.
    """

    ordinal: int
    label: str
    inputs: tuple[int, ...] = ()
    place: str = field(default="", compare=False)
    detail: tuple[object, ...] = ()
    batched: bool = False
    keeps_slots: bool = True
    refills: bool = False
    schema: Schema = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Segment:
    """A source, and what its rows go through in the task that reads them.

    Args:
        links: lowest first.
        kept: how many of them are behind a ``cache()``, and ``cache`` is which.
        streaming: it can only be read from its beginning.
    """

    source: int
    links: tuple[Link, ...] = ()
    kept: int = 0
    cache: int = -1
    streaming: bool = False


@dataclass(frozen=True)
class Stage:
    """A run of operators that work together.

    Args:
        kind: "read" takes splits, "task" rows or batches, "group" exactly so many rows; a "window" marks where the
            windows of a stream end, a "stream" operator runs in the coordinator, "deal" is where ranks part.
        out: the operator whose rows leave it.
        inputs: the stages that it draws from.
        operators: lowest first; of a stage that reads, those that all its segments share.
        segments: what is read, in order.
        place: the executor of its tasks, where that is not the run's own.
        windows: the operator above that works window by window; -1 if nothing does.
        pads: the ``batch`` whose batches are filled before anything else; -1 for none.
        keeps_units: units in and units out are the same.
        small: Python runs once per row, so tasks are cut by measured time.
    """

    kind: Kind
    out: int
    inputs: tuple[int, ...] = ()
    operators: tuple[int, ...] = ()
    segments: tuple[Segment, ...] = ()
    place: str = ""
    windows: int = -1
    pads: int = -1
    keeps_units: bool = True
    small: bool = False


@dataclass(frozen=True)
class Physical:
    """A plan as it runs, on every rank and in every epoch.

    Args:
        works: the operators of the graph.
        stages: inputs first; the last one is what a loader pulls.
        nodes: of the graph itself, for who binds kernels to it.
    """

    works: tuple[Work, ...]
    stages: tuple[Stage, ...]
    nodes: tuple[Node, ...] = field(repr=False, compare=False)

    @property
    def root(self) -> Node:
        """The graph."""
        return self.nodes[-1]

    @cached_property
    def deal(self) -> int:
        """The number of the stage where ranks part."""
        return next(i for i, stage in enumerate(self.stages) if stage.kind == "deal")

    def __str__(self) -> str:
        """A line a stage."""
        return "\n".join(f"{number:>3}  {self.describe(stage)}" for number, stage in enumerate(self.stages))

    def describe(self, stage: Stage) -> str:
        """A stage on one line."""
        sources = [segment.source for segment in stage.segments]
        work = " -> ".join(self.works[i].label for i in (*sources, *stage.operators)) or "gather"
        reported = [
            f"in {stage.place}" if stage.place else "",
            f"windows of {self.works[stage.windows].label}" if stage.windows >= 0 else "",
            "small tasks" if stage.small else "",
            f"of {', '.join(map(str, stage.inputs))}" if stage.inputs else "",
        ]
        return "  ".join([f"{stage.kind:<6}", work, *filter(None, reported)])
