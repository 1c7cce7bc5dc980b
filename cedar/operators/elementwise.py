"""Checks which polars expressions are row-wise, and which columns they read.

Results must not depend on block size, so an expression's value on a row may depend only on that row. The check uses an
allow-list of node kinds (``expression_kinds``) and refuses all other kinds. Later, when column types are known,
``expression_effects`` checks the expression on these types.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from cedar.core.errors import user_site
from cedar.operators.expression_kinds import INSIDE, Json, kind_of, known, name_of
from cedar.operators.expression_nodes import expression, literal_value, too_deep, tree

if TYPE_CHECKING:
    import polars as pl

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
_PYTHON = frozenset("AnonymousFunction FoldHorizontal ReduceHorizontal CumReduceHorizontal CumFoldHorizontal".split())


def check_elementwise(expr: pl.Expr) -> str | None:
    """Return None for a row-wise expression; otherwise the reason for refusing it, with the offending part.

    Examples:
        >>> import polars as pl
        >>> from cedar.operators.elementwise import check_elementwise
        >>> check_elementwise(pl.col("x").fill_null(0) * 2)
        >>> check_elementwise(pl.col("x") - pl.col("x").mean())
        'mean() looks at other rows'
    """
    try:
        return next(_refusals(tree(expr)), None)
    except RecursionError as error:
        raise too_deep(user_site()) from error


def columns_of(expr: pl.Expr) -> frozenset[str] | None:
    """Return the columns that an expression reads; None if they depend on the schema (``col("^a.*$")``).

    Examples:
        >>> import polars as pl
        >>> from cedar.operators.elementwise import columns_of
        >>> sorted(columns_of(pl.col("a") + pl.col("b")))
        ['a', 'b']
    """
    node = tree(expr)
    if next(find(node, "Selector"), None) is not None:
        return None
    return frozenset(_columns(node))


def fields_of(expr: pl.Expr) -> dict[str, frozenset[tuple[str, ...]] | None]:
    """Return the struct fields that an expression reads, as paths by column; None means the whole column.

    Examples:
        >>> import polars as pl
        >>> from cedar.operators.elementwise import fields_of
        >>> read = fields_of(pl.col("a").struct.field("b").struct.field("c") + pl.col("d"))
        >>> read["a"], read["d"]
        (frozenset({('b', 'c')}), None)
    """
    fields: dict[str, frozenset[tuple[str, ...]] | None] = {}
    for name, path in _paths(tree(expr)):
        known = fields.get(name, frozenset[tuple[str, ...]]())
        fields[name] = known | {path} if path and known is not None else None
    return fields


def _paths(node: Json, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the columns in an expression, each with the path of the struct field that the expression extracts."""
    if isinstance(node, list):
        for child in node:
            yield from _paths(child)
    if not isinstance(node, dict):
        return
    for key, child in node.items():
        if key == "Column":
            yield child, inside
        elif key == "Function" and (field := _field(child)) is not None:
            yield from _paths(child["input"][0], (field, *inside))
        elif key not in {"Literal", "StructExpr"}:
            yield from _paths(child)


def _field(body: Json) -> str | None:
    """Return the name of the struct field that a function node extracts; None for other functions."""
    kind, inner = kind_of(body["function"])
    part, name = kind_of(inner) if kind == "StructExpr" else ("", None)
    return name if part == "FieldByName" and isinstance(name, str) else None


def selects_by_type(expr: pl.Expr) -> bool:
    """Return True if a selector in the expression picks columns by type."""
    return any(next(find(chosen, "ByDType"), None) is not None for chosen in find(tree(expr), "Selector"))


def _columns(node: Json, inside: bool = False) -> Iterator[str]:
    """Yield the columns read by name; inside a list, polars represents the items as a column with an empty name."""
    if isinstance(node, list):
        for child in node:
            yield from _columns(child, inside)
    elif isinstance(node, dict):
        for key, child in node.items():
            if key == "Column" and isinstance(child, str):
                if child or not inside:
                    yield child
            elif key not in {"Literal", "StructExpr"}:
                yield from _columns(child, inside or key == "evaluation")


