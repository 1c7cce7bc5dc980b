"""Pipeline: an immutable, lazy description of rows; every method returns a new one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from cedar.core.columns import ColumnType
from cedar.core.errors import CedarError, PipelineError, user_site
from cedar.core.printable import one_line
from cedar.engine.delivery.drop_in import NotIndexed
from cedar.operators.base import Operator
from cedar.pipeline.look import LookMethods
from cedar.pipeline.order import OrderMethods
from cedar.pipeline.rows import RowMethods
from cedar.pipeline.run import RunMethods
from cedar.plan.graph import Node, batched, schemas
from cedar.plan.steps.live import leave_unread


class Columns(dict[str, Any]):
    """Names and types; fields of structs come from files, as names do."""

    def __repr__(self) -> str:
        return one_line(super().__repr__())


class Pipeline(RowMethods, OrderMethods, LookMethods, RunMethods):
    """Columns in, columns out. Made by ``cedar.read_*`` and ``cedar.from_*``; nothing runs until it is iterated.

    Example:
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

    def apply(self, operator: Operator) -> Pipeline:
        """This pipeline with an operator on top: also one that is not part of the package.

        Example:
            >>> import cedar
            >>> from cedar.operators.take import Take
            >>> cedar.from_items([{"x": 1}, {"x": 2}]).apply(Take(1)).count()
            1
        """
        site = user_site()
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

        Example:
            >>> import cedar, pyarrow as pa
            >>> cedar.from_arrow(pa.table({"x": [1.0]})).schema
            {'x': DataType(double)}
        """
        columns = schemas(self.node)[id(self.node)]
        if columns is None:
            return {"?": "?"}
        return Columns((name, "?" if str(kind) == "?" else kind) for name, kind in columns.items())

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader()

    def __bool__(self) -> bool:
        return True  # whatever its rows are, which are not counted for that

    def __len__(self) -> int:
        raise self._not_indexed("a pipeline is iterated: it has no length to be asked for")

    def __getitem__(self, item: object) -> NoReturn:
        raise self._not_indexed("a pipeline is iterated: it has no items to be asked for")

    def _not_indexed(self, what: str) -> NotIndexed:
        """The error for what a DataLoader around a pipeline asks."""
        return NotIndexed(
            what,
            site=self.given.site,  # of the caller's lines the nearest would be torch's
            fix="p.count() counts its rows, and p.select(...) names columns. Iterate p.batch(n).loader() in place of a "
            "DataLoader, which cannot be put around a pipeline: see docs/migrate.md",
        )

    def __repr__(self) -> str:
        return f"<Pipeline {one_line(self.given.operator.label())}; print(p.explain()) shows its plan>"
