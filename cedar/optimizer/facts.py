"""What rules may know beside the node they look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from cedar.graph import Node
from cedar.operators.base import Schema
from cedar.profile import OperatorProfile, Profile

Factors: TypeAlias = Callable[[Node], Mapping[str, float]]


@dataclass(frozen=True)
class Refusal:
    """A rule that would apply, and why it does not."""

    reason: str
    what: str = ""


@dataclass(frozen=True)
class Change:
    """A rewritten node, and how to tell people.

    Args:
        node: instead of the one that the rule looked at.
        what: the operator that moved or changed, as messages call it.
        how: such as "below map(f)".
    """

    node: Node
    what: str
    how: str = ""


@dataclass(frozen=True)
class Keeping:
    """What it costs to keep rows from one epoch to the next, and how many may be kept.

    Args:
        seconds_per_byte: to read them back, by place (as ``cache(where)`` takes it).
        bytes: room in memory.
        wanted: rows may be kept where the pipeline does not say so.
    """

    seconds_per_byte: Callable[[str], float]
    bytes: int
    wanted: bool = False


@dataclass(frozen=True)
class Facts:
    """Of one pass over a graph.

    Args:
        logical: the pipeline as written.
        ordinals: of its nodes, by id; inputs first.
        labels: of its nodes, by id.
        schemas: of the nodes of the graph under rewriting, by id.
        consumers: how many nodes draw from a node of it, by id.
        skips: whether a node has a policy for rows that fail (its own, or the loader's).
        profile: what was measured; None at first.
        exact: False allows rewrites within an operator's tolerance.
        refused: names of rules that are not tried.
        root: the graph under rewriting.
        live: the columns that each of its nodes must give, by id; None, and no entry, is all.
        batched: whether a node's unit is the batch, by id.
        streams: whether a source has splits that can only be read from their beginning.
        keeping: None where nothing is kept.
        factors: of a ``dedup()``: how often rows of each of its columns repeat where they are read, from a sample.
    """

    logical: Node
    ordinals: dict[int, int]
    labels: dict[int, str]
    schemas: dict[int, Schema]
    consumers: dict[int, int]
    skips: Callable[[Node], bool]
    profile: Profile | None = None
    exact: bool = True
    refused: frozenset[str] = field(default_factory=frozenset)
    root: Node | None = None
    live: dict[int, frozenset[str] | None] = field(default_factory=dict)
    batched: dict[int, bool] = field(default_factory=dict)
    streams: Callable[[Node], bool] = lambda _: True
    keeping: Keeping | None = None
    factors: Factors | None = None

    def label(self, node: Node) -> str:
        """What messages call the node of the pipeline that ``node`` stands for."""
        return self.labels.get(id(node.logical), node.operator.label())

    def ordinal(self, node: Node) -> int | None:
        """Its number in the pipeline as written; None for what the optimizer put in."""
        return self.ordinals.get(id(node.logical))

    def figures(self, node: Node) -> OperatorProfile | None:
        """What was measured of it."""
        ordinal = self.ordinal(node)
        return None if self.profile is None or ordinal is None else self.profile.operators.get(ordinal)


class Rule(Protocol):
    """One rewrite: the node instead of ``node``, a refusal, or None where it does not concern the node.

    A function of the rule's name will do. What it changes must lower the measure of the graph (see ``measure``), or the
    rule's own, ``measure(facts)``, a number that no other rule raises.
    """

    __name__: str

    def __call__(self, node: Node, facts: Facts, /) -> Outcome: ...


Outcome: TypeAlias = "Node | Change | Refusal | None"
