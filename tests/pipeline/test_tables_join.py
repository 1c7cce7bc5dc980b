"""join and join_asof, compared with polars on the whole of the data."""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cedar
from cedar import col
from cedar.testing import assert_resumable

KEYS = {
    "int": (pl.Int64, st.integers(-1, 6)),
    "small": (pl.Int8, st.integers(-1, 6)),
    "unsigned": (pl.UInt64, st.sampled_from([0, 1, 2**63, 2**64 - 1])),
    "text": (pl.String, st.sampled_from(["", "a", "b", "ä"])),
    "float": (pl.Float64, st.sampled_from([0.0, -0.0, 1.5, float("nan")])),
    "bool": (pl.Boolean, st.booleans()),
    "day": (pl.Date, st.sampled_from([dt.date(2024, 1, d) for d in (1, 2, 3)])),
}
ITEMS = pl.DataFrame({"item": [0, 1, 2], "price": [0.1, 0.2, 0.3], "x": ["a", "b", "c"]})


def shards(folder: Path, rows: int = 120) -> cedar.Pipeline:
    for number, part in enumerate(np.array_split(np.arange(rows), 3)):
        pq.write_table(pa.table({"x": part, "item": part % 4}), folder / f"{number}.parquet", row_group_size=16)
    return cedar.read_parquet(str(folder / "*.parquet"))


@given(
    data=st.data(),
    left=st.sampled_from(sorted(KEYS)),
    how=st.sampled_from(["left", "inner", "semi", "anti"]),
    validate=st.sampled_from(["m:1", "m:m"]),
)
@settings(max_examples=60, deadline=None)
def test_like_polars(data: st.DataObject, left: str, how: Any, validate: Any) -> None:
    right = data.draw(st.sampled_from(["int", "small"])) if left in ("int", "small") else left
    frames = []
    for kind, more in ((left, 20), (right, 8)):
        dtype, values = KEYS[kind]
        drawn = data.draw(st.lists(st.one_of(st.none(), values), max_size=more))
        other = data.draw(st.lists(st.integers(0, 1), min_size=len(drawn), max_size=len(drawn)))
        frames.append(pl.DataFrame({"k": pl.Series(drawn, dtype=dtype), "b": pl.Series(other, dtype=pl.Int64)}))
    a, b = (frame.with_row_index("n") for frame in frames)
    on = data.draw(st.sampled_from([["k"], ["k", "b"]]))
    if validate == "m:1":
        b = b.unique(on, keep="first", maintain_order=True)
    want = a.join(b, on=on, how=how, maintain_order="left_right")
    found = cedar.from_polars(a).join(b, on=on, how=how, validate=validate)
    assert found.to_polars().equals(want, null_equal=True)
    assert found.columns == want.columns


@pytest.mark.parametrize("how", ["left", "inner", "semi", "anti"])
@pytest.mark.parametrize("plan", ["off", "auto"])
def test_other_names_for_keys(how: Any, plan: str) -> None:
    rows = pl.DataFrame({"a": [1, 2, 3], "y": [1, 1, 1]})
    other = pl.DataFrame({"k": [3, 1], "y": ["u", "v"]})
    found = cedar.from_polars(rows).join(other, left_on="a", right_on="k", how=how)
    with found.loader(plan=plan, executor="inline") as loader:
        assert list(loader) == rows.join(other, left_on="a", right_on="k", how=how, maintain_order="left").to_dicts()


def test_tables_of_other_libraries() -> None:
    import pandas as pd

    rows = cedar.from_items([{"item": 1}, {"item": 5}])
    want = [{"item": 1, "price": 0.2}, {"item": 5, "price": None}]
    items = ITEMS.select("item", "price")
    for other in (
        items,
        items.to_arrow(),
        items.to_arrow().to_batches()[0],
        pd.DataFrame(items.to_dict(as_series=False)),
    ):
        assert list(rows.join(other, on="item")) == want
    assert list(rows.join(cedar.from_polars(items), on="item")) == want


def test_an_index_with_a_name_is_a_column_of_a_pandas_table() -> None:
    import pandas as pd

    items = pd.DataFrame({"item": [1, 2], "price": [0.2, 0.3]}).set_index("item")
    rows = cedar.from_items([{"item": 2}])
    assert list(rows.join(items, on="item")) == [{"item": 2, "price": 0.3}]
    assert list(rows.join_asof(items, on="item")) == [{"item": 2, "price": 0.3}]


