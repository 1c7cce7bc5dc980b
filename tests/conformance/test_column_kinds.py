"""Columns of every kind through everything that cedar has, next to plain Python.

CEDAR_CASES sets the number of random pipelines, CEDAR_SEED the first of them; ``python -m benchmarks.column_kinds``
runs 20,000.
"""

from __future__ import annotations

import random

import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

import cedar
from benchmarks.column_kinds import run_many
from benchmarks.column_kinds_data import draw_column, model, same
from cedar import col
from cedar.core.boundary import as_column, canonical_type, from_frame, polars_type, to_frame
from tests.how_much import SEED, cases

CASES = cases(60)
GROUPS = 5


@pytest.mark.heavy
@pytest.mark.parametrize("group", range(GROUPS))
def test_rows_are_those_of_plain_python_or_refused_by_name(group):
    _, wrong = run_many(range(SEED + group, SEED + CASES, GROUPS))
    assert not wrong, "\n".join(f"seed {seed}: {problem}" for seed, problem in wrong.items())


def test_arrays_of_every_kind_and_layout_become_columns_with_the_same_values():
    seen = 0
    for seed in range(SEED, SEED + 4 * CASES):
        draw = random.Random(seed)
        try:
            column = draw_column(draw, draw.choice([0, 1, 2, 6]), draw.choice([0, 1, 2, 3]))
            values = model(column)
        except (pa.ArrowException, NotImplementedError):  # pyarrow cannot make, or show, some nested arrays
            continue
        seen += 1
        made = as_column(column)
        made.validate(full=True)
        assert made.type.equals(canonical_type(column.type), check_metadata=True), seed
        assert same(model(made), values), (seed, column.type)
        for start in range(len(values)):
            assert same(model(as_column(column[start:])), values[start:]), (seed, column.type)
            if polars_type(made.type) is not None:
                assert same(model(from_frame(to_frame({"x": made[start:]}))["x"]), values[start:]), (seed, column.type)
    assert seen > 2 * CASES


# ---- faults that were seen -------------------------------------------------------------------------------------------


def test_nullable_fixed_size_lists_in_slices_lose_no_row_under_skip():
    lists = pa.array([[1, 2], None, [3, 4], [5, 6]] * 20_000, pa.list_(pa.int64(), 2))
    p = cedar.from_arrow(pa.table({"x": lists, "id": range(80_000)})).filter(col("x").is_not_null())
    with p.batch(1000, last="keep").loader(on_error=cedar.Skip(max_rate=1.0), format="arrow") as loader:
        assert sum(batch.num_rows for batch in loader) == 60_000


@pytest.mark.parametrize("kind", [pa.list_view(pa.int64()), pa.large_list_view(pa.int64())])
def test_list_views_keep_their_values(kind):
    values = [[1, 2], None, [], [3]]
    p = cedar.from_arrow(pa.table({"x": pa.array(values, kind)}))
    assert p.schema == {"x": pa.large_list(pa.int64())}
    assert [row["x"] for row in p.with_columns(x=col("x").list.reverse())] == [[2, 1], None, [], [3]]


def test_sums_beyond_64_bits_are_refused_by_name():
    p = cedar.from_arrow(pa.table({"i": pa.array([1]), "u": pa.array([1], pa.uint64())}))
    with pytest.raises(cedar.PipelineError, match="Int128 has no type in Arrow"):
        list(p.with_columns(s=col("i") + col("u")))
    assert next(iter(p.with_columns(s=(col("i") + col("u")).cast(pl.Int64))))["s"] == 2
    with pytest.raises(cedar.PipelineError, match="column 'x' of Int128"):
        cedar.from_polars(pl.DataFrame({"x": pl.Series([1], dtype=pl.Int128)}))