def resolve_selectors(expr: pl.Expr, frame: pl.LazyFrame) -> pl.Expr:
    """Return the expression with each selector replaced by the names that it selects in ``frame``."""

    def named(selector: Json) -> Json:
        names = frame.select(expression(selector)).collect_schema().names()
        return {"Selector": {"ByName": {"names": names, "strict": True}}}

    return expression(_with_selectors(tree(expr), named))


def _with_selectors(node: Json, change: Callable[[Json], Json]) -> Json:
    """Return the node with ``change`` applied to each selector."""
    if isinstance(node, list):
        return [_with_selectors(part, change) for part in node]
    if not isinstance(node, dict):
        return node
    if set(node) == {"Selector"}:
        return change(node)
    return {k: v if k in {"Literal", "StructExpr"} else _with_selectors(v, change) for k, v in node.items()}


def node_per_column(node: Json) -> list[Json]:
    """Return one copy of the node for each column that its selectors name (see ``resolve_selectors``)."""
    chosen = [selector["ByName"]["names"] for selector in find(node, "Selector")]

    def taken(number: int) -> Json:
        def column(selector: Json) -> Json:
            names = selector["Selector"]["ByName"]["names"]
            return {"Column": names[number % len(names)]}

        return _with_selectors(node, column)

    return [taken(number) for number in range(max(map(len, chosen), default=0) if all(chosen) else 0)]


def named_columns(expr: pl.Expr) -> frozenset[str]:
    """Return the columns that an expression reads, once ``resolve_selectors`` has resolved its selectors."""
    node = tree(expr)
    named = set(_columns(node))
    for selector in find(node, "Selector"):
        named.update(selector["ByName"]["names"])
    return frozenset(named)


def lists_without_nulls(expr: pl.Expr) -> pl.Expr:
    """Return the expression with nulls dropped from lists before ``sum()`` and ``mean()``, which ignore nulls.

    Otherwise, a null in one row's list would change the order in which polars adds the floats of all lists.
    """
    node = tree(expr)
    if not any(name_of({"Function": body}) in _SUMS for body in find(node, "Function")):
        return expr
    return expression(_without_nulls(node))


_SUMS = {
    f"{family}.{part}": part for family in ("ListExpr", "ArrayExpr") for part in ("Sum", "Mean")
}  # the nodes of sums and means of lists and of arrays


def _without_nulls(node: Json) -> Json:
    if isinstance(node, list):
        return [_without_nulls(part) for part in node]
    if not isinstance(node, dict):
        return node
    changed = {k: v if k in {"Literal", "StructExpr"} else _without_nulls(v) for k, v in node.items()}
    part = _SUMS.get(name_of(node)) if set(node) == {"Function"} else None
    if part is None:
        return changed
    (given,) = changed["Function"]["input"]
    if "ArrayExpr" in changed["Function"]["function"]:
        given = {"Function": {"input": [given], "function": {"ArrayExpr": "ToList"}}}
    given = {"Function": {"input": [given], "function": {"ListExpr": "DropNulls"}}}
    return {"Function": {"input": [given], "function": {"ListExpr": part}}}


def literals(expr: pl.Expr) -> list[Json]:
    """Return the values of an expression's literals that are numbers or strings.

    Examples:
        >>> import polars as pl
        >>> from cedar.operators.elementwise import literals
        >>> literals((pl.col("a") > 5) & pl.col("b").is_in(["x", "y"]))
        [5, 'x', 'y']
    """
    values: list[Json] = []
    for literal in find(tree(expr), "Literal"):
        content = next(iter(literal.values()), None) if isinstance(literal, dict) else None
        kind, given = next(iter(content.items()), ("", None)) if isinstance(content, dict) else ("", None)
        given = literal_value(kind, given)
        if kind == "List":
            with contextlib.suppress(Exception):  # another polars version may encode literals differently
                column = pa.ipc.open_stream(bytes(given or ())).read_all().column(0)
                values += [value for value in column.to_pylist() if isinstance(value, int | float | str)]
        elif isinstance(given, int | float | str) and kind != "Null":
            values.append(given)
    return values


