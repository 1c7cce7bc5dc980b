"""The logical graph: its nodes, traversal, and fingerprints."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from cedar.core.columns import UNKNOWN, Column, ColumnType
from cedar.core.digests import digest_of
from cedar.core.errors import CedarError, PipelineError, RowError, Site
from cedar.core.printable import one_line
from cedar.datasets.base import BaseSource, Read, skippable
from cedar.datasets.split_table import SplitTable
from cedar.operators.base import Effects, Operator, Ordering, RowOperator, RowUse, Schema, StreamOperator
from cedar.operators.cache import StoresRows
from cedar.operators.expressions import ColumnEdit, Conditional, SeparateResults
from cedar.operators.map_batches import ExactRows
from cedar.operators.split_rows import UsesRowKeys
from cedar.operators.transform import Chainable, Link


@dataclass(frozen=True, eq=False)
class Node:
    """An operator and its input nodes. A node with several consumers is a shared sub-pipeline.

    In a plan's graph, ``origin`` is the node of the pipeline as written that this node replaces (None if the optimizer
    inserted the node). ``place`` is the executor that the node runs on ("" if the run decides).
    """

    operator: Operator
    inputs: tuple[Node, ...] = ()
    site: Site | None = None
    origin: Node | None = None
    place: str = ""

    @cached_property
    def effects(self) -> Effects:
        """The operator's effects, cached because planning reads them repeatedly."""
        return self.operator.effects()

    @cached_property
    def label(self) -> str:
        """The operator's label on one line, which is formatted once."""
        return one_line(self.operator.label())

    @property
    def storage(self) -> str | None:
        """Where the operator stores its input rows for later epochs: "auto", "memory", a directory or a URL."""
        return self.operator.storage if isinstance(self.operator, StoresRows) else None

    @cached_property
    def is_row_operator(self) -> bool:
        """Whether the operator processes each row separately. A function on groups of exactly n rows does not."""
        return isinstance(self.operator, RowOperator) and self.exact_rows is None

    @property
    def exact_rows(self) -> int | None:
        """The exact number of rows that the operator needs at a time; None if it accepts any number."""
        return self.operator.exact_rows if isinstance(self.operator, ExactRows) else None

    @cached_property
    def row_use(self) -> RowUse:
        """How a stream operator uses the rows of its inputs; other operators use each row."""
        return self.operator.row_use if isinstance(self.operator, StreamOperator) else RowUse()

    @cached_property
    def ordering(self) -> Ordering:
        """How a stream operator buffers and orders rows; other operators keep their order."""
        return self.operator.ordering if isinstance(self.operator, StreamOperator) else Ordering()

    @property
    def by_keys(self) -> bool:
        """Whether the result depends on row keys but not on the epoch."""
        return isinstance(self.operator, UsesRowKeys) and not self.effects.reads

    @cached_property
    def filters(self) -> bool:
        """Whether the operator only drops rows."""
        return self.effects.rows == "1:0..1" and self.effects.writes == frozenset()

    @property
    def condition(self) -> Any:
        """The polars expression that the operator filters by; None if it does not."""
        return self.operator.condition if isinstance(self.operator, Conditional) else None

    @property
    def projection(self) -> tuple[str, ...] | None:
        """The columns that the operator keeps, if it does nothing else; otherwise None."""
        return self.operator.projection if isinstance(self.operator, SeparateResults) else None

    @property
    def renames(self) -> Mapping[str, str]:
        """A mapping from old to new column names, if the operator only renames columns."""
        return self.operator.renames if isinstance(self.operator, ColumnEdit) else {}

    @property
    def link(self) -> Link | None:
        """The operator's whole-column transform, if it has one."""
        return self.operator.link if isinstance(self.operator, Chainable) else None

    @property
    def logical(self) -> Node:
        """The corresponding node of the pipeline as written; for a node of that pipeline, the node itself."""
        return self.origin if self.origin is not None else self

    @cached_property
    def schema(self) -> Schema:
        """The output columns, as far as they are known without running."""
        with at_site(self):
            return self.operator.schema(*(child.schema for child in self.inputs))

    @cached_property
    def batched(self) -> bool:
        """Whether the node delivers batches."""
        below = [child.batched for child in self.inputs]
        with at_site(self):
            return self.operator.batched(*below) if isinstance(self.operator, StreamOperator) else any(below)

    def __getstate__(self) -> dict[str, Any]:
        return {
            field.name: self.__dict__[field.name] for field in dataclasses.fields(self)
        }  # without cached properties

    def __post_init__(self) -> None:
        wanted = self.operator.inputs
        if wanted is not None and wanted != len(self.inputs):
            raise PipelineError(
                f"{self.operator.label()} takes {wanted} input(s), not {len(self.inputs)}", site=self.site
            )
        _ = self.batched  # raises for a batch of batches, at the user's line


