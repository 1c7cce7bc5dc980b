"""Checks that polars expressions are row-wise, and whether they can fail on some row.

Results must not depend on block size, so an expression's value on a row may depend only on that row.
``check_elementwise`` looks up the kinds of nodes when the pipeline is built and refuses kinds that are not in the table
of ``expression_kinds``. Whether a kind is row-wise may also depend on the types of its operands. When column types are
known, ``judge`` checks each node on its types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cedar.core.errors import user_site
from cedar.core.process import in_fresh_process_after_fork
from cedar.operators.expression_kinds import ANY, INSIDE, NONE, groups_of, known, name_of
from cedar.operators.expression_nodes import Json, expression, find, kind_of, node_per_column, rewritten, too_deep, tree

if TYPE_CHECKING:
    import polars as pl

_ELEMENT = ""  # the name under which polars knows the items of a list
_FIELD = "__cedar_field_"

_USER_NAMES = {  # the method that users call for a node, if it differs from the node's name in snake case
    "NUnique": "n_unique()", "Agg": "an aggregation", "Over": "over()", "Rolling": "rolling()", "Len": "len()",
    "FillNullWithStrategy": "fill_null(strategy=...)", "RollingExpr": "rolling_*()", "RollingExprBy": "rolling_*_by()",
    "Random": "sample() or shuffle()", "AnonymousFunction": "a Python function", "FoldHorizontal": "a Python function",
    "ReduceHorizontal": "a Python function", "CumReduceHorizontal": "a Python function",
    "CumFoldHorizontal": "a Python function", "RLE": "rle()", "RLEID": "rle_id()", "QCut": "qcut()", "TopK": "top_k()",
    "Slice": "head(), tail() or slice()", "ConcatVertical": "str.join()", "ArgUnique": "arg_unique()",
    "NullCount": "null_count()", "FfiPlugin": "a plugin's function", "IntRange": "int_range()",
    "Bin": "binning by ranks, quantiles or a number of intervals",
    "Gather": "get() or gather()", "Count": "len() or count()", "Implode": "implode()",
}  # fmt: skip
_FAMILIES = frozenset(
    """
    StringExpr ListExpr ArrayExpr TemporalExpr StructExpr BinaryExpr Categorical Boolean Bitwise Range Business
    """.split()
)
_LENGTHS = frozenset(
    """Filter Explode Slice DropNulls DropNans Unique Mode Reshape Append ExtendConstant GatherEvery Repeat ArgWhere
    TopK TopKBy ValueCounts UniqueCounts ArgUnique RLE Hist""".split()
)
_METHODS = {  # what pipelines have for some of them
    "Explode": "p.explode('x')", "Unique": "p.unique('x')", "DropNulls": "p.filter(col('x').is_not_null())",
    "DropNans": "p.filter(col('x').is_not_nan())", "Filter": "p.filter(...)", "Slice": "p.take(n) and p.skip(n)",
}  # fmt: skip
OTHER_ROWS_FIX = (
    "cedar.fit for scaling and codes; otherwise compute it first: cedar.from_polars(p.to_polars().with_columns(...))"
)
_PYTHON = frozenset("AnonymousFunction FoldHorizontal ReduceHorizontal CumReduceHorizontal CumFoldHorizontal".split())


def check_elementwise(expr: pl.Expr) -> str | None:
    """Return None for a row-wise expression; otherwise the reason for refusing it, with the offending part.

    Examples:
        >>> import polars as pl
        >>> check_elementwise(pl.col("x").fill_null(0) * 2)
        >>> check_elementwise(pl.col("x") - pl.col("x").mean())
        'mean() depends on other rows'
    """
    try:
        return next(_refusals(tree(expr)), None)
    except RecursionError as error:
        raise too_deep(user_site()) from error


def lists_without_nulls(expr: pl.Expr) -> pl.Expr:
    """Return the expression with nulls dropped from lists before ``sum()`` and ``mean()``, which ignore nulls.

    Otherwise, a null in one row's list would change the order in which polars adds the floats of all lists.
    """
    node = tree(expr)
    if not any(name_of({"Function": body}) in _SUMS for body in find(node, "Function")):
        return expr

    def without_nulls(part: Json) -> Json | None:
        name = name_of(part) if kind_of(part)[0] == "Function" else ""
        if name not in _SUMS:
            return None
        given = rewritten(part["Function"]["input"], without_nulls)
        if name.startswith("ArrayExpr"):
            given = [{"Function": {"input": given, "function": {"ArrayExpr": "ToList"}}}]
        given = [{"Function": {"input": given, "function": {"ListExpr": "DropNulls"}}}]
        return {"Function": {"input": given, "function": {"ListExpr": _SUMS[name]}}}

    return expression(rewritten(node, without_nulls))


_SUMS = {
    f"{family}.{part}": part for family in ("ListExpr", "ArrayExpr") for part in ("Sum", "Mean")
}  # the nodes of sums and means of lists and of arrays


# ---- without types ---------------------------------------------------------------------------------------------------


def _refusals(node: Json) -> Iterator[str]:
    """Yield the reasons why this node, or any node inside it, is not row-wise on columns of any types."""
    kind, body = kind_of(node)
    if kind == "Literal":
        if isinstance(body, dict) and "Series" in body:
            yield "a Series has its own rows: join it to the source, or give is_in() a list"
    elif kind in {"BinaryExpr", "Cast"} and known(name_of(node)) is None:
        yield f"{name_of(node)} is not known to be row-wise: use .map_batches(fn, ...)"
    elif kind == "Function":
        yield from _function_refusals(body)
    elif (operands := _operands(kind, body)) is None:
        yield _reason(kind, body)
    else:
        for operand in operands:
            yield from _refusals(operand)
        if kind == "Eval":
            if "Cumulative" in body["variant"]:
                yield "cumulative_eval() depends on other rows"
            yield from _list_refusals(body["evaluation"])
        elif kind == "StructEval":
            for part in body["evaluation"]:
                yield from _refusals(part)


def _operands(kind: str, body: Json) -> list[Json] | None:
    """Return the parts of a row-wise node that are evaluated on the same rows; None for a node of another kind."""
    if kind in {"Column", "Selector", "Literal", "Element", "Field"}:
        return []
    if kind in {"Alias", "KeepName"}:
        return [body[0] if isinstance(body, list) else body]
    if kind == "Function":
        return list(body["input"])
    return [body[part] for part in _PARTS[kind]] if kind in _PARTS else None


_PARTS = {
    "RenameAlias": ("expr",),
    "Cast": ("expr",),
    "BinaryExpr": ("left", "right"),
    "Ternary": ("predicate", "truthy", "falsy"),
    "Eval": ("expr",),
    "StructEval": ("expr",),
}


def _function_refusals(body: Json) -> Iterator[str]:
    kind, inner = kind_of(body["function"])
    part = kind_of(inner)[0] if inner is not None else ""
    inputs = body["input"]
    allowed = known(name_of({"Function": body})) is not None
    if kind == "Bin":  # allowed only with explicit breaks, because a number of bins divides the range of the block
        part = kind_of(inner["method"])[0]
        allowed = part == "Intervals" and "Breaks" in inner["method"]["Intervals"]["spec"]
    if not allowed:
        yield _reason(kind, inner)
        return
    if part == "Strptime" and inner["Strptime"][1]["format"] is None:
        yield "without a format, polars infers it from other rows: give str.to_datetime(), to_date() or strptime() one"
    if kind == "Business" or part == "IsIn":  # a constant list of holidays or values is the same for all rows
        inputs = [node for i, node in enumerate(inputs) if i == 0 or not is_constant(node)]
    for node in inputs:
        yield from _refusals(node)


def is_constant(node: Json) -> bool:
    kind, body = kind_of(node)
    return kind == "Literal" or (
        kind == "Agg" and kind_of(body)[0] == "Implode" and is_constant(body["Implode"]["input"])
    )


def _list_refusals(node: Json) -> Iterator[str]:
    """Yield the reasons why an expression on a list's items is refused; items may depend on items of the same list."""
    for kind in sorted(_PYTHON | {"Over", "Rolling"}):
        if any(True for _ in find(node, kind)):
            yield _reason(kind, None)
    for body in find(node, "Function"):
        name = name_of({"Function": body})
        if known(name) is None and name not in INSIDE:
            kind, inner = kind_of(body["function"])
            yield _reason(kind, inner).replace("depends on other rows", "in a list is not known to be row-wise")
        if name == "Rank" and body["function"]["Rank"]["options"]["method"] == "Random":
            yield _reason("Random", None)


