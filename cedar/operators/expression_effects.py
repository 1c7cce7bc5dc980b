"""Checks of an expression on known column types: is it row-wise, and can it fail on some row?

``elementwise`` refuses some kinds of nodes when the pipeline is built. Whether a kind is row-wise may also depend on
column types. When these are known, this module looks up each node in the table of ``expression_kinds``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cedar.core.forks import in_fresh_process_after_fork
from cedar.operators.elementwise import find, is_constant, node_per_column
from cedar.operators.expression_kinds import ANY, Groups, Json, groups_of, kind_of, known, name_of
from cedar.operators.expression_nodes import expression, tree

if TYPE_CHECKING:
    import polars as pl

_ELEMENT = ""  # polars also uses the empty name for the items of a list
_FIELD = "__cedar_field_"


@dataclass(frozen=True)
class Judgment:
    """The result of checking an expression on columns of given types.

    Args:
        refused: why the expression is not row-wise on these types; None if it is row-wise.
        may_fail: False if no row can make the expression fail.
    """

    refused: str | None
    may_fail: bool


def judge(expr: pl.Expr, frame: pl.LazyFrame) -> Judgment:
    """Check an expression by the kinds of its nodes and their types.

    Args:
        expr: an expression that ``check_elementwise`` accepts and that fits the frame.
        frame: a frame without rows that has the types of the columns.

    Examples:
        >>> import polars as pl
        >>> from cedar.operators.expression_effects import judge
        >>> frame = pl.LazyFrame(schema={"n": pl.Int64, "t": pl.List(pl.Int64)})
        >>> judge(pl.col("n") + 1, frame), judge(pl.col("n").cast(pl.Int8), frame).may_fail
        (Judgment(refused=None, may_fail=False), True)
        >>> judge(pl.col("t").is_in("t"), frame).refused
        'is_in() of a list in a column of List(Int64) looks at other rows'
    """
    judging = _Judging(frame)
    judging.visit(tree(expr))
    return Judgment(judging.refused, judging.fails)


class _Judging:
    def __init__(self, frame: pl.LazyFrame, inside: bool = False) -> None:
        self.frame = frame
        self.schema = frame.collect_schema()
        self.inside = inside  # True for an expression on a list's items, which may depend on one another
        self.refused: str | None = None
        self.fails = False

    def visit(self, node: Json) -> None:
        kind, body = kind_of(node)
        if kind in {"Column", "Selector", "Literal"}:
            return
        if kind in {"Alias", "KeepName"}:
            self.visit(body[0] if isinstance(body, list) else body)
        elif kind == "RenameAlias":
            self.visit(body["expr"])
        elif kind == "Eval":
            self._visit_list(body)
        elif kind == "StructEval":
            self._visit_struct(body)
        elif kind == "Cast":
            self.visit(body["expr"])
            self._apply(node, [body["expr"], node])
        elif kind == "BinaryExpr":
            self._visit_all([body["left"], body["right"]])
            self._apply(node, [body["left"], body["right"]])
        elif kind == "Ternary":
            self._visit_all([body["predicate"], body["truthy"], body["falsy"]])
            self._apply(node, [body["truthy"], body["falsy"]])
        elif kind == "Function":
            self._visit_all([part for part in body["input"] if not is_constant(part)])
            self._apply(node, body["input"])
        else:  # only in an expression on a list's items, for example an aggregation or a sort
            self.fails = True
            self._visit_all(_children(body))

    def _visit_all(self, nodes: Iterable[Json]) -> None:
        for node in nodes:
            self.visit(node)

    def _visit_list(self, body: Json) -> None:
        """Visit an expression on a list's items, which are treated as a column of their own."""
        self.visit(body["expr"])
        self.fails = True
        evaluation = _replaced(body["evaluation"])
        for kind in dict.fromkeys(self._types(body["expr"])):
            inner = _Judging(_with(self.frame, {_ELEMENT: getattr(kind, "inner", kind)}), inside=True)
            inner.visit(evaluation)
            self._refuse(inner.refused)
            given = inner._types(evaluation) if "Agg" in kind_of(body["variant"])[0] else []
            breaks = next((each for each in given if groups_of(each) & {"struct", "null"}), None)
            if breaks is not None:  # with such types, polars' result depends on neighboring rows
                self._refuse(f"list.agg() that gives {breaks} depends on other rows: use list.eval() and list.first()")

    def _visit_struct(self, body: Json) -> None:
        self.visit(body["expr"])
        self.fails = True
        for kind in dict.fromkeys(self._types(body["expr"])):
            fields = {f"{_FIELD}{field.name}": field.dtype for field in getattr(kind, "fields", ())}
            inner = _Judging(_with(self.frame, fields), self.inside)
            inner._visit_all(_replaced(body["evaluation"]))
            self._refuse(inner.refused)

    def _apply(self, node: Json, operands: list[Json]) -> None:
        name = name_of(node)
        kind = known(name)
        types = [list(self._types(operand)) for operand in operands]
        if kind is None:  # only possible in an expression on a list's items
            self.fails = True
            return
        if not all(types):  # polars cannot determine the type of some operand
            self.fails = True
            self._refuse(None if kind.takes(ANY, ANY) else f"{kind.forms[0]} of types that polars does not tell")
            return
        first, others = _joined(types[:1]), _joined(types[1:])
        if not kind.never_fails(first, others):
            self.fails = True
        if not kind.takes(first, others):
            shown = " and ".join(dict.fromkeys(str(dtype) for some in types for dtype in some))
            self._refuse(f"{kind.forms[0]} of {shown} is not known to be row-wise")
        if name == "Boolean.IsIn" and not is_constant(operands[1]):
            self._check_sets(types[0], types[1])
        if name.startswith("Cast.") and ("struct" in first) != ("struct" in others) and "string" not in others:
            self._refuse(f"a cast to {types[1][0]} fails by other rows")
        zero = self.inside and name in {"Op.Plus", "Op.Minus"} and "float" in first | others
        if zero and any(_is_zero(operand) for operand in operands):
            self._refuse("adding 0 in a list changes the sign of -0.0 or not, as other rows have items: leave it out")

    def _check_sets(self, values: list[pl.DataType], sets: list[pl.DataType]) -> None:
        """Refuse ``is_in`` of a column that is not a list, because polars would search all values of the block."""
        import polars as pl

        for kind in sets:
            if not isinstance(kind, pl.List | pl.Array):
                self._refuse(f"is_in() of a column of {kind} looks at other rows: give a list, or a column of lists")
            elif any(isinstance(value, pl.List | pl.Array) and value != kind.inner for value in values):
                self._refuse(f"is_in() of a list in a column of {kind} looks at other rows")

    def _types(self, node: Json) -> list[pl.DataType]:
        """Return the types of a node's results: several for a selector of several columns, [] if polars cannot tell."""
        import polars as pl

        kind, body = kind_of(node)
        if kind == "Column" and body in self.schema:
            return [self.schema[body]]
        for parts in ([node], node_per_column(node)):  # a selector's results may share a name, so try single columns
            try:
                return [
                    kind for part in parts for kind in self.frame.select(expression(part)).collect_schema().dtypes()
                ]
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
                continue
        return []

    def _refuse(self, reason: str | None) -> None:
        self.refused = self.refused or reason


