"""Facts about the graph that steps and rules use to decide on a node."""

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
    """Why a step may not be applied, or a rule does not apply."""

    reason: str
    what: str = ""


@dataclass(frozen=True)
class CacheCosts:
    """The costs and limits of storing rows between epochs.

    Args:
        seconds_per_byte: returns the cost of reading stored rows back from a location, given as in ``cache(where)``.
        bytes: the memory available for stored rows, in bytes.
        wanted: whether rows may be stored even if the pipeline has no ``cache()``.
        layout: a directory or URL for copies of the sources' files in another layout; None makes no copies.
    """

    seconds_per_byte: Callable[[str], float]
    bytes: int
    wanted: bool = False
    layout: str | None = None


@dataclass(frozen=True)
class Facts:
    """Facts about the graph during one pass over it. Dicts have the nodes' ``id()`` as keys.

    Args:
        logical: the pipeline as written.
        ordinals: indices of the nodes of ``logical``, inputs first.
        labels: labels of the nodes of ``logical``.
        skips: returns whether a node has a policy for rows that fail (its own or the loader's).
        profile: measurements; None if nothing was measured yet.
        exact: False allows rewrites that change results within an operator's tolerance.
        refused: names of rules that are not tried.
        root: the graph that is being rewritten.
        schemas: schemas of the nodes of this graph and of earlier versions.
        consumers: for each node, the nodes that read from it.
        live: for each node, the columns that it must deliver; None, or a missing entry, means all.
        streams: returns whether a source has splits that can only be read from their start.
        keeping: the costs of storing rows; None if rows may not be stored.
        factors: returns how often rows repeat in each column of a ``dedup()``, from a sample of its source.
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
    _nodes: list[Node] = field(default_factory=list, repr=False)  # keeps nodes alive, so that ids stay unique

    @cached_property
    def readers(self) -> dict[Hashable, list[Node]]:
        """The source nodes of the graph, grouped by the files or object that they read."""
        readers: dict[Hashable, list[Node]] = {}
        for node in graph.sources(self.root):
            readers.setdefault(read_from(node), []).append(node)
        return readers

    def at(self, root: Node) -> Facts:
        """Return the facts of another graph of the same pipeline, reusing facts of nodes that both graphs contain."""
        self.learn(root)
        consumers: dict[int, list[Node]] = {id(root): []}
        for node in graph.walk(root):
            for child in node.inputs:
                consumers.setdefault(id(child), []).append(node)
        return replace(self, root=root, consumers=consumers, live=live_columns(root, self.schemas))

    def moving(self) -> Facts:
        """Return facts for a graph that changes in a pass; update them with ``learn`` and ``replace_node``."""
        return replace(self, consumers=dict(self.consumers), live=dict(self.live))

    def learn(self, root: Node) -> None:
        """Derive schemas and consumers of new nodes from their inputs.

        Raises:
            CedarError: an operator rejects the columns of its inputs.
        """
        for node in graph.walk(root, self.schemas):
            operator = node.operator
            below = [self.schemas[id(child)] for child in node.inputs]
            key = id(operator), *map(id, below)
            with graph.at_site(node):
                if key not in self._learned:
                    self._learned[key] = operator.schema(*below)
                _ = node.batched  # compute and cache it now, while the inputs' values are cached
            self.schemas[id(node)] = self._learned[key]
            self._nodes.append(node)
            for child in node.inputs:
                self.consumers[id(child)] = [*self.consumers.get(id(child), ()), node]

    def replace_node(self, new: Node, old: Node) -> None:
        """Record that ``new`` replaces ``old`` for all consumers of ``old``."""
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
        """Remove ``node`` from the consumers of ``child``; return the number left, or None if it was not a consumer."""
        before = self.consumers.get(id(child), [])
        after = [each for each in before if each is not node]
        if len(after) == len(before):
            return None
        self.consumers[id(child)] = after
        return len(after)

    def label(self, node: Node) -> str:
        """Return the label of the corresponding node of the pipeline as written."""
        return self.labels.get(id(node.logical), node.operator.label())

    def ordinal(self, node: Node) -> int | None:
        """Return the node's index in the pipeline as written; None if the optimizer inserted it."""
        return self.ordinals.get(id(node.logical))

    def figures(self, node: Node) -> OperatorProfile | None:
        """Return the measurements of the node; None if there are none."""
        ordinal = self.ordinal(node)
        return None if self.profile is None or ordinal is None else self.profile.operators.get(ordinal)


def read_from(node: Node) -> Hashable:
    """Return a key that identifies a source's data: its file paths, or the id of the source object."""
    source = node.operator.source if isinstance(node.operator, Read) else node
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
    """Return the facts of a graph before rewriting.

    Args:
        logical: the pipeline as written.
        root: the graph.
        skips: returns whether a node has a policy for rows that fail.
        profile: measurements.
        exact: False allows rewrites within an operator's tolerance.
        refused: names of rules that are not tried.
        streams: returns whether a source can only be read from its start; by default, this function lists the splits.
        keeping: the costs of storing rows between epochs; None if rows may not be stored.
        factors: returns how often rows repeat in the columns of a ``dedup()``; None means that this is unknown.
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
    except Exception:  # noqa: BLE001 - the run lists them again and reports the error
        return True
