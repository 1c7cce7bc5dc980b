"""Which polars expressions are row-wise, and which columns they read.

A block's size must never show in a result, so an expression's value on a row may depend on that row alone. The check
is an allow-list of node kinds (``expression_kinds``): what is not on it is refused, whatever it does. What else depends
on types is judged by ``expression_effects``, where types are known.
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

_CALLED = {  # how users write it, where it differs from the node's name in snake case
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
    """None for a row-wise expression; else the reason for its refusal, naming the offending part.

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
    """The columns that an expression reads; None if a selector (``col("^a.*$")``) leaves it to the schema.

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
    """For each column that an expression reads, the fields of it that are read, as paths; None is the whole column.

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
    """The columns in an expression, each with the fields that are taken out of it right there."""
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
    """The name of the field that a function takes out of a struct."""
    kind, inner = kind_of(body["function"])
    part, name = kind_of(inner) if kind == "StructExpr" else ("", None)
    return name if part == "FieldByName" and isinstance(name, str) else None


def selects_by_type(expr: pl.Expr) -> bool:
    """True if the columns that a selector picks depend on their types."""
    return any(next(find(chosen, "ByDType"), None) is not None for chosen in find(tree(expr), "Selector"))


def _columns(node: Json, inside: bool = False) -> Iterator[str]:
    """The columns read by name; in a list, polars calls the items a column without a name."""
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


def explicit(expr: pl.Expr, frame: pl.LazyFrame) -> pl.Expr:
    """The expression with its selectors replaced by the names that they select in ``frame``."""

    def named(selector: Json) -> Json:
        names = frame.select(expression(selector)).collect_schema().names()
        return {"Selector": {"ByName": {"names": names, "strict": True}}}

    return expression(_with_selectors(tree(expr), named))


def _with_selectors(node: Json, change: Callable[[Json], Json]) -> Json:
    """The node with something else in the place of each selector."""
    if isinstance(node, list):
        return [_with_selectors(part, change) for part in node]
    if not isinstance(node, dict):
        return node
    if set(node) == {"Selector"}:
        return change(node)
    return {k: v if k in {"Literal", "StructExpr"} else _with_selectors(v, change) for k, v in node.items()}


def spelled_out(node: Json) -> list[Json]:
    """The part for each of the columns that its selectors (see ``explicit``) name."""
    chosen = [selector["ByName"]["names"] for selector in find(node, "Selector")]

    def taken(number: int) -> Json:
        def column(selector: Json) -> Json:
            names = selector["Selector"]["ByName"]["names"]
            return {"Column": names[number % len(names)]}

        return _with_selectors(node, column)

    return [taken(number) for number in range(max(map(len, chosen), default=0) if all(chosen) else 0)]


def named_columns(expr: pl.Expr) -> frozenset[str]:
    """The columns that an expression without open selectors (see ``explicit``) reads."""
    node = tree(expr)
    named = set(_columns(node))
    for selector in find(node, "Selector"):
        named.update(selector["ByName"]["names"])
    return frozenset(named)


def lists_without_nulls(expr: pl.Expr) -> pl.Expr:
    """The expression with nulls taken out of lists before ``sum()`` and ``mean()``, which pass over them anyway.

    Polars adds floats up in another order where a list holds a null, be it the list of another row.
    """
    node = tree(expr)
    if not any(name_of({"Function": body}) in _SUMS for body in find(node, "Function")):
        return expr
    return expression(_without_nulls(node))


_SUMS = {
    f"{family}.{part}": part for family in ("ListExpr", "ArrayExpr") for part in ("Sum", "Mean")
}  # in lists and arrays


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
    """The numbers and strings that an expression names; what else it names is left out.

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
            with contextlib.suppress(Exception):  # of another version of polars
                column = pa.ipc.open_stream(bytes(given or ())).read_all().column(0)
                values += [value for value in column.to_pylist() if isinstance(value, int | float | str)]
        elif isinstance(given, int | float | str) and kind != "Null":
            values.append(given)
    return values


def text(expr: pl.Expr, limit: int = 80) -> str:
    """An expression on one line, cut after ``limit`` characters."""
    line = re.sub(r"\bdyn (int|float|str): ", "", " ".join(str(expr).split()))
    return line if len(line) <= limit else line[: limit - 3] + "..."


def find(node: Json, key: str) -> Iterator[Json]:
    """The values under ``key`` anywhere in an expression, the fields of structs and literals aside."""
    if isinstance(node, dict):
        for name, child in node.items():
            if name == key:
                yield child
            if name not in {"Literal", "StructExpr"}:
                yield from find(child, key)
    elif isinstance(node, list):
        for child in node:
            yield from find(child, key)


_PARTS = {  # of kinds that are row-wise where these are
    "RenameAlias": ("expr",),
    "Cast": ("expr",),
    "BinaryExpr": ("left", "right"),
    "Ternary": ("predicate", "truthy", "falsy"),
}


def _refusals(node: Json) -> Iterator[str]:
    """Why this node, or one below it, is not row-wise."""
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
        yield from _all([body[part] for part in _PARTS[kind]])
    elif kind == "Eval":
        yield from _refusals(body["expr"])
        if "Cumulative" in body["variant"]:
            yield "cumulative_eval() looks at other rows"
        yield from _inside(body["evaluation"])
    elif kind == "StructEval":
        yield from _all([body["expr"], *body["evaluation"]])
    elif kind == "Function":
        yield from _function_refusals(body)
    else:
        yield _reason(kind, body)


def _all(nodes: Iterable[Json]) -> Iterator[str]:
    for node in nodes:
        yield from _refusals(node)


def _function_refusals(body: Json) -> Iterator[str]:
    kind, inner = kind_of(body["function"])
    part = kind_of(inner)[0] if inner is not None else ""
    inputs = body["input"]
    allowed = known(name_of({"Function": body})) is not None
    if kind == "Bin":  # between given breaks; their number alone would be spread over the block's range
        part = kind_of(inner["method"])[0]
        allowed = part == "Intervals" and "Breaks" in inner["method"]["Intervals"]["spec"]
    if not allowed:
        yield _reason(kind, inner)
        return
    if part == "Strptime" and inner["Strptime"][1]["format"] is None:
        yield "without a format, polars infers it from other rows: give str.to_datetime(), to_date() or strptime() one"
    if kind == "Business" or part == "IsIn":  # lists of holidays, sets of values: one for all rows
        inputs = [node for i, node in enumerate(inputs) if i == 0 or not is_fixed(node)]
    yield from _all(inputs)


def is_fixed(node: Json) -> bool:
    kind, body = kind_of(node)
    return kind == "Literal" or (kind == "Agg" and kind_of(body)[0] == "Implode" and is_fixed(body["Implode"]["input"]))


def _inside(node: Json) -> Iterator[str]:
    """Within one row's list items may look at one another, except where it shows how lists were cut into blocks."""
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
    called = _CALLED.get(name) or f"{_snake(name)}()"
    if kind in _PYTHON:
        return f"{called} inside an expression cannot be checked: use .map(fn, ...) or .map_batches(fn, ...)"
    if name in {"Random", "Sample"}:
        return f"{called} draws by position in the block: use .map(fn, ..., random=True), .shuffle() or .sample()"
    if name in _LENGTHS:
        return f"{called} does not give one value per row"
    if name in {"FfiPlugin", "MapFieldNames"} or kind not in _SEEN:
        return f"{called} is not known to be row-wise: use .map_batches(fn, ...)"
    return f"{called} looks at other rows"


_SEEN = frozenset(
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
