"""Step: one change of a plan's graph, the facts on which steps and rules decide, and functions that edit graphs.

Every new node refers to the node that it replaces.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, TypeVar

from cedar.datasets.base import Read
from cedar.datasets.filesource import FileSource
from cedar.operators.base import Operator, Schema
from cedar.operators.cache import StoresRows
from cedar.operators.expressions import ColumnEdit, Select
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.profile import OperatorProfile, Profile


class Step(ABC):
    """A change of the graph at one node and its inputs. Subclasses are frozen dataclasses of plain values.

    A step preserves the node's rows, with their keys, order and skipped rows, and all columns that later nodes read.
    ``check`` alone guarantees this; the docstring of each step explains why.
    """

    downward: ClassVar[bool] = False  # True if the step depends on which columns later nodes read

    @abstractmethod
    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        """Return why the step may not be applied at this node; None if it may."""

    def fields(self) -> dict[str, Any]:
        """Return the step's values by name, for saved plans."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @abstractmethod
    def apply(self, graph: Node, facts: Facts) -> Node:
        """Return the node that replaces this one. Call this method only if ``check`` returned None."""


def shared(below: Node, facts: Facts) -> str | None:
    """Return why a step may not change a node that has several consumers; None if it has only one consumer."""
    return f"others draw from {facts.label(below)}, too" if len(facts.consumers[id(below)]) > 1 else None


def run_below(top: Node, count: int) -> list[Node] | None:
    """Return the chain of ``count`` nodes that ends in ``top``, inputs first; None if there is no such chain."""
    run = [top]
    while len(run) < count:
        if len(run[-1].inputs) != 1:
            return None
        run.append(run[-1].inputs[0])
    return run[::-1]


def rebuilt(node: Node, inputs: tuple[Node, ...], facts: Facts, operator: Operator | None = None) -> Node:
    """Return a copy of ``node`` with other inputs or another operator; its ``origin`` stays the node as written."""
    origin = None if facts.ordinal(node) is None else node.logical
    return Node(operator or node.operator, inputs, node.site, origin, node.place)


def only(below: Node, names: tuple[str, ...]) -> Node:
    """Return a new node that selects these columns of ``below``."""
    return Node(Select(names), (below,))


def is_inserted(node: Node, facts: Facts) -> bool:
    """Return whether a node is a selection that the optimizer inserted."""
    return node.projection is not None and facts.ordinal(node) is None


def fitted(node: Node, inputs: tuple[Node, ...], facts: Facts) -> Node:
    """Return ``node`` with other inputs, without drops and renames of columns that the inputs no longer have.

    The function also adds the new node to ``facts``.
    """
    made = with_inputs(node, inputs, facts)
    if made is node and id(node) in facts.nodes:
        return node  # unchanged
    node = made
    below = inputs[0].schema if len(inputs) == 1 else None
    if below is not None and isinstance(node.operator, ColumnEdit):
        operator = node.operator.fitted(below)
        if operator is None:
            node = node.inputs[0]
        elif operator is not node.operator:
            node = rebuilt(node, node.inputs, facts, operator)
    facts.learn(node)
    return node


def with_inputs(node: Node, inputs: tuple[Node, ...], facts: Facts) -> Node:
    """Return ``node`` with these inputs; the node itself if they are unchanged."""
    return node if inputs == node.inputs else rebuilt(node, inputs, facts)


# ---- tolerances ------------------------------------------------------------------------------------------------------


def tolerated(root: Node) -> dict[int, Operator]:
    """Return a plan's operators whose results may be inexact, by the id of the node of the pipeline as written."""
    nodes = graph.walk(root)
    return {id(n.logical): n.operator for n in nodes if n.link is not None and not n.link.exact}


def as_tolerated(root: Node, instead: dict[int, Operator]) -> Node:
    """Return the graph with the operators in ``instead``, by node id; a new node's ``origin`` is the replaced node."""
    done: dict[int, Node] = {}
    for node in graph.walk(root):
        inputs = tuple(done[id(child)] for child in node.inputs)
        operator = instead.get(id(node), node.operator)
        same = operator is node.operator and inputs == node.inputs
        done[id(node)] = node if same else dataclasses.replace(node, operator=operator, inputs=inputs, origin=node)
    return done[id(root)]


# ---- facts -----------------------------------------------------------------------------------------------------------

Names: TypeAlias = "frozenset[str] | None"  # None means all columns
T = TypeVar("T")


def live_columns(root: Node, out: Names = None) -> dict[int, Names]:
    """Return the columns that the output of each node must have, by the node's ``id()``.

    ``drop`` and ``rename`` do not count as readers: ``fitted`` adapts them if a column is missing.
    """
    live: dict[int, Names] = {id(root): all_of(graph.schemas(root)[id(root)]) if out is None else out}
    for node in reversed(graph.walk(root)):  # consumers come before their inputs
        spread(node, live)
    return live