def walk(node: Node, known: Container[int] = ()) -> list[Node]:
    """Return every node once, inputs first, in a fixed order, except nodes with an id in ``known`` and their inputs."""
    ordered: list[Node] = []
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(node, False)]
    while stack:
        current, expanded = stack.pop()
        if expanded:
            ordered.append(current)
        elif id(current) not in seen and id(current) not in known:
            seen.add(id(current))
            stack.append((current, True))
            for child in reversed(current.inputs):
                stack.append((child, False))  # noqa: PERF401 - a comprehension is a call for each node
    return ordered


def replace(node: Node, rewrite: Callable[[Node], Node | None]) -> Node:
    """Return the graph with ``rewrite`` applied to every node, inputs first; if it returns None, the node is kept."""
    done: dict[int, Node] = {}
    for current in walk(node):
        inputs = tuple(done[id(child)] for child in current.inputs)
        rebuilt = current if inputs == current.inputs else dataclasses.replace(current, inputs=inputs)
        done[id(current)] = rewrite(rebuilt) or rebuilt
    return done[id(node)]


@contextmanager
def at_site(node: Node) -> Iterator[None]:
    """Add the line of user code to any error that an operator or source raises while cedar prepares it for a run."""
    try:
        yield
    except CedarError as error:
        error.site = error.site or node.site
        if isinstance(error, RowError) and isinstance(node.operator, Read) and node.operator.source.reads_files:
            skippable(error)
        raise
    except Exception as error:
        raise PipelineError(
            f"{node.operator.label()} cannot be prepared: {type(error).__name__}: {error}",
            site=node.site,
            done="nothing was delivered",
            fix="see the exception above for its cause",
        ) from error


def schemas(node: Node) -> dict[int, Schema]:
    """Return the schema of every node, by the node's ``id()``, without running the pipeline."""
    return {id(current): current.schema for current in walk(node)}


def labels(node: Node) -> dict[int, str]:
    """Return each node's label for messages, by the node's ``id()``; equal labels are numbered."""
    names: dict[int, str] = {}
    seen: dict[str, int] = {}
    for current in walk(node):
        label = current.label
        seen[label] = seen.get(label, 0) + 1
        names[id(current)] = label if seen[label] == 1 else f"{label} #{seen[label]}"
    return names


def digest(value: Any) -> str:
    """Return 16 hex digits that identify a JSON-able value."""
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def topology(node: Node) -> str:
    """Return a digest of the operators, their connections, and the parameters that determine the order of rows."""
    numbers: dict[int, int] = {}
    rows = []
    for current in walk(node):
        numbers[id(current)] = len(numbers)
        parameters = {} if current.operator.inputs == 0 else current.operator.parameters()
        rows.append([current.operator.name, parameters, [numbers[id(child)] for child in current.inputs]])
    return digest(rows)


def source_of(node: Node) -> BaseSource:
    """Return the source that a source node reads."""
    assert isinstance(node.operator, Read)
    return node.operator.source


def splits_of(node: Node) -> SplitTable:
    """Return the splits of a source, from its metadata."""
    return SplitTable.of(source_of(node).splits())


def calls_functions(node: Node) -> bool:
    """Return whether the node or any of its inputs, direct or indirect, runs user code."""
    return any(current.operator.calls_functions for current in walk(node))