@pytest.mark.parametrize(
    ("kind", "why"), [(pa.sparse_union([pa.field("a", pa.int8())]), "a union"), (None, "two fields")]
)
def test_what_no_column_holds_is_refused_where_the_schema_is_known(tmp_path, kind, why):
    kind = kind or pa.struct([pa.field("a", pa.int8()), pa.field("a", pa.int8())])
    table = pa.Table.from_batches([], pa.schema([("fine", pa.int8()), ("odd", pa.list_(kind))]))
    with pytest.raises(cedar.PipelineError, match=rf"column 'odd' of list.*{why}"):
        cedar.from_arrow(table)
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema):
        pass
    with pytest.raises(cedar.SourceError, match=rf"t\.arrow: column 'odd' of list.*{why}"):
        cedar.read_arrow(str(tmp_path / "t.arrow")).schema  # noqa: B018


@pytest.mark.parametrize("values", [[[], []], [[], None, []], [None, None], []])
@pytest.mark.parametrize("item", [pa.int64(), pa.string(), pa.struct([("a", pa.float32())])])
def test_dedup_of_empty_lists_from_arrow_files(tmp_path, values, item):
    table = pa.table({"x": pa.array(values, pa.list_(item)), "id": range(len(values))})
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        writer.write_table(table)
    p = cedar.read_arrow(str(tmp_path / "t.arrow")).dedup([["x"]]).batch(2, last="keep")
    with p.loader(format="arrow", executor="inline") as loader:
        assert [value for batch in loader for value in batch.column(0).to_pylist()] == values


def test_a_column_with_a_dot_beside_a_struct_that_has_such_a_field(tmp_path):
    path = str(tmp_path / "t.parquet")
    pq.write_table(pa.table({"a.b": [1, 2], "a": [{"b": 10, "c": 5}, {"b": 20, "c": 6}]}), path)
    p = cedar.read_parquet(path)
    assert list(cedar.read_parquet(path, columns=["a.b"])) == [{"a.b": 1}, {"a.b": 2}]
    assert list(cedar.read_parquet(path, columns=["a"])) == [{"a": {"b": 10, "c": 5}}, {"a": {"b": 20, "c": 6}}]
    assert list(p.select("a.b").filter(col("a.b") > 1)) == [{"a.b": 2}]
    assert list(p.select(q=col("a").struct.field("b"))) == [{"q": 10}, {"q": 20}]
    assert list(p.filter(col("a").struct.field("b") > 10).select("a.b")) == [{"a.b": 2}]


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["", "__cedar_row", "__cedar_unread_0", "self", "*", "^x.*$", "new\nline", "nul\0l"])
def test_columns_of_any_name_are_filtered_renamed_and_written(tmp_path, name):
    p = cedar.from_arrow(pa.table({name: ["a", "b", None], "id": [1, 2, 3]}))
    assert list(p.filter(col("id") > 1)) == [{name: "b", "id": 2}, {name: None, "id": 3}]
    assert next(iter(p.rename({name: "y"}).with_columns(z=col("y") + "!"))) == {"y": "a", "id": 1, "z": "a!"}
    assert next(iter(p.rename({name: "y"}).rename({"y": name}).with_columns(id=col("id") + 1).drop("id"))) == {
        name: "a"
    }
    p.filter(col("id") > 1).write_parquet(str(tmp_path / "out"))
    assert cedar.read_parquet(str(tmp_path / "out")).to_arrow().to_pydict() == {name: ["b", None], "id": [2, 3]}


def test_parquet_refuses_by_name_what_it_cannot_hold(tmp_path):
    spans = pa.array([None], pa.month_day_nano_interval())
    p = cedar.from_arrow(pa.table({"x": [1], "span": spans}))
    with pytest.raises(
        cedar.PipelineError, match="column 'span' is month_day_nano_interval, and Parquet has no intervals"
    ):
        p.write_parquet(str(tmp_path / "out"))
    with pytest.raises(cedar.PipelineError, match="'span' of month_day_nano_interval, which expressions cannot"):
        list(p.filter(col("span").is_null()))


def test_values_that_python_has_no_type_for_are_named():
    p = cedar.from_arrow(pa.table({"t": pa.array([2**62], pa.timestamp("s"))}))
    with pytest.raises(cedar.PipelineError, match=r"column 't' of timestamp\[s\]"):
        list(p)
    assert cedar.from_arrow(pa.table({"t": pa.array([1], pa.timestamp("us", "Nowhere/Land"))})).to_arrow().num_rows == 1