def format_expr(expr: pl.Expr, limit: int = 80) -> str:
    """Format an expression on one line, truncated to ``limit`` characters."""
    line = re.sub(r"\bdyn (int|float|str): ", "", " ".join(str(expr).split()))
    return line if len(line) <= limit else line[: limit - 3] + "..."


def find(node: Json, key: str) -> Iterator[Json]:
    """Yield the values of each node ``key`` in an expression tree, except in struct functions and literals."""
    if isinstance(node, dict):
        for name, child in node.items():
            if name == key:
                yield child
            if name not in {"Literal", "StructExpr"}:
                yield from find(child, key)
    elif isinstance(node, list):
        for child in node:
            yield from find(child, key)


_PARTS = {  # node kinds that are row-wise if these of their parts are row-wise
    "RenameAlias": ("expr",),
    "Cast": ("expr",),
    "BinaryExpr": ("left", "right"),
    "Ternary": ("predicate", "truthy", "falsy"),
}


def _refusals(node: Json) -> Iterator[str]:
    """Yield the reasons why this node, or any node inside it, is not row-wise."""
    kind, body = kind_of(node)
    if kind in {"Column", "Selector", "Element", "Field"}:
        return
    if kind == "Literal":
        if isinstance(body, dict) and "Series" in body:
            yield "a Series has its own rows: join it to the source, or give is_in() a list"
    elif kind in {"Alias", "KeepName"}:
        yield from _refusals(body[0] if isinstance(body, list) else body)
    elif kind in {"BinaryExpr", "Cast"} and known(name_of(node)) is None:
        yield f"{name_of(node)} is not known to be row-wise: use .map_batches(fn, ...)"
    elif kind in _PARTS:
        yield from _refusals_of([body[part] for part in _PARTS[kind]])
    elif kind == "Eval":
        yield from _refusals(body["expr"])
        if "Cumulative" in body["variant"]:
            yield "cumulative_eval() looks at other rows"
        yield from _list_refusals(body["evaluation"])
    elif kind == "StructEval":
        yield from _refusals_of([body["expr"], *body["evaluation"]])
    elif kind == "Function":
        yield from _function_refusals(body)
    else:
        yield _reason(kind, body)


def _refusals_of(nodes: Iterable[Json]) -> Iterator[str]:
    for node in nodes:
        yield from _refusals(node)


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
    yield from _refusals_of(inputs)


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
            yield _reason(kind, inner).replace("looks at other rows", "in a list is not known to be row-wise")
        if name == "Rank" and body["function"]["Rank"]["options"]["method"] == "Random":
            yield _reason("Random", None)


def _reason(kind: str, body: Json) -> str:
    name = kind
    if kind == "Agg" and isinstance(body, dict):
        name = kind_of(body)[0]
    elif kind in _FAMILIES and body is not None:
        name = kind_of(body)[0]
    called = _USER_NAMES.get(name) or f"{_snake(name)}()"
    if kind in _PYTHON:
        return f"{called} inside an expression cannot be checked: use .map(fn, ...) or .map_batches(fn, ...)"
    if name in {"Random", "Sample"}:
        return f"{called} draws by position in the block: use .map(fn, ..., random=True), .shuffle() or .sample()"
    if name in _LENGTHS:
        return f"{called} does not give one value per row"
    if name in {"FfiPlugin", "MapFieldNames"} or kind not in _KNOWN_KINDS:
        return f"{called} is not known to be row-wise: use .map_batches(fn, ...)"
    return f"{called} looks at other rows"


_KNOWN_KINDS = frozenset(
    """
    Agg Over Rolling Sort SortBy Gather Len Boolean Range Bitwise StringExpr FillNullWithStrategy RollingExpr
    RollingExprBy CumSum CumProd CumMin CumMax CumCount Shift ShiftAndFill Reverse Rank Diff PctChange Interpolate
    InterpolateBy EwmMean EwmMeanBy EwmStd EwmVar ArgMin ArgMax ArgSort MinBy MaxBy Product NullCount Skew Kurtosis
    Correlation PeakMin PeakMax RLEID UpperBound LowerBound ApproxNUnique ApproxQuantile Entropy Quantile QCut Bin
    SearchSorted IndexOf
    """.split()
)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