def test_a_pandas_column_of_several_types_is_refused_at_the_users_line() -> None:
    import pandas as pd

    mixed = pd.DataFrame({"item": [1, "a"]})
    for join in (lambda p: p.join(mixed, on="item"), lambda p: p.join_asof(mixed, on="item")):
        with pytest.raises(cedar.PipelineError, match="join.*: .*item") as caught:
            join(cedar.from_items([{"item": 1}]))
        assert caught.value.fix == "give each column values of one type: .astype(...)"
        assert caught.value.site is not None
        assert caught.value.site.file == __file__


def test_a_reader_of_record_batches_is_read_first() -> None:
    reader = pa.RecordBatchReader.from_batches(pa.schema([("item", pa.int64())]), [])
    with pytest.raises(cedar.PipelineError, match="join takes a table") as caught:
        cedar.from_items([{"item": 1}]).join(reader, on="item")
    assert "reader.read_all()" in (caught.value.fix or "")


def test_a_pipeline_is_read_once(tmp_path: Path) -> None:
    read = tmp_path / "read"
    read.write_text("")

    def counted(item: int) -> int:
        with read.open("a") as stream:
            stream.write("x")
        return item

    other = cedar.from_items([{"item": i, "price": i * 1.5} for i in range(3)]).map(counted, "item", dtype=pa.int64())
    joined = shards(tmp_path).join(other, on="item", how="inner")
    assert read.read_text() == ""
    with joined.loader(executor="threads", workers=2) as loader:
        for _ in range(2):
            assert sum(row["price"] for row in loader) == sum(i % 4 * 1.5 for i in range(120) if i % 4 < 3)
    assert len(read.read_text()) <= 6  # samples for the checks of functions may be called twice


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("how", ["left", "inner", "anti"])
def test_at_any_world_size(tmp_path: Path, world: int, how: Any) -> None:
    batches = (
        shards(tmp_path).shuffle(seed=1).join(ITEMS.select("item", "price"), on="item", how=how).batch(4, last="keep")
    )
    loaders = [batches.loader(rank=rank, world=world, executor="inline", format="arrow") for rank in range(world)]
    rows = [x for loader in loaders for batch in loader for x in batch["x"].to_pylist()]
    assert sorted(rows) == [x for x in range(120) if how == "left" or (x % 4 < 3) == (how == "inner")]


def test_the_length_of_a_left_join_is_known(tmp_path: Path) -> None:
    assert len(shards(tmp_path).join(ITEMS, on="item").batch(8).loader(format="arrow")) == 15


def test_resumes(tmp_path: Path) -> None:
    other = pl.DataFrame({"item": [1, 1, 2], "n": [1, 2, 3]})
    joined = shards(tmp_path).join(other, on="item", how="inner", validate="m:m").shuffle(seed=2).batch(4)
    assert_resumable(joined, executors=["inline", "threads"], stops=3)


@pytest.mark.heavy
def test_in_other_processes(tmp_path: Path) -> None:
    joined = shards(tmp_path).join(cedar.from_polars(ITEMS), on="item", how="inner").batch(4)
    assert_resumable(joined, executors=["inline", "processes"], stops=2)


def test_functions_above_a_join_see_real_values(tmp_path: Path) -> None:
    doubled = shards(tmp_path).join(ITEMS, on="item", how="inner").map(lambda price: price * 2, "price")
    assert {row["price"] for row in doubled} == {0.2, 0.4, 0.6}
    filtered = shards(tmp_path).join(ITEMS, on="item").filter(col("price") > 0.15).select("x", "price")
    for plan in ("off", "auto"):
        assert {row["price"] for row in filtered.loader(plan=plan, executor="inline")} == {0.2, 0.3}


def test_columns_of_lists_arrays_and_structs() -> None:
    rows = cedar.from_items([{"k": i % 2, "image": np.full((2, 2), i), "l": [i]} for i in range(4)])
    other = pl.DataFrame({"k": [0], "vec": [[1.0, 2.0]], "s": [{"a": 1}]})
    found = list(rows.join(other, on="k", how="inner"))
    assert [row["image"][0, 0] for row in found] == [0, 2]
    assert found[0]["s"] == {"a": 1}
    assert list(found[0]["vec"]) == [1.0, 2.0]
    arrays = cedar.from_numpy({"k": np.array([0]), "array": np.ones((1, 2, 2))})
    assert [row["array"] for row in rows.join(arrays, on="k", how="inner")] == [[[1.0, 1.0], [1.0, 1.0]]] * 2


