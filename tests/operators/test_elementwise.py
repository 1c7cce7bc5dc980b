from __future__ import annotations

import polars as pl
import polars.selectors as cs
import pytest

from cedar import col
from cedar.core.errors import PipelineError
from cedar.operators.elementwise import check_elementwise
from cedar.operators.expression_nodes import columns_of, format_expr, named_columns, resolve_selectors, selects_by_type
from cedar.operators.expression_steps import AddColumns, compile_steps
from tests.operators.toy_expressions import BLAME
from tests.toy_blocks import SITE, block

x, y, ids, word, when, record = (pl.col(n) for n in ("x", "y", "ids", "word", "when", "record"))

REFUSED = {
    "mean() depends on other rows": x - x.mean(),
    "max() depends on other rows": x / x.max(),
    "n_unique()": x.n_unique(),
    "first()": x.first(),
    "len() or count()": x.len(),
    "len() depends": x / pl.len(),
    "cum_sum()": x.cum_sum() * 2,
    "shift()": x - x.shift(1),
    "diff()": x.diff(),
    "rank()": x.rank(),
    "sort()": x.sort(),
    "sort_by()": x.sort_by("y"),
    "reverse()": x.reverse(),
    "over()": x.sum().over("y"),
    "rolling_*()": x.rolling_mean(3),
    "rolling()": x.sum().rolling("when", period="1d"),
    "ewm_mean()": x.ewm_mean(com=1),
    "interpolate()": x.interpolate(),
    "fill_null(strategy=...)": x.fill_null(strategy="forward"),
    "is_unique()": x.is_unique(),
    "is_first_distinct()": x.is_first_distinct(),
    "any()": (x > 1).any(),
    "quantile()": x.quantile(0.5),
    "correlation()": pl.corr("x", "y"),
    "int_range()": pl.int_range(pl.len()),
    "get() or gather()": x.gather([0]),
    "rle_id()": x.rle_id(),
    "binning by ranks": x.bin_quantiles([0.5], labels=False),
    "a number of intervals depends on other rows": x.bin_intervals(4, labels=False),
    "str.join()": word.str.join(),
    "cumulative_eval()": x.cumulative_eval(pl.element().sum()),
    "implode()": x.implode(),
    "head(), tail() or slice() does not give one value per row": x.head(2),
    "filter() does not give": x.filter(x > 1),
    "drop_nulls() does not give": x.drop_nulls(),
    "unique() does not give": x.unique(),
    "explode() does not give": ids.explode(empty_as_null=True),
    "draws by position": x.shuffle(),
    "sample() or shuffle()": x.sample(2),
    "sample() draws": ids.list.sample(2),
    "a Series has its own rows": x + pl.Series([1, 2]),
    "use .map(fn, ...)": x.map_elements(lambda v: v, return_dtype=pl.Int64),
    "a Python function": x.map_batches(lambda s: s),
    "Python function inside": pl.fold(pl.lit(0), lambda a, b: a + b, ["x", "y"]),
    "format": word.str.to_datetime(),
    "not known to be row-wise": x.set_sorted(),
    "draws by position in the block": ids.list.eval(pl.element().shuffle()),
    "inside an expression cannot be checked": ids.list.eval(pl.element().map_batches(lambda s: s)),
}

ALLOWED = [
    x + 1, -x, x // 2, x % 7, x**2, abs(x), ~(x > 1), (x > 1) & (y < 2), x.is_between(1, 2), x.xor(y), x.eq_missing(y),
    x.fill_null(0), x.fill_null(y), x.fill_nan(0), x.is_null(), x.is_nan(), x.cast(pl.Float32, strict=False),
    x.log1p(), x.log(2), x.exp(), x.sqrt(), x.sin(), x.sign(), x.round(1), x.floor(), x.clip(0, 1), x.hash(3),
    x.is_in([1, 2]), word.is_in(["a"]), x.is_in(pl.Series([1, 2])), x.is_in(ids), x.replace({1: 2}),
    x.replace_strict({1: 2}, default=y), x.is_close(y), x.bitwise_count_ones(),
    x.bin_intervals([1.0], labels=False),
    pl.when(x > 1).then(y).when(x < 0).then(0).otherwise(None), pl.lit(3), pl.lit([1, 2]), pl.lit("a"),
    pl.coalesce("x", "y", 0), pl.max_horizontal("x", "y"), pl.sum_horizontal("x", "y"), pl.any_horizontal(x > 1, y > 1),
    pl.concat_str("word", "word", separator="-"), pl.format("{}/{}", "word", "x"), pl.concat_list("x", "y"),
    pl.struct("x", "y"), record.struct.field("a"), record.struct.with_fields(b=pl.field("a") + 1),
    word.str.contains("a|b"), word.str.split(","), word.str.len_chars(), word.str.strptime(pl.Date, "%Y"),
    word.str.to_integer(), word.str.json_decode(pl.Int64), word.str.slice(0, 3), word.str.extract("(a)"),
    when.dt.year(), when.dt.truncate("1h"), when.dt.epoch(), pl.datetime(2020, 1, 1), pl.from_epoch("x"),
    ids.list.head(2), ids.list.len(), ids.list.sum(), ids.list.get(0, null_on_oob=True), ids.list.contains(3),
    ids.list.eval(pl.element() % 7), ids.list.eval(pl.element().rank()), ids.list.eval(pl.element().sort().head(2)),
    ids.list.eval(pl.element().cum_sum()), ids.list.filter(pl.element() > 1), ids.list.unique(), ids.list.to_array(3),
    ids.list.set_union(ids), pl.int_ranges(0, "x"), pl.arctan2("x", "y"), pl.duration(days="x"),
    pl.col("^d\\d+$") * 2, cs.numeric() + 1, pl.all(), pl.col("x", "y") * 2, x.alias("z"), x.name.suffix("_a"),
]  # fmt: skip