def sources(node: Node) -> list[Node]:
    """Return the source nodes in order; row keys refer to a source by its index in this list."""
    return [current for current in walk(node) if not current.inputs]


def code_digest(node: Node) -> str:
    """Return a digest of the pipeline's functions and expressions, without data that a run may change."""
    return digest([[digest_of(item, data=False) for item in current.operator.code()] for current in walk(node)])


@dataclass(frozen=True, eq=False)
class Scan(Read):
    """The optimized form of a ``Read``.

    Args:
        source: the user's source, unchanged, because windows and row keys depend on its metadata.
        columns: the output columns; None means all. ``"a.b"`` is a field of the struct column ``a``, which then has
            only the listed fields, in the source's order.
        where: expression filters that run inside the scan, in order. The scan reads the filters' columns first, and
            other columns only if some rows pass.
    """

    columns: tuple[str, ...] | None = None
    where: tuple[Node, ...] = ()

    def schema(self, *inputs: Schema) -> Schema:
        known = super().schema()
        if known is None or self.columns is None:
            return known
        chosen = chosen_fields(self.columns, known)
        return {name: narrowed_type(known.get(name, UNKNOWN), paths) for name, paths in chosen.items()}


def chosen_fields(columns: Iterable[str], known: Iterable[str]) -> dict[str, list[str] | None]:
    """Return, for each column, the paths of the fields chosen from it; None means the whole column.

    Examples:
        >>> chosen_fields(["a.b", "a.c.d", "x.y"], ["a", "x.y"])
        {'a': ['b', 'c.d'], 'x.y': None}
    """
    names = set(known)
    chosen: dict[str, list[str] | None] = {}
    for path in columns:
        top, _, rest = (path, "", "") if path in names else path.partition(".")
        before = chosen.get(top, [])
        chosen[top] = [*before, rest] if rest and before is not None else None
    return chosen


def dotted(name: str, fields: Iterable[tuple[str, ...]], known: Schema) -> list[str] | None:
    """Return a struct column's fields in dotted notation ("a.b"), in order; None if the whole column must be read.

    Args:
        name: the column's name.
        fields: the paths of the fields inside the column; no path passes through a list.
        known: the columns of the source.
    """
    kind = (known or {}).get(name)
    paths = sorted(set(fields))
    paths = [path for path in paths if not any(path[:n] in paths for n in range(1, len(path)))]
    unclear = any("." in part for path in paths for part in (name, *path))
    unclear = unclear or any(
        other.startswith(f"{name}.") for other in known or ()
    )  # a column with a dotted name takes precedence
    chosen = [".".join((name, *path)) for path in paths]
    if not chosen or unclear or not isinstance(kind, pa.StructType):
        return None
    return chosen if narrowed_type(kind, [path[len(name) + 1 :] for path in chosen]) != kind else None


def narrowed_type(kind: ColumnType, paths: Sequence[str] | None) -> ColumnType:
    """Return a struct type with only the fields at ``paths``, in their order; other types unchanged."""
    if paths is None or not isinstance(kind, pa.DataType) or not pa.types.is_struct(kind):
        return kind
    chosen = chosen_fields(paths, ())
    return pa.struct([(f.name, narrowed_type(f.type, chosen[f.name])) for f in kind if f.name in chosen])


def narrowed(column: Column, kind: Any) -> Column:
    """Return a struct column with only the fields of ``kind``, nulls included; other columns unchanged."""
    if not isinstance(column, pa.StructArray) or not isinstance(kind, pa.StructType) or column.type == kind:
        return column
    positions = {column.type.field(i).name: i for i in range(column.type.num_fields)}
    if any(f.name not in positions for f in kind):
        return column
    fields = [narrowed(column.field(positions[f.name]), f.type) for f in kind]
    named = [pa.field(f.name, array.type) for f, array in zip(kind, fields, strict=True)]
    return pa.StructArray.from_arrays(fields, fields=named, mask=column.is_null())
