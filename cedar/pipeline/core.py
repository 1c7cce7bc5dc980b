"""Pipeline: an immutable, lazy description of rows. Every method returns a new pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast, runtime_checkable

from cedar.core.columns import ColumnType
from cedar.core.errors import CedarError, PipelineError, UsageError, invalid_call, user_site
from cedar.core.foreign import suggest_in_methods, unknown_method
from cedar.core.printable import one_line
from cedar.datasets.base import Read
from cedar.operators.base import Operator
from cedar.pipeline.look import LookMethods
from cedar.pipeline.order import OrderMethods
from cedar.pipeline.rows import RowMethods
from cedar.pipeline.run import RunMethods
from cedar.pipeline.tables import TableMethods
from cedar.plan.graph import Node, schemas, sources
from cedar.plan.steps.step import leave_unread


class Columns(dict[str, Any]):
    """Column names and types. Its repr stays on one line, because names and struct fields come from files."""

    def __repr__(self) -> str:
        return one_line("{" + ", ".join(f"{name!r}: {kind}" for name, kind in self.items()) + "}")


@runtime_checkable
class OperatorSequence(Protocol):
    """An object that stands for several operators, applied one after the other."""

    def operators(self) -> Sequence[Operator]: ...


@suggest_in_methods
class Pipeline(RowMethods, OrderMethods, TableMethods, LookMethods, RunMethods):
    """A lazy pipeline over columnar data. Create one with ``cedar.read_*`` or ``cedar.from_*``; it runs when iterated.

    Examples:
        >>> import cedar
        >>> rows = cedar.from_items([{"x": 1}, {"x": 2}]).map(lambda x: x * 10, "x")
        >>> list(rows)
        [{'x': 10}, {'x': 20}]
    """

    __slots__ = ("_run", "given")

    def __init__(self, node: Node) -> None:
        if not isinstance(node, Node):
            raise invalid_call(
                f"Pipeline({type(node).__name__}): it takes no data",
                fix="make pipelines with cedar.read_* or from_*, such as from_items",
            )
        self.given = node
        self._run: Node | None = None

    @property
    def node(self) -> Node:
        """The root node that runs: ``given``, as the user wrote it, without source columns that no operator reads."""
        if self._run is None:
            self._run = leave_unread(self.given)
        return self._run

    def apply(self, operator: Operator | OperatorSequence) -> Pipeline:
        """Add an operator to this pipeline: a custom operator, or one that ``fit`` returned.

        Examples:
            >>> import cedar
            >>> from cedar.operators.take import Take
            >>> cedar.from_items([{"x": 1}, {"x": 2}]).apply(Take(1)).count()
            1
        """
        site = user_site()
        if isinstance(operator, OperatorSequence):
            return reduce(Pipeline.apply, operator.operators(), self)
        if not isinstance(operator, Operator):
            kind = type(operator).__name__
            fix = "give an instance of a RowOperator or StreamOperator; for a function, use map"
            if hasattr(operator, "learner"):  # a preprocessor
                name = getattr(operator, "__name__", kind)
                fix = f"fit it first, on the training rows: p.apply(cedar.fit(train, {name}(...)))"
            raise PipelineError(f"apply takes an operator, not {kind}", site=site, fix=fix)
        try:
            return Pipeline(Node(operator, (self.given,), site))
        except CedarError as error:
            error.site = error.site or site
            raise

    @property
    def schema(self) -> dict[str, ColumnType | str]:
        """Column names and types, found without running the pipeline; "?" if only a run can determine a type.

        Examples:
            >>> import cedar, pyarrow as pa
            >>> cedar.from_arrow(pa.table({"x": [1.0]})).schema
            {'x': double}
        """
        columns = schemas(self.node)[id(self.node)]
        if columns is None:
            return {"?": "?"}
        return Columns((name, "?" if str(kind) == "?" else kind) for name, kind in columns.items())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader())

    if not TYPE_CHECKING:  # hidden, so that type checkers still report unknown names

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(name) if name[0] == "_" else unknown_method(self, name)

    def __add__(self, other: Pipeline) -> Pipeline:
        """Concatenate two pipelines: ``p + q``, as for torch datasets."""
        from cedar.pipeline.sources import concat

        return concat(self, other)

    def __bool__(self) -> bool:
        return True  # truthiness must not call __len__, which raises

    def __len__(self) -> int:
        raise self._not_indexed("has no length", "p.count() counts its rows, len(p.batch(n).loader()) its batches")

    def __getitem__(self, item: object) -> NoReturn:
        if isinstance(item, str | list | tuple):
            fix = "p.select('x', 'y') keeps only these columns; of a batch, batch['x'] is one"
        else:
            fix = "next(iter(p)) is the first row; p.skip(i).take(n) are others; p.select('x') keeps only this column"
        raise self._not_indexed("has no items", fix)

    def __setitem__(self, item: object, value: object) -> NoReturn:
        raise self._not_indexed("does not change", "p = p.with_columns(y=col('x') + 1), or p.map(fn, 'x', into='y')")

    def __contains__(self, item: object) -> NoReturn:
        raise self._not_indexed("is not searched", "'x' in p.schema tells whether there is a column")

    def _not_indexed(self, what: str, fix: str) -> UsageError:
        """Return the error for list and dict operations, which torch's DataLoader calls on a dataset."""
        return UsageError(
            f"a pipeline {what}, because it is read by iterating",
            site=self.given.site,  # the caller's nearest line would be inside torch
            fix=f"{fix}. Iterate p.batch(n).loader() in place of a DataLoader around it: help(cedar.Pipeline.loader)",
        )

    def __repr__(self) -> str:
        columns = f", columns {known}" if (known := self._known_columns()) else ""
        return f"<Pipeline {one_line(self.given.operator.label())}{columns}; print(p.explain()) shows its plan>"

    def _known_columns(self) -> str:
        """Return the columns' names and types as text; "" if finding them needs storage access or user code."""
        from cedar.datasets import items, table

        for node in sources(self.given):
            source = cast("Read", node.operator).source
            held = isinstance(source, items.ItemsSource | table.TableSource) and not source.own_code
            if not held and "schema" not in vars(node):
                return ""
        with suppress(CedarError):  # the pipeline cannot run; explain() shows why
            names = [f"{name}: {kind}" for name, kind in (self.given.schema or {}).items()]
            return one_line(", ".join([*names[:12], *(["..."] if len(names) > 12 else [])]))
        return ""