def leave_unread(root: Node, out: Names = None) -> Node:
    """Return the pipeline with sources that skip the parsing of unread columns, such as in JSON Lines.

    Such a column stays in the output, but contains nulls. Unoptimized runs and samples also use these sources.

    Args:
        root: the pipeline's last node.
        out: the output columns that are read; None means all.
    """
    read = [(node, graph.source_of(node)) for node in graph.sources(root)]
    lazy = [(node, source) for node, source in read if isinstance(source, FileSource) and source.can_skip_parsing]
    if not lazy:
        return root
    live = live_columns(root, out)
    made: dict[int, Node] = {}
    for node, source in lazy:
        needed = live[id(node)]
        if needed is not None and (unread := frozenset(node.schema or ()) - needed):
            made[id(node)] = dataclasses.replace(node, operator=Read(source.leaving(unread)))
    return graph.replace(root, lambda node: made.get(id(node)))


def spread(node: Node, live: dict[int, Names]) -> None:
    """Add the columns that ``node`` needs from its inputs to ``live``."""
    for child, needed in zip(node.inputs, needs_each(node, live[id(node)]), strict=True):
        live[id(child)] = needed if id(child) not in live else union(live[id(child)], needed)


def needs_each(node: Node, out: Names) -> list[Names]:
    """Return the columns that ``node`` needs from each input to deliver the columns ``out``."""
    if alike(node) and any(child.schema is None for child in node.inputs):
        return [all_of(child.schema) for child in node.inputs]  # they must have the same columns; some are unknown
    return [needs(node, child, out) for child in node.inputs]


def needs(node: Node, child: Node, out: Names) -> Names:
    """Return the columns that ``node`` needs from one of its inputs."""
    operator, effects, schema = node.operator, node.effects, child.schema
    others_read = isinstance(operator, StoresRows) and operator.storage != "auto" and not operator.layout
    if effects.reads is None or effects.writes is None or others_read:  # other pipelines may read the cache, too
        return all_of(schema)
    if effects.survivors is not None:
        return effects.reads
    if out is None:
        return all_of(schema)
    if new := node.renames:
        names = out - set(new.values()) if schema is None else frozenset(schema) - set(new)
        return frozenset(n for n in names if n in out) | {old for old in new if new[old] in out}
    needed = (out - effects.writes) | effects.reads
    return needed if schema is None else needed & frozenset(schema)


def alike(node: Node) -> bool:
    """Return whether the inputs must have the same columns: each output row is a row of any one of them."""
    return node.operator.inputs is None and node.row_use.rows != "paired"


def all_of(schema: Schema) -> Names:
    """Return the names of all columns."""
    return None if schema is None else frozenset(schema)


def union(first: frozenset[T] | None, second: frozenset[T] | None) -> frozenset[T] | None:
    """Return the columns or fields that are in either set; None means all."""
    return None if first is None or second is None else first | second


Factors: TypeAlias = Callable[[Node], Mapping[str, float]]


@dataclass(frozen=True)
class Refusal:
    """Why a step may not be applied, or a rule does not apply."""

    reason: str
    what: str = ""


@dataclass(frozen=True)
class CacheLimits:
    """The limits of storing rows between epochs.

    Args:
        bytes: the memory available for stored rows, in bytes.
        wanted: whether rows may be stored even if the pipeline has no ``cache()``.
        layout: a directory or URL for copies of the sources' files in another layout; None makes no copies.
    """

    bytes: int
    wanted: bool = False
    layout: str | None = None


def _reads_from_the_beginning(node: Node) -> bool:
    """Return whether a source has splits that can only be read from their start."""
    try:
        return graph.splits_of(node).streams
    except Exception:  # noqa: BLE001 - the run lists them again and reports the error
        return True


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
        nodes: the nodes of this graph and of earlier versions, so that ids stay unique.
        consumers: for each node, the nodes that read from it.
        live: for each node, the columns that it must deliver; None, or a missing entry, means all.
        streams: returns whether a source has splits that can only be read from their start; by default from its splits.
        alone: whether a step may move only one operator, because several moves together cost more.
        keeping: the limits of storing rows; None if rows may not be stored.
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
    streams: Callable[[Node], bool] = _reads_from_the_beginning
    alone: bool = False
    keeping: CacheLimits | None = None
    factors: Factors | None = None
    nodes: dict[int, Node] = field(default_factory=dict, repr=False)
    consumers: dict[int, list[Node]] = field(default_factory=dict)
    live: dict[int, Names] = field(default_factory=dict)

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
        return replace(self, root=root, consumers=consumers, live=live_columns(root))

    def learn(self, root: Node) -> None:
        """Derive schemas of new nodes, and consumers of their inputs.

        Raises:
            CedarError: an operator rejects the columns of its inputs.
        """
        for node in graph.walk(root, self.nodes):
            _ = node.schema  # inputs come first, so a long pipeline does not exceed the recursion limit
            self.nodes[id(node)] = node
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
        return self.labels.get(id(node.logical)) or node.operator.label()

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
    logical: Node, root: Node, skips: Callable[[Node], bool], profile: Profile | None = None, **limits: Any
) -> Facts:
    """Return the facts of a graph before rewriting; ``limits`` are the values of other fields of ``Facts``."""
    ordinals = {id(node): i for i, node in enumerate(graph.walk(logical))}
    return Facts(logical, ordinals, graph.labels(logical), skips, root, profile, **limits).at(root)