def test_rows_that_failed_keep_their_slots() -> None:
    def checked(x: int) -> int:
        if x == 1:
            raise ValueError(x)
        return x

    rows = cedar.from_items([{"x": i, "item": i % 4} for i in range(6)]).map(checked, "x")
    for how, want in (("left", [0, 2, 3, 4, 5]), ("inner", [0, 2, 4, 5])):
        joined = rows.join(ITEMS.select("item", "price"), on="item", how=how)  # type: ignore[arg-type]
        with joined.loader(on_error=cedar.Skip(), executor="inline") as loader:
            assert [row["x"] for row in loader] == want
            assert sum(loader.report().skipped.values()) == 1


@given(data=st.data(), kind=st.sampled_from(["int", "float", "time"]), by=st.booleans(), tolerance=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_latest_and_never_the_future(data: st.DataObject, kind: str, by: bool, tolerance: bool) -> None:
    start = dt.datetime(2024, 1, 1)
    make: Any = {"int": int, "float": float, "time": lambda n: start + dt.timedelta(hours=n)}[kind]
    rows, other = (
        [
            {"t": None if t is None else make(t), "u": u, "n": n}
            for n, (t, u) in enumerate(
                data.draw(
                    st.lists(
                        st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.integers(0, 1)), min_size=1, max_size=12
                    )
                )
            )
        ]
        for _ in range(2)
    )
    types = {"t": {"int": pl.Int64, "float": pl.Float64, "time": pl.Datetime("us")}[kind], "u": pl.Int64, "n": pl.Int64}
    near = None if not tolerance else dt.timedelta(hours=2) if kind == "time" else 2
    found = cedar.from_polars(pl.DataFrame(rows, types)).join_asof(
        pl.DataFrame(other, types), on="t", by="u" if by else None, tolerance=near
    )
    span = make(2) - make(0)
    for row in found:
        known = [
            o for o in other
            if o["t"] is not None and row["t"] is not None and o["t"] <= row["t"] and (not by or o["u"] == row["u"])
        ]  # fmt: skip
        best = max(known, key=lambda o: (o["t"], o["n"]), default=None)
        if best is not None and tolerance and row["t"] - best["t"] > span:
            best = None
        assert row["n_right"] == (None if best is None else best["n"])
    assert [row["n"] for row in found] == list(range(len(rows)))


