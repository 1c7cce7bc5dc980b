"""What steps and rules may know next to the node they look at."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from cedar.datasets.base import Read
from cedar.datasets.filesource import FileSource
from cedar.datasets.split_table import SplitTable
from cedar.operators.base import Schema
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.steps.live import Names, live_columns, union
from cedar.profile import OperatorProfile, Profile

Factors: TypeAlias = Callable[[Node], Mapping[str, float]]


@dataclass(frozen=True)
class Refusal:
    """Why a step may not be taken, or a rule does not apply."""

    reason: str
    what: str = ""


@dataclass(frozen=True)
class CacheCosts:
    """What it costs to keep rows from one epoch to the next, and how many may be kept.

    Args:
        seconds_per_byte: to read them back, by place (as ``cache(where)`` takes it).
        bytes: room in memory.
        wanted: rows may be kept where the pipeline does not say so.
        layout: a directory or URL where the rows of files are written in another layout; None leaves them unchanged.
    """

    seconds_per_byte: Callable[[str], float]
    bytes: int
    wanted: bool = False
    layout: str | None = None


@dataclass(frozen=True)
class Facts:
    """Of one pass over a graph.

    Args:
        logical: the pipeline as written.
        ordinals: of its nodes, by id; inputs first.
        labels: of its nodes, by id.
        skips: whether a node has a policy for rows that fail (its own, or the loader's).
        profile: what was measured; None at first.
        exact: False allows rewrites within an operator's tolerance.
        refused: names of rules that are not tried.
        root: the graph under rewriting.
        schemas: of the nodes of this graph and of those before it, by id.
        consumers: the nodes of the graph that draw from a node, by id.
        live: the columns that each of its nodes must give, by id; None, and no entry, is all.
        streams: whether a source has splits that can only be read from their beginning.
        keeping: None if nothing is kept.
        factors: of a ``dedup()``: how often rows of each of its columns repeat where they are read, from a sample.
    """

    logical: Node
    ordinals: dict[int, int]
    labels: dict[int, str]
    skips: Callable[[Node], bool]
    root: Node
    profile: Profile | None = None
    exact: bool = True
    refused: frozenset[str] = field(default_factory=frozenset)
    streams: Callable[[Node], bool] = lambda _: True
    keeping: CacheCosts | None = None
    factors: Factors | None = None
    schemas: dict[int, Schema] = field(default_factory=dict)
    consumers: dict[int, list[Node]] = field(default_factory=dict)
    live: dict[int, Names] = field(default_factory=dict)
    _learned: dict[tuple[int, ...], Schema] = field(default_factory=dict, repr=False)
    _nodes: list[Node] = field(default_factory=list, repr=False)  # so that no other node gets their ids

    @cached_property
    def readers(self) -> dict[Hashable, list[Node]]:
        """The sources of the graph, by what they read from."""
        readers: dict[Hashable, list[Node]] = {}
        for node in graph.sources(self.root):
            readers.setdefault(read_from(node), []).append(node)
        return readers

    def at(self, root: Node) -> Facts:
        """The facts of another graph of the same pipeline; what is known of nodes that both have stays known."""
        self.learn(root)
        consumers: dict[int, list[Node]] = {id(root): []}
        for node in graph.walk(root):
            for child in node.inputs:
                consumers.setdefault(id(child), []).append(node)
        return replace(self, root=root, consumers=consumers, live=live_columns(root, self.schemas))

    def moving(self) -> Facts:
        """The facts of a graph that changes in a pass: ``learn`` and ``stands_for`` tell what they are of new nodes."""
        return replace(self, consumers=dict(self.consumers), live=dict(self.live))

    def learn(self, root: Node) -> None:
        """What follows for new nodes from what is below them.

        Raises:
            CedarError: what an operator says of columns that do not fit it.
        """
        for node in graph.walk(root, self.schemas):
            operator = node.operator
            below = [self.schemas[id(child)] for child in node.inputs]
            key = id(operator), *map(id, below)
            with graph.at_site(node):
                if key not in self._learned:
                    self._learned[key] = operator.schema(*below)
                _ = node.batched  # from its inputs, which are known
            self.schemas[id(node)] = self._learned[key]
            self._nodes.append(node)
            for child in node.inputs:
                self.consumers[id(child)] = [*self.consumers.get(id(child), ()), node]

    def stands_for(self, new: Node, old: Node) -> None:
        """``new`` gives what ``old`` gave, to the same nodes; nothing draws from ``old`` any more."""
        if new is old:
            return
        live = self.live.get(id(old))
        self.live[id(new)] = union(self.live[id(new)], live) if id(new) in self.live else live
        for child in new.inputs:
            self._leaves(old, child)
        self.consumers[id(new)] = [*self.consumers.get(id(new), ()), *self.consumers.pop(id(old))]
        gone = [old]
        while gone:
            node = gone.pop()
            gone += [child for child in dict.fromkeys(node.inputs) if self._leaves(node, child) == 0]

    def _leaves(self, node: Node, child: Node) -> int | None:
        """``node`` does not draw from ``child`` any more; how many still do, if it did."""
        before = self.consumers.get(id(child), [])
        after = [each for each in before if each is not node]
        if len(after) == len(before):
            return None
        self.consumers[id(child)] = after
        return len(after)

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


def read_from(node: Node) -> Hashable:
    """The files, or the source itself."""
    source = getattr(node.operator, "source", node)
    return source.paths if isinstance(source, FileSource) else id(source)


def facts_of(
    logical: Node,
    root: Node,
    skips: Callable[[Node], bool],
    profile: Profile | None = None,
    *,
    exact: bool = True,
    refused: frozenset[str] = frozenset(),
    streams: Callable[[Node], bool] | None = None,
    keeping: CacheCosts | None = None,
    factors: Factors | None = None,
) -> Facts:
    """The facts of a graph under rewriting.

    Args:
        logical: the pipeline as written.
        root: the graph.
        skips: whether a node has a policy for rows that fail.
        profile: what was measured.
        exact: False allows rewrites within an operator's tolerance.
        refused: names of rules not to try.
        streams: whether a source is read from its beginning only; by default its splits tell, which are listed here.
        keeping: what it costs to keep rows between epochs; None if nothing is kept.
        factors: how often rows repeat, of the columns of a ``dedup()``; None if that is not to be found out.
    """
    return Facts(
        logical=logical,
        ordinals={id(node): i for i, node in enumerate(graph.walk(logical))},
        labels=graph.labels(logical),
        skips=skips,
        profile=profile,
        exact=exact,
        refused=refused,
        root=root,
        streams=streams or _reads_from_the_beginning,
        keeping=keeping,
        factors=factors,
    ).at(root)


def _reads_from_the_beginning(node: Node) -> bool:
    assert isinstance(node.operator, Read)
    try:
        return SplitTable.of(node.operator.source.splits()).streams
    except Exception:  # noqa: BLE001 - the run lists them again, and says what is wrong
        return True