@pytest.mark.parametrize("reason", list(REFUSED))
def test_refusals_name_the_part(reason: str) -> None:
    refused = check_elementwise(REFUSED[reason])
    assert refused is not None
    assert reason in refused


@pytest.mark.heavy
@pytest.mark.parametrize("expr", ALLOWED, ids=format_expr)
def test_row_wise_expressions_are_allowed(expr: pl.Expr) -> None:
    assert check_elementwise(expr) is None


def test_a_part_deep_inside_is_found() -> None:
    assert "mean()" in (check_elementwise(pl.when(x > 1).then(pl.struct(a=x - x.mean())).otherwise(None)) or "")
    assert "max()" in (check_elementwise(ids.list.eval(pl.element()).list.get(x.max())) or "")
    assert "sum()" in (check_elementwise(pl.col("x", "y").sum().alias("z")) or "")


def test_columns_read() -> None:
    assert columns_of(pl.when(x > 1).then(y).otherwise(pl.col("z"))) == frozenset({"x", "y", "z"})
    assert columns_of(ids.list.filter(pl.element() > 1)) == frozenset({"ids"})
    assert columns_of(pl.lit("x")) == frozenset()
    assert columns_of(pl.col("^d.$")) is None
    assert columns_of(cs.numeric() * 2) is None
    assert columns_of(col("x") + col.y) == frozenset({"x", "y"})


def test_selectors_are_spelled_out() -> None:
    frame = pl.LazyFrame(schema={"d1": pl.Int64, "d2": pl.Float64, "e": pl.String})
    assert named_columns(resolve_selectors(pl.col("^d.$") * 2, frame)) == {"d1", "d2"}
    assert named_columns(resolve_selectors(cs.string() + pl.lit("x"), frame)) == {"e"}
    assert named_columns(resolve_selectors(pl.all().exclude("e"), frame)) == {"d1", "d2"}
    assert selects_by_type(cs.numeric())
    assert not selects_by_type(pl.col("^d.$"))


def test_text_is_one_short_line() -> None:
    assert format_expr(col("x") + 1) == '[(col("x")) + (1)]'
    assert len(format_expr(pl.concat_str([pl.col(f"column{i}") for i in range(50)]))) == 80
    assert "\n" not in format_expr(pl.when(x > 1).then(2))


CATEGORY = pl.col("s").cast(pl.Categorical)


@pytest.mark.parametrize(
    "expr",
    [
        CATEGORY.to_physical(),
        pl.struct(CATEGORY).hash(),
        pl.col("t").is_in("t"),
        pl.col("t").is_in(pl.concat_list("t", "t")),
        pl.col("n").is_in("n"),
        pl.col("f").list.eval(pl.element() + 0),
        pl.col("f").list.eval(pl.element() - (pl.lit(1.0) - 1)),
        pl.arctan2(pl.struct("s"), pl.struct("s")),  # ends the process
        pl.col("n").cast(pl.Struct({"a": pl.Int64})),
    ],
    ids=str,
)
def test_types_that_are_not_row_wise_are_refused(expr: pl.Expr) -> None:
    given = block(s=["b", "a"], t=[[1], [2]], f=[[-0.0], [1.0]], n=[1, 2])
    assert check_elementwise(expr) is None
    with pytest.raises(PipelineError, match="is not row-wise") as caught:
        compile_steps((AddColumns((("r", expr),), BLAME),), tuple(given.types.items()))
    assert caught.value.site == SITE
    assert caught.value.fix
