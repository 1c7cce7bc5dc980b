"""Physical plan: the stages of a run, the streams between them, and the executor of each stage.

Operators are identified by their index in ``graph.walk`` of the plan's graph, inputs first. Stages are numbered in
the order in which rows pass them. The cost model predicts the throughput of a physical plan, the executor runs it,
``explain()`` shows it, a saved plan recreates it, and checks and audits compare it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from cedar.plan.graph import Node

TASK_SECONDS = 0.1  # target duration of tasks whose kernels run Python once per row

Kind: TypeAlias = Literal["read", "task", "group", "window", "stream", "deal"]


@dataclass(frozen=True)
class Branch:
    """Marks where the rows of a segment become the input with index ``input`` of a concat."""

    concat: int
    input: int


Link: TypeAlias = "int | Branch"


@dataclass(frozen=True)
class Work:
    """Describes an operator of the graph.

    Args:
        ordinal: the index of the operator in the pipeline as written; -1 if an optimizer inserted it.
        label: the operator's name in messages.
        inputs: indices of the input operators.
        place: the assigned executor; "" means the input's. The executor that runs it is in its ``Stage``.
        detail: what a plan changed about the operator, such as the columns that a scan reads.
        batched: whether the operator delivers batches.
        preserves_slots: whether the operator delivers one output slot per input slot, even for skipped rows.
        refills: whether the next row may take the slot of a row that failed.
    """

    ordinal: int
    label: str
    inputs: tuple[int, ...] = ()
    place: str = field(default="", compare=False)
    detail: tuple[object, ...] = ()
    batched: bool = False
    preserves_slots: bool = True
    refills: bool = False


@dataclass(frozen=True)
class Segment:
    """A source, and the operators that the reading task applies to its rows.

    Args:
        links: the operators and concat branches, in the order in which rows pass them.
        kept: the number of leading links whose output the ``cache()`` with index ``cache`` stores.
        streaming: whether the source can only be read from its start.
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
        out: the operator whose output leaves the stage.
        inputs: indices of the input stages.
        operators: the stage's operators, in the order in which rows pass; a read stage applies them to all segments.
        segments: the sources that a read stage reads, in order.
        place: the executor of the stage's tasks, if it differs from the run's.
        windows: the later operator that works window by window; -1 if none does.
        pads: the ``batch`` whose batches are padded before the operators run; -1 if none is.
        preserves_units: whether the stage delivers exactly the units that it receives.
        small: whether Python runs once per row, so that tasks are sized by measured time.
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
    """A plan's stages, which are the same on every rank and in every epoch.

    Args:
        works: descriptions of the graph's operators.
        stages: the stages, inputs first; the loader pulls from the last one.
        nodes: the graph's nodes, for code that binds kernels to them; the last one is its root.
        deal: the index of the stage that distributes units over ranks.
    """

    works: tuple[Work, ...]
    stages: tuple[Stage, ...]
    nodes: tuple[Node, ...] = field(repr=False, compare=False)
    deal: int