def _reason(kind: str, body: Json) -> str:
    name = kind
    if kind == "Agg" and isinstance(body, dict):
        name = kind_of(body)[0]
    elif kind in _FAMILIES and body is not None:
        name = kind_of(body)[0]
    called = _USER_NAMES.get(name) or f"{re.sub('(?<=[a-z0-9])(?=[A-Z])', '_', name).lower()}()"
    if kind in _PYTHON:
        return f"{called} inside an expression cannot be checked: use .map(fn, ...) or .map_batches(fn, ...)"
    if name in {"Random", "Sample"}:
        return f"{called} draws by position in the block: use .map(fn, ..., random=True), .shuffle() or .sample()"
    if name in _LENGTHS:
        use = f": use {_METHODS[name]}" if name in _METHODS else ""
        return f"{called} does not give one value per row{use}"
    if name in {"FfiPlugin", "MapFieldNames"} or kind not in _KNOWN_KINDS:
        return f"{called} is not known to be row-wise: use .map_batches(fn, ...)"
    return f"{called} depends on other rows"


_KNOWN_KINDS = frozenset(
    """
    Agg Over Rolling Sort SortBy Gather Len Boolean Range Bitwise StringExpr FillNullWithStrategy RollingExpr
    RollingExprBy CumSum CumProd CumMin CumMax CumCount Shift ShiftAndFill Reverse Rank Diff PctChange Interpolate
    InterpolateBy EwmMean EwmMeanBy EwmStd EwmVar ArgMin ArgMax ArgSort MinBy MaxBy Product NullCount Skew Kurtosis
    Correlation PeakMin PeakMax RLEID UpperBound LowerBound ApproxNUnique ApproxQuantile Entropy Quantile QCut Bin
    SearchSorted IndexOf
    """.split()
)


