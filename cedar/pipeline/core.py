"""Pipeline: an immutable, lazy description of rows; every method returns a new one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast, runtime_checkable

from cedar.core.columns import ColumnType
from cedar.core.errors import CedarError, PipelineError, UsageError, user_site
from cedar.core.printable import one_line
from cedar.datasets.base import Read
from cedar.operators.base import Operator
from cedar.pipeline.foreign import answering_methods, unknown_method
from cedar.pipeline.look import LookMethods
from cedar.pipeline.order import OrderMethods
from cedar.pipeline.rows import RowMethods
from cedar.pipeline.run import RunMethods
from cedar.pipeline.tables import TableMethods
from cedar.plan.graph import Node, batched, schemas, sources
from cedar.plan.steps.live import leave_unread


class Columns(dict[str, Any]):
    """Names and types; fields of structs come from files, as names do."""

    def __repr__(self) -> str:
        return one_line("{" + ", ".join(f"{name!r}: {kind}" for name, kind in self.items()) + "}")


@runtime_checkable
class Several(Protocol):
    """What stands for operators one above the other."""

    def operators(self) -> Sequence[Operator]: ...


@answering_methods
class Pipeline(RowMethods, OrderMethods, TableMethods, LookMethods, RunMethods):
    """Columns in, columns out. Made by ``cedar.read_*`` and ``cedar.from_*``; nothing runs until it is iterated.

    Examples:
        >>> import cedar
        >>> rows = cedar.from_items([{"x": 1}, {"x": 2}]).map(lambda x: x * 10, "x")
        >>> list(rows)
        [{'x': 10}, {'x': 20}]
    """

    __slots__ = ("_run", "given")

    def __init__(self, node: Node) -> None:
        self.given = node
        self._run: Node | None = None
        if all("batched" in vars(below) for below in node.inputs):  # as it is where a pipeline is built step by step
            _ = node.batched  # a batch of batches is refused here, at the user's line
        else:
            batched(node)

    @property
    def node(self) -> Node:
        """What runs: ``given``, the operators as they were put together, without reading what nothing reads."""
        if self._run is None:
            self._run = leave_unread(self.given)
        return self._run

    def apply(self, operator: Operator | Several) -> Pipeline:
        """This pipeline with an operator on top: also one that is not part of the package, or what ``fit`` learned.

        Examples:
            >>> import cedar
            >>> from cedar.operators.take import Take
            >>> cedar.from_items([{"x": 1}, {"x": 2}]).apply(Take(1)).count()
            1
        """
        site = user_site()
        if isinstance(operator, Several):
            return reduce(Pipeline.apply, operator.operators(), self)
        if not isinstance(operator, Operator):
            raise PipelineError(
                f"apply takes an operator, not {type(operator).__name__}",
                site=site,
                fix="give an instance of a RowOperator or StreamOperator; for a function, use map",
            )
        try:
            return Pipeline(Node(operator, (self.given,), site))
        except CedarError as error:
            error.site = error.site or site
            raise

    @property
    def schema(self) -> dict[str, ColumnType | str]:
        """Names and types, without running; "?" where only a run can tell.

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

    if not TYPE_CHECKING:  # type checkers are to find unknown names themselves

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(name) if name[0] == "_" else unknown_method(self, name)

    def __add__(self, other: Pipeline) -> Pipeline:
        """The rows of both, one after the other, as datasets of torch are added."""
        from cedar.pipeline.sources import concat

        return concat(self, other)

    def __bool__(self) -> bool:
        return True  # whatever its rows are, which are not counted for that

    def __len__(self) -> int:
        raise self._not_indexed("has no length", "p.count() counts its rows, len(p.batch(n).loader()) its batches")

    def __getitem__(self, item: object) -> NoReturn:
        if isinstance(item, str | list | tuple):
            fix = "p.select('x', 'y') leaves columns; of a batch, batch['x'] is one"
        else:
            fix = "next(iter(p)) is the first row; p.skip(i).take(n) are others; p.select('x') leaves columns"
        raise self._not_indexed("has no items", fix)

    def __setitem__(self, item: object, value: object) -> NoReturn:
        raise self._not_indexed("does not change", "p = p.with_columns(y=col('x') + 1), or p.map(fn, 'x', into='y')")

    def __contains__(self, item: object) -> NoReturn:
        raise self._not_indexed("is not searched", "'x' in p.schema tells whether there is a column")

    def _not_indexed(self, what: str, fix: str) -> UsageError:
        """The error for what a DataLoader around a pipeline asks."""
        return UsageError(
            f"a pipeline is iterated: it {what}",
            site=self.given.site,  # of the caller's lines the nearest would be torch's
            fix=f"{fix}. Iterate p.batch(n).loader() in place of a DataLoader around it: help(cedar.Pipeline.loader)",
        )

    def __repr__(self) -> str:
        columns = f", columns {known}" if (known := self._known_columns()) else ""
        return f"<Pipeline {one_line(self.given.operator.label())}{columns}; print(p.explain()) shows its plan>"

    def _known_columns(self) -> str:
        """The names and types of the columns, where that takes neither storage nor code of the user's."""
        from cedar.datasets import items, table

        for node in sources(self.given):
            source = cast("Read", node.operator).source
            held = isinstance(source, items.ItemsSource | table.TableSource) and not source.own_code
            if not held and "schema" not in vars(node):
                return ""
        with suppress(CedarError):  # of a pipeline that cannot run: explain() says why
            names = [f"{name}: {kind}" for name, kind in (self.given.schema or {}).items()]
            return one_line(", ".join([*names[:12], *(["..."] if len(names) > 12 else [])]))
        return ""
