"""The table of polars expression nodes: for each kind, on which types it is row-wise and on which it cannot fail.

An entry's ``on`` lists the types on which a row's value depends only on that row. Its ``never`` lists those of them on
which no row can make the node fail. Kinds that are not in the table are refused. The tests run every entry on every
type: in blocks of one, two and many rows, in slices, next to nulls and in two processes. docs/site/row_wise.py
generates the table of docs/row_wise.md from this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from cedar.operators.expression_nodes import Json, kind_of

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

Groups: TypeAlias = frozenset[str]


def _groups(*names: str) -> Groups:
    return frozenset(name for some in names for name in some.split())


INT = _groups("int uint")
NUMBER = _groups("int uint float")
TIMES = _groups("date time datetime duration")
PLAIN = _groups("null bool int uint float string")  # polars converts between these without failing
SCALAR = _groups("null bool int uint float decimal string binary date time datetime duration enum")
COMPARED = SCALAR - {"duration", "enum"}  # comparing these fails only if polars refuses the pair of types
NESTED = _groups("list array struct deep")  # deep: a list or array whose items are nested
VALUES = SCALAR | NESTED
ANY = VALUES | {"categorical"}  # separate, because each process numbers categories in order of first occurrence
STRING, BINARY, BOOL, LIST, ARRAY, STRUCT = (
    frozenset({name}) for name in ("string", "binary", "bool", "list", "array", "struct")
)
DATED = _groups("date datetime")
NONE: Groups = frozenset()


@dataclass(frozen=True)
class Kind:
    """A kind of node.

    Args:
        node: the node's name in polars, prefixed with its family.
        written: examples of code for the node. ``x`` and ``y`` are expressions of the same type; ``i``, ``s`` and ``b``
            are small integers, strings and booleans.
        on: the types of the first operand on which the node is row-wise. A nested type includes its inner types.
        never: the types in ``on`` on which no row makes the node fail.
        others: the allowed types of the other operands; None if they are the same as ``on``.
        never_others: the types in ``others`` with which no row makes the node fail; None if the same as ``never``.
        alike: True if the node may fail on operands of different types; integers and floats count as the same type.
    """

    node: str
    written: str
    on: Groups
    never: Groups = NONE
    others: Groups | None = None
    never_others: Groups | None = None
    alike: bool = False

    @property
    def forms(self) -> list[str]:
        return self.written.split(" ; ")

    def takes(self, first: Groups, others: Groups) -> bool:
        return first <= self.on and others <= (self.on if self.others is None else self.others)

    def never_fails(self, first: Groups, others: Groups) -> bool:
        if self.alike and first != others and not first | others <= {"int", "float"}:
            return False
        return first <= self.never and others <= (self.never if self.never_others is None else self.never_others)


def _all(
    names: str, form: str, on: Groups, never: Groups = NONE, family: str = "", others: Groups | None = None
) -> list[Kind]:
    """Return entries for several similar nodes; ``Node=method`` gives a method with a different name than its node."""
    kinds = []
    for name in names.split():
        node, _, method = name.partition("=")
        kinds.append(Kind(f"{family}{node}", form.format(method or node.lower()), on, never, others))
    return kinds


INDEX = INT | {"null"}
DURATION = frozenset({"duration"})
CLOCK = _groups("time datetime")
CATEGORIES = _groups("categorical enum")
_TO, _WIDE = _groups("null bool int uint float"), _groups("float string")
_SUMMED = LIST | NUMBER | _groups("bool decimal duration null")
_ARITHMETIC = NUMBER | NESTED | _groups("null bool decimal duration")

KINDS: tuple[Kind, ...] = (
    # operators
    Kind("Op.Plus", "x + y ; x + 1 ; x + 0 ; 0.0 + x", _ARITHMETIC | DATED | {"time", "string", "binary"}, NUMBER),
    Kind("Op.Minus", "x - y ; 1 - x ; x - 0", _ARITHMETIC | DATED | {"time"}, NUMBER),
    Kind("Op.Multiply", "x * y ; x * 2.5 ; x * 0 ; x * 1", _ARITHMETIC, NUMBER),
    Kind("Op.TrueDivide", "x / y ; x / 1 ; x / 0", _ARITHMETIC - {"null"}, NUMBER),
    Kind("Op.FloorDivide", "x // y ; x // 2 ; x // 0", _ARITHMETIC, NUMBER),
    Kind("Op.TruncDivide", "x.truncdiv(y)", _ARITHMETIC, NUMBER),
    Kind("Op.Modulus", "x % y ; x % 2 ; x % 0", _ARITHMETIC, NUMBER),
    Kind("Op.Eq", "x == y ; x == 1", ANY, COMPARED),
    Kind("Op.NotEq", "x != y", ANY, COMPARED),
    Kind("Op.EqValidity", "x.eq_missing(y)", ANY, COMPARED),
    Kind("Op.NotEqValidity", "x.ne_missing(y)", ANY, COMPARED),
    Kind("Op.Lt", "x < y", SCALAR, COMPARED),
    Kind("Op.LtEq", "x <= y", SCALAR, COMPARED),
    Kind("Op.Gt", "x > y ; x > 1", SCALAR, COMPARED),
    Kind("Op.GtEq", "x >= y", SCALAR, COMPARED),
    Kind("Op.And", "x & y", BOOL | INT | {"null"}, BOOL | INT),
    Kind("Op.Or", "x | y", BOOL | INT | {"null"}, BOOL | INT),
    Kind("Op.Xor", "x ^ y", BOOL | INT | {"null"}, BOOL | INT),
    Kind("Boolean.Not", "~x", BOOL | INT, BOOL | INT),
    Kind("Negate", "-x", NUMBER | {"decimal", "duration"}, NUMBER),
    Kind("Ternary", "pl.when(b).then(x).otherwise(y) ; pl.when(b).then(None).otherwise(x)", ANY, PLAIN),
    # numbers
    *_all("Abs Sign Floor Ceil", "x.{}()", NUMBER | {"decimal", "duration"}, NUMBER),
    Kind("Round", "x.round(1)", NUMBER | {"decimal"}, NUMBER),
    Kind("RoundSF", "x.round_sig_figs(2)", NUMBER | {"decimal"}),
    Kind("Truncate", "x.truncate(1)", NUMBER | {"decimal"}),
    *_all("Exp Log Log1p Erf", "x.{}()", NUMBER | {"bool", "decimal"}, NUMBER),
    Kind("Pow", "x ** 2 ; x ** 0.5 ; x ** y ; 2 ** x ; x.sqrt() ; x.cbrt()", NUMBER | {"bool", "decimal"}),
    *_all(
        """Sin Cos Tan Cot Sinh Cosh Tanh ArcSin ArcCos ArcTan ArcSinh ArcCosh ArcTanh Degrees Radians""",
        "x.{}()",
        NUMBER,
        NUMBER,
        "Trigonometry.",
    ),
    Kind("Atan2", "pl.arctan2(x, y)", NUMBER, NUMBER),
    Kind("Clip", "x.clip(1, 3) ; x.clip(lower_bound=y)", NUMBER | TIMES | {"decimal"}),
    Kind("Bin", "x.bin_intervals([1.0, 2.0], labels=False)", NUMBER | {"bool"}),
    Kind("Cut", 'x.cut([1.0], labels=["a", "b"])', NUMBER | {"bool"}),
    *_all(
        """CountOnes=count_ones CountZeros=count_zeros LeadingOnes=leading_ones LeadingZeros=leading_zeros
        TrailingOnes=trailing_ones TrailingZeros=trailing_zeros""",
        "x.bitwise_{}()",
        INT | BOOL,
        NONE,
        "Bitwise.",
    ),
    Kind("Reinterpret", "x.reinterpret(signed=True)", INT),
    *_all("MaxHorizontal=max MinHorizontal=min", "pl.{}_horizontal(x, y)", SCALAR, NUMBER | BOOL),
    *_all("SumHorizontal=sum MeanHorizontal=mean", "pl.{}_horizontal(x, y)", NUMBER | {"bool", "null"}, NUMBER),
    *_all("AllHorizontal=all AnyHorizontal=any", "pl.{}_horizontal(x, y)", BOOL | {"null"}, BOOL, "Boolean."),
    # nulls, NaN, choices
    *_all("IsNull=is_null IsNotNull=is_not_null", "x.{}()", ANY, ANY, "Boolean."),
    *_all(
        "IsNan=is_nan IsNotNan=is_not_nan IsFinite=is_finite IsInfinite=is_infinite",
        "x.{}()",
        NUMBER | {"null", "decimal"},
        NUMBER,
        "Boolean.",
    ),
    Kind("Boolean.IsBetween", "x.is_between(y, y) ; x.is_between(1, 3)", SCALAR, COMPARED - {"decimal"}, alike=True),
    Kind("Boolean.IsClose", "x.is_close(y)", NUMBER | {"decimal"}),
    Kind(
        "Boolean.IsIn",
        'x.is_in([1, 3]) ; x.is_in(["a"]) ; x.is_in(pl.concat_list(x, y))',
        ANY,
        COMPARED,
        ANY,
        COMPARED | LIST,
    ),
    Kind("FillNull", "x.fill_null(y) ; x.fill_null(0)", VALUES, PLAIN),
    Kind("Coalesce", "pl.coalesce(x, y)", ANY, PLAIN),
    *_all("Zero=zero One=one", 'x.fill_null(strategy="{}")', NUMBER | BOOL | TIMES, NONE, "FillNullWithStrategy."),
    Kind(
        "Replace",
        'x.replace({1: 2}) ; x.replace({1: None}) ; x.replace({None: 1}) ; x.replace({"a": "b"})',
        SCALAR,
        NONE,
        SCALAR | LIST,
    ),
    Kind(
        "ReplaceStrict", "x.replace_strict({1: 2}, default=y) ; x.replace_strict({1: 2})", SCALAR, NONE, SCALAR | LIST
    ),
    # casts, for which the target type counts as another operand
    Kind(
        "Cast.Strict",
        "x.cast(pl.Int64) ; x.cast(pl.Float32) ; x.cast(pl.String)",
        ANY,
        _TO,
        ANY,
        _groups("float string"),
    ),
    Kind("Cast.NonStrict", "x.cast(pl.Int8, strict=False) ; x.cast(pl.Boolean, strict=False)", ANY, _TO, ANY, PLAIN),
    Kind("Cast.Overflowing", "x.cast(pl.Int8, wrap_numerical=True)", ANY, _TO, ANY, PLAIN),
    # shapes
    Kind("AsStruct", "pl.struct(x, y)", VALUES, VALUES),
    Kind("RepeatBy", "x.repeat_by(2) ; x.repeat_by(i)", VALUES - {"null"}, NONE, INT),
    Kind("Hash", "x.hash(3)", VALUES, PLAIN),
    Kind("ToPhysical", "x.to_physical()", VALUES),
    Kind("StructExpr.FieldByName", 'pl.struct(a=x).struct.field("a")', ANY, ANY),
    Kind("StructExpr.SelectFields", 'pl.struct(pl.struct(x, y).struct.field("x", "y"))', ANY, ANY),
    Kind("StructExpr.RenameFields", 'pl.struct(x).struct.rename_fields(["p"])', ANY, ANY),
    Kind("StructExpr.PrefixFields", 'pl.struct(x).name.prefix_fields("p_")', ANY, ANY),
    Kind("StructExpr.SuffixFields", 'pl.struct(x).name.suffix_fields("_s")', ANY, ANY),
    Kind("StructExpr.JsonEncode", "pl.struct(x).struct.json_encode()", PLAIN | NESTED),
    Kind("StructEval", "pl.struct(x).struct.with_fields(c=pl.field('x'))", VALUES, NONE, VALUES),
    # strings and bytes
    *_all(
        "Lowercase=to_lowercase Uppercase=to_uppercase Titlecase=to_titlecase LenBytes=len_bytes LenChars=len_chars",
        "x.str.{}()",
        STRING,
        STRING,
        "StringExpr.",
    ),
    *_all(
        "StripChars=strip_chars StripCharsStart=strip_chars_start StripCharsEnd=strip_chars_end",
        "x.str.{}()",
        STRING | {"null"},
        STRING | {"null"},
        "StringExpr.",
    ),
    Kind("StringExpr.Reverse", "x.str.reverse()", STRING, STRING),
    *_all("StartsWith=starts_with EndsWith=ends_with", "x.str.{}(y)", STRING, STRING, "StringExpr."),
    *_all("EscapeRegex=escape_regex Normalize=normalize", "x.str.{}()", STRING, NONE, "StringExpr."),
    *_all("StripPrefix=strip_prefix StripSuffix=strip_suffix", "x.str.{}(s)", STRING, NONE, "StringExpr."),
    *_all("Head Tail", "x.str.{0}(1) ; x.str.{0}(i)", STRING, STRING, "StringExpr.", INDEX),
    Kind("StringExpr.Slice", "x.str.slice(1, 2) ; x.str.slice(i, i)", STRING, NONE, INDEX),
    *_all(
        "Contains CountMatches=count_matches Extract=extract ExtractAll=extract_all Find",
        'x.str.{0}("(a)") ; x.str.{0}(s)',
        STRING,
        NONE,
        "StringExpr.",
    ),
    Kind("StringExpr.ExtractGroups", 'x.str.extract_groups("(a)")', STRING),
    Kind("StringExpr.ContainsAny", 'x.str.contains_any(["a"])', STRING, NONE, STRING | LIST),
    *_all("ExtractMany=extract_many FindMany=find_many", 'x.str.{}(["a"])', STRING, NONE, "StringExpr.", STRING | LIST),
    Kind("StringExpr.Replace", 'x.str.replace("a", "b") ; x.str.replace_all("a", "b") ; x.str.replace("a", s)', STRING),
    Kind("StringExpr.ReplaceMany", 'x.str.replace_many(["a"], ["b"])', STRING, NONE, STRING | LIST),
    Kind("StringExpr.Split", 'x.str.split("a") ; x.str.split(s)', STRING),
    *_all("SplitExact=split_exact SplitN=splitn", 'x.str.{}("a", 1)', STRING, NONE, "StringExpr."),
    *_all("HexEncode=hex Base64Encode=base64", 'x.str.encode("{}")', STRING, NONE, "StringExpr."),
    *_all("HexDecode=hex Base64Decode=base64", 'x.str.decode("{}", strict=False)', STRING, NONE, "StringExpr."),
    *_all(
        "PadStart=pad_start PadEnd=pad_end ZFill=zfill",
        "x.str.{0}(3) ; x.str.{0}(i)",
        STRING,
        NONE,
        "StringExpr.",
        INDEX,
    ),
    Kind("StringExpr.ConcatHorizontal", 'pl.concat_str(x, s) ; pl.concat_str(x, y, separator="-")', PLAIN, PLAIN),
    Kind("StringExpr.Format", 'pl.format("{}/{}", x, s)', PLAIN, PLAIN),
    Kind("StringExpr.ToInteger", "x.str.to_integer() ; x.str.to_integer(strict=False)", STRING, NONE, INDEX),
    Kind("StringExpr.ToDecimal", "x.str.to_decimal(scale=2)", STRING),
    Kind("StringExpr.Strptime", 'x.str.to_date("%Y-%m-%d") ; x.str.to_datetime("%Y-%m-%d", strict=False)', STRING),
    Kind("StringExpr.JsonDecode", "x.str.json_decode(pl.Int64)", STRING),
    Kind("StringExpr.JsonPathMatch", 'x.str.json_path_match("$.a")', STRING),
    Kind("BinaryExpr.Size", "x.bin.size()", BINARY, BINARY),
    *_all("Contains StartsWith=starts_with EndsWith=ends_with", "x.bin.{}(y)", BINARY, BINARY, "BinaryExpr."),
    *_all("HexEncode=hex Base64Encode=base64", 'x.bin.encode("{}")', BINARY, NONE, "BinaryExpr."),
    *_all("HexDecode=hex Base64Decode=base64", 'x.bin.decode("{}", strict=False)', BINARY, NONE, "BinaryExpr."),
    *_all("Head Tail", "x.bin.{}(1)", BINARY, NONE, "BinaryExpr.", INDEX),
    Kind("BinaryExpr.Slice", "x.bin.slice(1, 1)", BINARY, NONE, INDEX),
    Kind("BinaryExpr.Get", "x.bin.get(0, null_on_oob=True) ; x.bin.get(0)", BINARY, NONE, INDEX),
    Kind("BinaryExpr.Reinterpret", "x.bin.reinterpret(dtype=pl.Int32)", BINARY),
    *_all("StartsWith=starts_with EndsWith=ends_with", 'x.cat.{}("a")', CATEGORIES, NONE, "Categorical."),
    *_all("LenBytes=len_bytes LenChars=len_chars", "x.cat.{}()", CATEGORIES, NONE, "Categorical."),
    Kind("Categorical.Slice", "x.cat.slice(0, 1)", CATEGORIES),
    # lists
    Kind("ListExpr.Length", "x.list.len()", ANY, ANY),
    *_all("Sum Mean", "x.list.{}()", _SUMMED, LIST | NUMBER, "ListExpr."),
    *_all("Min Max", "x.list.{}()", LIST | SCALAR, LIST | NUMBER | STRING, "ListExpr."),
    *_all("Median Std Var", "x.list.{}()", LIST | NUMBER, NONE, "ListExpr."),
    *_all("ArgMin=arg_min ArgMax=arg_max DropNulls=drop_nulls", "x.list.{}()", VALUES, NONE, "ListExpr."),
    Kind("ListExpr.Sort", "x.list.sort() ; x.list.sort(descending=True)", VALUES),
    Kind("ListExpr.Slice", "x.list.slice(1, 2) ; x.list.head(1) ; x.list.slice(i, i)", ANY, ANY, INDEX, INDEX),
    Kind("ListExpr.Get", "x.list.get(0, null_on_oob=True) ; x.list.get(i)", VALUES, NONE, INDEX),
    Kind("ListExpr.Gather", "x.list.gather([0], null_on_oob=True)", VALUES, NONE, INDEX | LIST),
    Kind("ListExpr.GatherEvery", "x.list.gather_every(2)", VALUES, NONE, INDEX),
    Kind("ListExpr.Shift", "x.list.shift(1) ; x.list.shift(i)", VALUES, NONE, INDEX),
    Kind("ListExpr.Contains", "x.list.contains(1) ; x.list.contains(None)", VALUES, NONE, SCALAR),
    Kind("ListExpr.CountMatches", "x.list.count_matches(1)", VALUES, NONE, SCALAR),
    Kind("ListExpr.Concat", "pl.concat_list(x, y) ; x.list.concat(y)", VALUES - {"null"}, NONE, VALUES),
    Kind("ListExpr.Join", 'x.list.join("-") ; x.list.join(s)', LIST | STRING, NONE, STRING),
    Kind("ListExpr.SetOperation", "x.list.set_union(y) ; x.list.set_intersection(y)", LIST | SCALAR),
    Kind("ListExpr.ToArray", "x.list.to_array(2)", VALUES),
    Kind("ListExpr.ToStruct", 'x.list.to_struct(fields=["a", "b"])', VALUES),
    Kind("ArrayExpr.Length", "x.arr.len()", VALUES),
    *_all("Sum Mean", "x.arr.{}()", ARRAY | NUMBER, NONE, "ArrayExpr."),
    *_all("Min Max Median Std Var", "x.arr.{}()", ARRAY | NUMBER, NONE, "ArrayExpr."),
    *_all("ArgMin=arg_min ArgMax=arg_max ToList=to_list Sort", "x.arr.{}()", VALUES, NONE, "ArrayExpr."),
    Kind("ArrayExpr.ToStruct", "x.arr.to_struct()", VALUES),
    Kind("ArrayExpr.Get", "x.arr.get(0) ; x.arr.get(i, null_on_oob=True)", VALUES, NONE, INDEX),
    Kind("ArrayExpr.Shift", "x.arr.shift(1)", VALUES, NONE, INDEX),
    Kind("ArrayExpr.Contains", "x.arr.contains(1)", VALUES, NONE, SCALAR),
    Kind("ArrayExpr.CountMatches", "x.arr.count_matches(1)", VALUES, NONE, SCALAR),
    Kind("ArrayExpr.Concat", "pl.concat_arr(x, y)", VALUES - {"null"}),
    Kind("ArrayExpr.Join", 'x.arr.join("-")', ARRAY | STRING, NONE, STRING),
    Kind("ArrayExpr.Dot", "x.arr.dot(y)", ARRAY | NUMBER),
    # dates and times
    *_all("Year Month Day Quarter WeekDay=weekday Week", "x.dt.{}()", DATED, DATED, "TemporalExpr."),
    *_all("Hour Minute Second Millisecond Microsecond Nanosecond", "x.dt.{}()", CLOCK, CLOCK, "TemporalExpr."),
    *_all(
        """IsoYear=iso_year OrdinalDay=ordinal_day Century Millennium IsLeapYear=is_leap_year
        DaysInMonth=days_in_month Date MonthStart=month_start MonthEnd=month_end""",
        "x.dt.{}()",
        DATED,
        NONE,
        "TemporalExpr.",
    ),
    Kind("TemporalExpr.Time", "x.dt.time()", CLOCK),
    Kind("TemporalExpr.TimeStamp", "x.dt.timestamp()", DATED, DATED),
    *_all(
        """TotalDays=total_days TotalHours=total_hours TotalMinutes=total_minutes TotalSeconds=total_seconds
        TotalMilliseconds=total_milliseconds TotalMicroseconds=total_microseconds TotalNanoseconds=total_nanoseconds""",
        "x.dt.{}()",
        DURATION,
        NONE,
        "TemporalExpr.",
    ),
    *_all("Truncate Round", 'x.dt.{}("1h")', DATED, NONE, "TemporalExpr.", STRING),
    Kind("TemporalExpr.OffsetBy", 'x.dt.offset_by("1mo") ; x.dt.offset_by(s)', DATED, NONE, STRING),
    *_all("BaseUtcOffset=base_utc_offset DSTOffset=dst_offset", "x.dt.{}()", DATED, NONE, "TemporalExpr."),
    Kind("TemporalExpr.CastTimeUnit", 'x.dt.cast_time_unit("ms")', TIMES),
    Kind("TemporalExpr.Combine", "x.dt.combine(pl.time(1, 2, 3))", DATED, NONE, TIMES),
    Kind("TemporalExpr.ConvertTimeZone", 'x.dt.convert_time_zone("Asia/Tokyo")', DATED),
    Kind(
        "TemporalExpr.ReplaceTimeZone",
        'x.dt.replace_time_zone("UTC") ; x.dt.replace_time_zone(None)',
        DATED,
        NONE,
        STRING,
    ),
    Kind("TemporalExpr.ToString", 'x.dt.strftime("%Y")', TIMES),
    *_all("DatetimeFunction=datetime", "pl.{}(2020, 1, i)", INT, NONE, "TemporalExpr.", INDEX | STRING),
    Kind("TemporalExpr.Duration", "pl.duration(days=i) ; pl.duration(days=x)", INT | {"float"}),
    *_all("AddBusinessDay=add_business_days", "x.dt.{}(1)", DATED, NONE, "Business.", INDEX | LIST | {"date"}),
    Kind("Business.IsBusinessDay", "x.dt.is_business_day()", DATED, NONE, LIST | {"date"}),
    Kind("Business.BusinessDayCount", "pl.business_day_count(x, y)", LIST | {"date"}),
    # ranges per row
    Kind("Range.IntRanges", "pl.int_ranges(0, i)", INT | {"null"}),
    Kind("Range.DateRanges", "pl.date_ranges(x, y)", DATED),
    Kind("Range.DatetimeRanges", "pl.datetime_ranges(x, y)", DATED),
    Kind("Range.TimeRanges", "pl.time_ranges(x, y)", frozenset({"time"})),
    Kind("Range.LinearSpaces", "pl.linear_spaces(i, 3 * i, 3)", NUMBER),
)

INSIDE: Mapping[str, str] = {
    # Kinds that are also allowed in expressions on a list's items, ``e``; they may use other items of the same list.
    "Agg": "e.sum() ; e.mean() ; e.min() ; e.max() ; e.first() ; e - e.mean() ; e.n_unique()",
    "Sort": "e.sort() ; e.sort(descending=True)",
    "SortBy": "e.sort_by(e.is_null(), maintain_order=True)",
    "Filter": "e.filter(e.is_not_null())",
    "Slice": "e.head(1) ; e.tail(1)",
    "Gather": "e.gather([0, 0], null_on_oob=True)",
    "Len": "pl.len()",
    "Explode": "e.implode().explode()",
    "Rank": "e.rank()",
    "Shift": "e.shift(1)",
    "ShiftAndFill": "e.shift(1, fill_value=0)",
    "Diff": "e.diff()",
    "CumSum": "e.cum_sum()",
    "CumProd": "e.cum_prod()",
    "CumMin": "e.cum_min()",
    "CumMax": "e.cum_max()",
    "CumCount": "e.cum_count()",
    "Reverse": "e.reverse()",
    "Unique": "e.unique() ; e.unique(maintain_order=True)",
    "ArgUnique": "e.arg_unique()",
    "ArgSort": "e.arg_sort()",
    "TopK": "e.top_k(2)",
    "DropNulls": "e.drop_nulls()",
    "DropNans": "e.drop_nans()",
    "NullCount": "e.null_count()",
    "Product": "e.product()",
    "Quantile": "e.quantile(0.3)",
    "RollingExpr": "e.rolling_mean(2)",
    "Interpolate": "e.interpolate()",
    "Boolean.Any": "e.is_null().any()",
    "Boolean.All": "e.is_null().all()",
    "Boolean.IsUnique": "e.is_unique()",
    "Boolean.IsDuplicated": "e.is_duplicated()",
    "Boolean.IsFirstDistinct": "e.is_first_distinct()",
    "Boolean.IsLastDistinct": "e.is_last_distinct()",
    "FillNullWithStrategy.Forward": 'e.fill_null(strategy="forward")',
    "FillNullWithStrategy.Backward": 'e.fill_null(strategy="backward")',
    "Range.IntRange": "pl.int_range(pl.len())",
}

_BY_NODE = {kind.node: kind for kind in KINDS}


def name_of(node: Json) -> str:
    """Return the name under which the table lists a polars node."""
    kind, body = kind_of(node)
    if kind == "BinaryExpr":
        return f"Op.{body['op']}"
    if kind == "Cast":
        return f"Cast.{body['options']}"
    if kind != "Function":
        return kind
    family, inner = kind_of(body["function"])
    full = family if inner is None else f"{family}.{kind_of(inner)[0]}"
    return full if full in _BY_NODE or full in INSIDE else family


def known(name: str) -> Kind | None:
    """Return the table's entry of a kind; None if it has none."""
    return _BY_NODE.get(name)


def groups_of(dtype: PolarsDataType) -> Groups:
    """Return the group of a type and the groups of its inner types.

    Examples:
        >>> import polars as pl
        >>> sorted(groups_of(pl.List(pl.Int64)))
        ['int', 'list']
    """
    import polars as pl

    if isinstance(dtype, pl.Struct):
        return STRUCT.union(*(groups_of(field.dtype) for field in dtype.fields))
    if isinstance(dtype, pl.List | pl.Array):
        inner = groups_of(dtype.inner)
        return (LIST if isinstance(dtype, pl.List) else ARRAY) | inner | ({"deep"} if inner & NESTED else NONE)
    for group, member in (("int", dtype.is_signed_integer()), ("uint", dtype.is_unsigned_integer())):
        if member:
            return frozenset({group})
    name = "float" if dtype.is_float() else str(dtype.base_type()).lower()
    return frozenset({{"boolean": "bool"}.get(name, name)})