# ---- on known types --------------------------------------------------------------------------------------------------


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
        >>> frame = pl.LazyFrame(schema={"n": pl.Int64, "t": pl.List(pl.Int64)})
        >>> judge(pl.col("n") + 1, frame), judge(pl.col("n").cast(pl.Int8), frame).may_fail
        (Judgment(refused=None, may_fail=False), True)
        >>> judge(pl.col("t").is_in("t"), frame).refused
        'is_in() of a list in a column of List(Int64) depends on other rows'
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
        operands = _operands(kind, body)
        if operands is None:  # only in an expression on a list's items, for example an aggregation or a sort
            self.fails = True
            operands = _expressions_in(body)
        for operand in operands:
            if not is_constant(operand):
                self.visit(operand)
        if kind in {"Eval", "StructEval"}:
            self.fails = True
            for dtype in dict.fromkeys(self._types(body["expr"])):
                self._visit_list(body, dtype) if kind == "Eval" else self._visit_struct(body, dtype)
        elif kind == "Cast":
            self._apply(node, [body["expr"], node])
        elif kind == "Ternary":
            self._apply(node, operands[1:])
        elif kind in {"BinaryExpr", "Function"}:
            self._apply(node, operands)

    def _visit_list(self, body: Json, dtype: pl.DataType) -> None:
        """Visit an expression on a list's items, which are treated as a column of their own."""
        evaluation = rewritten(body["evaluation"], _as_column)
        inner = self._with_columns({_ELEMENT: getattr(dtype, "inner", dtype)}, inside=True)
        inner.visit(evaluation)
        self._refuse(inner.refused)
        given = inner._types(evaluation) if "Agg" in kind_of(body["variant"])[0] else []
        breaks = next((each for each in given if groups_of(each) & {"struct", "null"}), None)
        if breaks is not None:  # with such types, polars' result depends on neighboring rows
            self._refuse(f"list.agg() that gives {breaks} depends on other rows: use list.eval() and list.first()")

    def _visit_struct(self, body: Json, dtype: pl.DataType) -> None:
        fields = {f"{_FIELD}{field.name}": field.dtype for field in getattr(dtype, "fields", ())}
        inner = self._with_columns(fields, self.inside)
        for part in body["evaluation"]:
            inner.visit(rewritten(part, _as_column))
        self._refuse(inner.refused)

    def _with_columns(self, columns: dict[str, pl.DataType], inside: bool) -> _Judging:
        import polars as pl

        return _Judging(pl.LazyFrame(schema={**self.schema, **columns}), inside)

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
        first, others = (
            NONE.union(*(groups_of(dtype) for some in part for dtype in some)) for part in (types[:1], types[1:])
        )
        if not kind.never_fails(first, others):
            self.fails = True
        if not kind.takes(first, others):
            shown = " and ".join(dict.fromkeys(str(dtype) for some in types for dtype in some))
            self._refuse(f"{kind.forms[0]} of {shown} is not known to be row-wise")
        if name == "Boolean.IsIn" and not is_constant(operands[1]):
            self._check_sets(types[0], types[1])
        if name.startswith("Cast.") and ("struct" in first) != ("struct" in others) and "string" not in others:
            self._refuse(f"a cast to {types[1][0]} fails by other rows")
        sums = self.inside and name in {"Op.Plus", "Op.Minus"} and "float" in first | others
        if sums and any(_is_zero(operand) for operand in operands):
            self._refuse("adding 0 in a list changes the sign of -0.0 or not, as other rows have items: leave it out")

    def _check_sets(self, values: list[pl.DataType], sets: list[pl.DataType]) -> None:
        """Refuse ``is_in`` of a column that is not a list, because polars would search all values of the block."""
        import polars as pl

        for kind in sets:
            if not isinstance(kind, pl.List | pl.Array):
                self._refuse(f"is_in() of a column of {kind} depends on other rows: give a list, or a column of lists")
            elif any(isinstance(value, pl.List | pl.Array) and value != kind.inner for value in values):
                self._refuse(f"is_in() of a list in a column of {kind} depends on other rows")

    def _types(self, node: Json) -> list[pl.DataType]:
        """Return the types of a node's results: several for a selector of several columns, [] if polars cannot tell."""
        import polars as pl

        kind, body = kind_of(node)
        if kind == "Column" and body in self.schema:
            return [self.schema[body]]
        with suppress(pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return self.frame.select(expression(node)).collect_schema().dtypes()
        with suppress(pl.exceptions.PolarsError, pl.exceptions.PanicException):  # results that share a name
            schemas = [self.frame.select(expression(part)).collect_schema() for part in node_per_column(node)]
            return [dtype for schema in schemas for dtype in schema.dtypes()]
        return []

    def _refuse(self, reason: str | None) -> None:
        self.refused = self.refused or reason


def _as_column(node: Json) -> Json | None:
    """Replace references to list items and struct fields by columns, in an expression on these."""
    kind, body = kind_of(node)
    if node == "Element":
        return {"Column": _ELEMENT}
    if kind == "Field":
        return {"Column": f"{_FIELD}{body[0]}"}
    if kind == "Alias":
        return {"Alias": [rewritten(body[0], _as_column), body[1]]}
    if kind == "Eval":  # items inside it belong to the inner list
        return {"Eval": {**body, "expr": rewritten(body["expr"], _as_column)}}
    return node if kind in {"Column", "Selector"} else None


def _expressions_in(body: Json) -> list[Json]:
    """Return the expressions directly inside a node of any kind."""
    if isinstance(body, list):
        return [part for child in body for part in _expressions_in(child)]
    if not isinstance(body, dict):
        return []
    if len(body) == 1 and kind_of(body)[0] in _NODES:
        return [body]
    return [part for child in body.values() for part in _expressions_in(child)]


_NODES = frozenset(
    """
    Column Selector Literal Alias KeepName RenameAlias Eval StructEval Cast BinaryExpr Ternary Function Agg Sort SortBy
    Filter Slice Gather Explode
    """.split()
)


@in_fresh_process_after_fork
def _is_zero(node: Json) -> bool:
    import polars as pl

    if node in ("Len", "Element") or any(True for _ in find(node, "Column", "Selector", "Agg", "Eval")):
        return False
    try:
        return bool((pl.select(expression(node)).to_series() == 0).all())
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return False