def test_times_of_finer_units_are_not_rounded_into_the_past() -> None:
    micros = pl.DataFrame({"t": pl.Series([1000], dtype=pl.Datetime("us"))})
    nanos = pl.DataFrame({"t": pl.Series([1_000_500, 999_000], dtype=pl.Datetime("ns")), "v": ["future", "past"]})
    assert [row["v"] for row in cedar.from_polars(micros).join_asof(nanos, on="t")] == ["past"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"on": "item", "how": "outer"}, "how='outer'"),
        ({"on": "item", "validate": "1:1"}, "validate='1:1'"),
        ({}, "on=None"),
        ({"on": "item", "left_on": "x"}, "left_on='x'"),
        ({"on": "user"}, "other table: there is no column 'user'"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    with pytest.raises(cedar.PipelineError, match=message) as caught:
        cedar.from_items([{"item": 1, "x": 1}]).join(ITEMS, **change)
    assert __file__ in str(caught.value)
    assert caught.value.fix


def test_errors_that_a_run_meets() -> None:
    rows = cedar.from_items([{"item": 1, "x": 1}])
    twice = pl.DataFrame({"item": [1, 1, 2], "p": [1, 2, 3]})
    with pytest.raises(cedar.PipelineError, match=r"2 rows of the other table share their keys, such as 1") as caught:
        list(rows.join(twice, on="item"))
    assert 'validate="m:m"' in str(caught.value)
    assert __file__ in str(caught.value)
    assert rows.join(twice, on="item", how="semi").count() == 1
    with pytest.raises(cedar.PipelineError, match="cannot be compared: 'item' of int64 and 'item' of large_string"):
        list(rows.join(pl.DataFrame({"item": ["1"], "p": [1]}), on="item"))
    with pytest.raises(cedar.PipelineError, match="no column 'y'"):
        list(rows.join(ITEMS, left_on="y", right_on="item"))
    with pytest.raises(cedar.PipelineError, match="two columns are named 'x_right'"):
        list(rows.with_columns(x_right=col("x")).join(ITEMS, on="item"))
    with pytest.raises(cedar.PipelineError, match="LazyFrame"):
        rows.join(ITEMS.lazy(), on="item")
    with pytest.raises(cedar.PipelineError, match="needs a pipeline that ends"):
        list(rows.join(cedar.from_polars(ITEMS).repeat(), on="item"))
    with pytest.raises(cedar.PipelineError, match="gives batches"):
        rows.batch(2).join(ITEMS, on="item")


def test_a_cache_above_a_join_knows_the_table(tmp_path: Path) -> None:
    for price in (1.0, 2.0):
        other = pl.DataFrame({"item": [0, 1], "price": [price] * 2})
        for side in (other, cedar.from_polars(other)):
            joined = shards(tmp_path).join(side, on="item", how="inner").map(lambda price: price, "price")
            assert {row["price"] for row in joined.cache(str(tmp_path / "cache"))} == {price}


def test_a_state_is_refused_where_another_table_leaves_other_rows() -> None:
    rows = cedar.from_items([{"x": i, "item": i % 4} for i in range(40)])

    def batches(prices: list[float], how: Any) -> Any:
        return rows.join(pl.DataFrame({"item": range(len(prices)), "price": prices}), on="item", how=how).batch(4)

    for how, refused in (("inner", True), ("anti", True), ("left", False)):
        with batches([1.0, 2.0, 3.0], how).loader(format="arrow") as loader:
            next(iter(loader))
            state = loader.state_dict()
        with batches([1.0, 2.0], how).loader(format="arrow") as other:
            if refused:
                with pytest.raises(cedar.ResumeError, match="join"):
                    other.load_state_dict(state)
            else:
                other.load_state_dict(state)


def test_rows_of_the_other_pipeline_that_fail_are_skipped_as_those_of_this_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def checked(x: int) -> int:
        if x % 4 == 0:
            raise ValueError("bad")
        return x

    other = cedar.from_items([{"x": i, "w": i} for i in range(8)]).map(checked, "x")
    joined = cedar.from_items([{"x": i} for i in range(6)]).join(other, on="x")
    with pytest.raises(cedar.RowError, match="bad"):
        list(joined)
    with joined.loader(on_error=cedar.Skip(), format="arrow", executor="inline") as loader:
        assert [row["w"] for row in loader] == [None, 1, 2, 3, None, 5]
    assert "join: 2 row(s) failed in the pass before the epoch" in caplog.text


NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("left", "right", "tolerance", "message"),
    [
        ("x", NOON, None, "have no common order"),
        (1, NOON, None, "have no common order"),
        (NOON.date(), NOON, None, "have no common order"),
        (1, 1, "2h", "tolerance='2h' is not a distance between values of Int64"),
        (NOON, NOON, 3, "tolerance=3 is not a distance between values of Datetime"),
    ],
)
def test_times_that_do_not_compare(left: Any, right: Any, tolerance: Any, message: str) -> None:
    other = pl.DataFrame({"t": [right], "v": [1]})
    with pytest.raises(cedar.PipelineError, match=message) as caught:
        list(cedar.from_items([{"t": left}]).join_asof(other, on="t", tolerance=tolerance))
    assert "'t' of" in str(caught.value)
    assert __file__ in str(caught.value)


def test_the_error_of_a_sample_row_names_its_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [0]}), tmp_path / "zero.parquet")
    failing = cedar.read_parquet(str(tmp_path)).map(lambda row: {"k": 1 / row["k"]})
    for look in (lambda: failing.columns, lambda: cedar.from_items([{"k": 1}]).join(failing, on="k")):
        with pytest.raises(cedar.RowError, match="zero.parquet, row 0"):
            look()


@pytest.mark.parametrize("name", ["__left", "__right", "__hash", "__row"])
def test_columns_with_the_names_of_hidden_ones_are_joined(name: str) -> None:
    rows, other = pl.DataFrame({name: [1, 2, 3]}), pl.DataFrame({name: [3, 1], "v": ["c", "a"]})
    p = cedar.from_polars(rows)
    assert [row["v"] for row in p.join(other, on=name)] == ["a", None, "c"]
    assert [row["v"] for row in p.join_asof(other, on=name)] == ["a", "a", "c"]
    assert [row[name] for row in p.join(other, on=name, how="semi")] == [1, 3]
    added = cedar.from_items([{"k": 1}, {"k": 3}]).join(other.rename({name: "k", "v": name}), on="k")
    assert [row[name] for row in added] == ["a", "c"]