def _joined(types: Iterable[Iterable[pl.DataType]]) -> Groups:
    groups: Groups = frozenset()
    return groups.union(*(groups_of(dtype) for some in types for dtype in some))


def _with(frame: pl.LazyFrame, columns: dict[str, pl.DataType]) -> pl.LazyFrame:
    import polars as pl

    return pl.LazyFrame(schema={**frame.collect_schema(), **columns})


def _replaced(node: Json) -> Json:
    """Return the node with references to list items and struct fields replaced by columns."""
    if node == "Element":
        return {"Column": _ELEMENT}
    if isinstance(node, list):
        return [_replaced(part) for part in node]
    if not isinstance(node, dict):
        return node
    if set(node) == {"Field"}:
        return {"Column": f"{_FIELD}{node['Field'][0]}"}
    if set(node) == {"Eval"}:  # items inside it belong to the inner list
        body = node["Eval"]
        return {"Eval": {**body, "expr": _replaced(body["expr"])}}
    return {key: child if key == "Literal" else _replaced(child) for key, child in node.items()}


def _children(body: Json) -> list[Json]:
    """Return the expressions directly inside a node of any kind."""
    if isinstance(body, list):
        return [part for child in body for part in _children(child)]
    if not isinstance(body, dict):
        return []
    if len(body) == 1 and kind_of(body)[0] in _NODES:
        return [body]
    return [part for child in body.values() for part in _children(child)]


_NODES = frozenset(
    """
    Column Selector Literal Alias KeepName RenameAlias Eval StructEval Cast BinaryExpr Ternary Function Agg Sort SortBy
    Filter Slice Gather Explode
    """.split()
)


@in_fresh_process_after_fork
def _is_zero(node: Json) -> bool:
    import polars as pl

    if any(True for key in ("Column", "Selector", "Agg", "Eval") for _ in find(node, key)) or node in (
        "Len",
        "Element",
    ):
        return False
    try:
        return bool((pl.select(expression(node)).to_series() == 0).all())
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return False
