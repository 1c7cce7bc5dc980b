"""Which polars expressions are row-wise, and which columns they read.

A block's size must never show in a result, so an expression's value on a row may depend on that row alone. The check
is an allow-list of node kinds: what is not on it is refused, whatever it does. A second net, for node kinds that are
allowed but seldom used, evaluates the expression on a sample whole, cut in two, and in another order.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

Json = Any

# Functions whose value on a row depends on that row alone, by the names polars gives them in its JSON.
_PLAIN = frozenset(
    """
    Abs Negate FillNull Coalesce Clip Round RoundSF RoundDecimal Truncate Floor Ceil Sign Exp Erf Log Log1p Log10 Hash
    Pow DecimalArith Atan2 Trigonometry MaxHorizontal MinHorizontal SumHorizontal MeanHorizontal AsStruct AsList
    Replace ReplaceStrict Cut ToPhysical Reinterpret RepeatBy NullEqual Business Categorical BinaryExpr MapExpr
    """.split()
)
# In these families all are row-wise, except those listed.
_FAMILIES: dict[str, frozenset[str]] = {
    "StringExpr": frozenset({"ConcatVertical"}),
    "ListExpr": frozenset({"Sample"}),
    "ArrayExpr": frozenset({"Sample", "Explode"}),
    "TemporalExpr": frozenset(),
    "StructExpr": frozenset({"MapFieldNames"}),
}
# In these families only the listed ones are.
_PARTS: dict[str, frozenset[str]] = {
    "Boolean": frozenset(
        """
        IsNull IsNotNull IsFinite IsInfinite IsNan IsNotNan IsBetween IsIn IsClose AllHorizontal AnyHorizontal Not
        """.split()
    ),
    "Bitwise": frozenset("CountOnes CountZeros LeadingOnes LeadingZeros TrailingOnes TrailingZeros".split()),
    "Range": frozenset("IntRanges DateRanges DatetimeRanges TimeRanges LinearSpaces".split()),
    "FillNullWithStrategy": frozenset("Zero One MinBound MaxBound".split()),
    "Random": frozenset(),
}
# What needs no second net: used everywhere, and row-wise in every version.
_SURE = frozenset(
    """
    Abs Negate FillNull Coalesce Clip Round Floor Ceil Sign Exp Log Log1p Pow Hash Boolean Trigonometry AsStruct
    MaxHorizontal MinHorizontal SumHorizontal MeanHorizontal Eval
    ListExpr.Slice ListExpr.Get ListExpr.Length ListExpr.Sum ListExpr.Mean ListExpr.Min ListExpr.Max ListExpr.Contains
    ListExpr.Concat ListExpr.Sort ListExpr.Reverse StringExpr.Contains StringExpr.StartsWith StringExpr.EndsWith
    StringExpr.Lowercase StringExpr.Uppercase StringExpr.LenBytes StringExpr.LenChars StringExpr.Slice
    StringExpr.Replace StringExpr.Split StringExpr.ConcatHorizontal StringExpr.Format StringExpr.ToInteger
    StringExpr.StripChars TemporalExpr.Year TemporalExpr.Month TemporalExpr.Day TemporalExpr.Hour TemporalExpr.Minute
    TemporalExpr.Second TemporalExpr.WeekDay TemporalExpr.TimeStamp StructExpr.FieldByName
    """.split()
)

# These fail on no row, whatever it holds.
_SAFE = frozenset(
    """
    Abs Negate FillNull Coalesce Round Floor Ceil Sign Exp Log Log1p Hash Boolean Trigonometry AsStruct
    MaxHorizontal MinHorizontal SumHorizontal MeanHorizontal
    ListExpr.Slice ListExpr.Length ListExpr.Sum ListExpr.Mean ListExpr.Min ListExpr.Max ListExpr.Reverse
    StringExpr.StartsWith StringExpr.EndsWith StringExpr.Lowercase StringExpr.Uppercase StringExpr.LenBytes
    StringExpr.LenChars StringExpr.ConcatHorizontal TemporalExpr.Year TemporalExpr.Month TemporalExpr.Day
    TemporalExpr.Hour TemporalExpr.Minute TemporalExpr.Second TemporalExpr.WeekDay StructExpr.FieldByName
    """.split()
)

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
_LENGTHS = frozenset(
    """Filter Explode Slice DropNulls DropNans Unique Mode Reshape Append ExtendConstant GatherEvery Repeat ArgWhere
    TopK TopKBy ValueCounts UniqueCounts ArgUnique RLE Hist""".split()
)
_PYTHON = frozenset("AnonymousFunction FoldHorizontal ReduceHorizontal CumReduceHorizontal CumFoldHorizontal".split())


def check_elementwise(expr: pl.Expr) -> str | None:
    """None for a row-wise expression; else the reason for its refusal, naming the offending part.

    Example:
        >>> import polars as pl
        >>> from cedar.operators.elementwise import check_elementwise
        >>> check_elementwise(pl.col("x").fill_null(0) * 2)
        >>> check_elementwise(pl.col("x") - pl.col("x").mean())
        'mean() looks at other rows'
    """
    return next(_refusals(_tree(expr)), None)


def needs_sample(expr: pl.Expr) -> bool:
    """True where the allow-list alone is not trusted."""
    return any(kind not in _SURE and kind.partition(".")[0] not in _SURE for kind in _functions(_tree(expr)))


def never_fails(expr: pl.Expr) -> bool:
    """True where no row can make an expression fail; a cast may, and so may whatever is not known to be safe.

    Example:
        >>> import polars as pl
        >>> from cedar.operators.elementwise import never_fails
        >>> never_fails(pl.col("a") + 1), never_fails(pl.col("a").cast(pl.Int8))
        (True, False)
    """
    tree = _tree(expr)
    if any(next(_find(tree, kind), None) is not None for kind in ("Cast", "Eval", "StructEval", "Selector")):
        return False
    return all(kind in _SAFE or kind.partition(".")[0] in _SAFE for kind in _functions(tree))


def columns_of(expr: pl.Expr) -> frozenset[str] | None:
    """The columns that an expression reads; None where a selector (``col("^a.*$")``) leaves it to the schema.

    Example:
        >>> import polars as pl
        >>> from cedar.operators.elementwise import columns_of
        >>> sorted(columns_of(pl.col("a") + pl.col("b")))
        ['a', 'b']
    """
    tree = _tree(expr)
    if next(_find(tree, "Selector"), None) is not None:
        return None
    return frozenset(name for name in _find(tree, "Column") if isinstance(name, str) and name)


def fields_of(expr: pl.Expr) -> dict[str, frozenset[tuple[str, ...]] | None]:
    """For each column that an expression reads, the fields of it that are read, as paths; None is the whole column.

    Example:
        >>> import polars as pl
        >>> from cedar.operators.elementwise import fields_of
        >>> read = fields_of(pl.col("a").struct.field("b").struct.field("c") + pl.col("d"))
        >>> read["a"], read["d"]
        (frozenset({('b', 'c')}), None)
    """
    found: dict[str, frozenset[tuple[str, ...]] | None] = {}
    for name, path in _paths(_tree(expr)):
        known = found.get(name, frozenset[tuple[str, ...]]())
        found[name] = known | {path} if path and known is not None else None
    return found


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
    kind, inner = _kind(body["function"])
    part, name = _kind(inner) if kind == "StructExpr" else ("", None)
    return name if part == "FieldByName" and isinstance(name, str) else None


def selects_by_type(expr: pl.Expr) -> bool:
    """True where the columns that a selector picks depend on their types."""
    return any(next(_find(chosen, "ByDType"), None) is not None for chosen in _find(_tree(expr), "Selector"))


def sets_asked(expr: pl.Expr) -> Iterator[pl.Expr]:
    """The second operands of ``is_in`` that are columns, or computed from columns."""
    import polars as pl

    for body in _find(_tree(expr), "Function"):
        if "IsIn" in _kind(_kind(body["function"])[1] or "")[0] and not _is_fixed(body["input"][1]):
            yield pl.Expr.deserialize(io.StringIO(json.dumps(body["input"][1])), format="json")


def explicit(expr: pl.Expr, frame: pl.LazyFrame) -> pl.Expr:
    """The expression with its selectors replaced by the names that they select in ``frame``."""
    import polars as pl

    def resolve(node: Json) -> Json:
        if isinstance(node, dict):
            if set(node) == {"Selector"}:
                chosen = pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")
                names = frame.select(chosen).collect_schema().names()
                return {"Selector": {"ByName": {"names": names, "strict": True}}}
            return {k: v if k in {"Literal", "StructExpr"} else resolve(v) for k, v in node.items()}
        return [resolve(item) for item in node] if isinstance(node, list) else node

    return pl.Expr.deserialize(io.StringIO(json.dumps(resolve(_tree(expr)))), format="json")


def named_columns(expr: pl.Expr) -> frozenset[str]:
    """The columns that an expression without open selectors (see ``explicit``) reads."""
    tree = _tree(expr)
    named = {name for name in _find(tree, "Column") if isinstance(name, str) and name}
    for selector in _find(tree, "Selector"):
        named.update(selector["ByName"]["names"])
    return frozenset(named)


def text(expr: pl.Expr, limit: int = 80) -> str:
    """An expression on one line, cut after ``limit`` characters."""
    line = re.sub(r"\bdyn (int|float|str): ", "", " ".join(str(expr).split()))
    return line if len(line) <= limit else line[: limit - 3] + "..."


def differs_by_rows(expr: pl.Expr, frame: pl.DataFrame) -> str | None:
    """The reason for refusal when a value on a sample row depends on the other rows; None when none was seen."""
    import polars as pl

    if frame.height < 2:
        return None
    half = frame.height // 2
    order = [*range(1, frame.height, 2), *range(0, frame.height, 2)]
    back = sorted(range(frame.height), key=order.__getitem__)
    try:
        whole = frame.select(expr)
        parts = [frame[:half].select(expr), frame[half:].select(expr)]
        moved = frame[order].select(expr)
    except pl.exceptions.PolarsError:
        return None  # a row that fails is reported when it is reached
    if whole.height != frame.height:
        return None if whole.height == 1 and _constant(expr) else f"{text(expr)} does not give one value per row"
    if [p.height for p in parts] != [half, frame.height - half]:
        return f"{text(expr)} does not give one value per row"
    if not whole.equals(pl.concat(parts)) or not whole.equals(moved[back]):
        return f"{text(expr)} looks at other rows: cutting or reordering a sample changes its values"
    return None


def _constant(expr: pl.Expr) -> bool:
    return columns_of(expr) == frozenset()


def _tree(expr: pl.Expr) -> Json:
    return json.loads(expr.meta.serialize(format="json"))


def _find(node: Json, key: str) -> Iterator[Json]:
    """The values under ``key`` anywhere in an expression, the fields of structs and literals aside."""
    if isinstance(node, dict):
        for name, child in node.items():
            if name == key:
                yield child
            if name not in {"Literal", "StructExpr"}:
                yield from _find(child, key)
    elif isinstance(node, list):
        for child in node:
            yield from _find(child, key)


def _functions(node: Json) -> Iterator[str]:
    for body in _find(node, "Function"):
        kind, inner = _kind(body["function"])
        part = _kind(inner)[0] if inner is not None else ""
        yield f"{kind}.{part}" if part else kind
    yield from ("Eval" for _ in _find(node, "Eval"))
    yield from ("StructEval" for _ in _find(node, "StructEval"))


def _kind(node: Json) -> tuple[str, Json]:
    """The name and the parameters of a node: ``"Len"`` and ``{"Cast": {...}}`` are both nodes."""
    if isinstance(node, dict) and len(node) == 1:
        return next(iter(node.items()))
    return str(node), None


def _refusals(node: Json) -> Iterator[str]:
    """Why this node, or one below it, is not row-wise."""
    kind, body = _kind(node)
    if kind in {"Column", "Selector", "Element", "Field"}:
        return
    if kind == "Literal":
        if isinstance(body, dict) and "Series" in body:
            yield "a Series has its own rows: join it to the source, or give is_in() a list"
    elif kind in {"Alias", "KeepName"}:
        yield from _refusals(body[0] if isinstance(body, list) else body)
    elif kind == "RenameAlias":
        yield from _refusals(body["expr"])
    elif kind == "Cast":
        yield from _refusals(body["expr"])
    elif kind == "BinaryExpr":
        yield from _all([body["left"], body["right"]])
    elif kind == "Ternary":
        yield from _all([body["predicate"], body["truthy"], body["falsy"]])
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
    kind, inner = _kind(body["function"])
    part = _kind(inner)[0] if inner is not None else ""
    inputs = body["input"]
    if kind in _FAMILIES:
        allowed = part not in _FAMILIES[kind]
    elif kind in _PARTS:
        allowed = part in _PARTS[kind]
    elif kind == "Bin":  # between given breaks; their number alone would be spread over the block's range
        part = _kind(inner["method"])[0]
        allowed = part == "Intervals" and "Breaks" in inner["method"]["Intervals"]["spec"]
    else:
        allowed = kind in _PLAIN
    if not allowed:
        yield _reason(kind, inner)
        return
    if part == "Strptime" and inner["Strptime"][1]["format"] is None:
        yield "without a format, polars infers it from other rows: give str.to_datetime(), to_date() or strptime() one"
    if kind == "Business" or part == "IsIn":  # lists of holidays, sets of values: one for all rows
        inputs = [node for i, node in enumerate(inputs) if i == 0 or not _is_fixed(node)]
    yield from _all(inputs)


def _is_fixed(node: Json) -> bool:
    kind, body = _kind(node)
    return kind == "Literal" or (kind == "Agg" and _kind(body)[0] == "Implode" and _is_fixed(body["Implode"]["input"]))


def _inside(node: Json) -> Iterator[str]:
    """Within one row's list anything may look at anything, except what sees how lists were cut into blocks."""
    kinds = {kind for kind in _PYTHON if next(_find(node, kind), None) is not None}
    if kinds:
        yield _reason(min(kinds), None)
    if any(kind.partition(".")[0] == "Random" for kind in _functions(node)):
        yield _reason("Random", None)


def _reason(kind: str, body: Json) -> str:
    name = kind
    if kind == "Agg" and isinstance(body, dict):
        name = _kind(body)[0]
    elif kind in {*_FAMILIES, *_PARTS} and kind not in {"FillNullWithStrategy", "Random"} and body is not None:
        name = _kind(body)[0]
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
