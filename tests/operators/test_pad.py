from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import Skip
from cedar.core.block import Block
from cedar.core.columns import UNKNOWN, TensorType
from cedar.core.errors import PipelineError, RowError
from cedar.operators.pad import Pad
from tests.toy_blocks import SITE, bind, block, run, run_in_parts, same, values

FLOATS = pa.large_list(pa.float32())


@given(
    rows=st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=6),
    cuts=st.lists(st.integers(0, 99), max_size=2),
    extra=st.integers(0, 2),
)
def test_pads_to_a_length(rows: list[list[int]], cuts: list[int], extra: int) -> None:
    to = max(map(len, rows), default=0) + extra
    given_block = block(ids=pa.array(rows, pa.large_list(pa.int64())))
    kernel = bind(Pad(("ids",), to, -1), given_block)
    out = kernel(given_block, None)  # type: ignore[arg-type]
    assert values(out, "ids") == [row + [-1] * (to - len(row)) for row in rows]
    assert out.types["ids"] == TensorType((to,), "int64")
    assert same(out, run_in_parts(kernel, given_block, cuts))


def test_pads_to_the_longest_of_a_batch() -> None:
    given_block = block(ids=[[1], [2, 3]], x=pa.array([[0.5, None], []], FLOATS), n=[1, 2], words=[["a"], ["b"]])
    out = run(Pad(), given_block, batched=True)
    assert values(out, "ids") == [[1, 0], [2, 3]]
    assert out.columns["x"].dtype == np.float32
    np.testing.assert_array_equal(out.columns["x"], [[0.5, np.nan], [0, 0]])
    assert out.columns["words"] is given_block.columns["words"]
    with pytest.raises(PipelineError, match="no batch") as caught:
        run(Pad(), given_block)
    assert caught.value.site == SITE


def test_other_list_kinds() -> None:
    fixed = pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    out = run(Pad(to=3), block(f=fixed, t=np.ones((2, 1), dtype=np.int8), b=[[True], []]))
    assert values(out, "f") == [[1, 2, 0], [3, 4, 0]]
    assert values(out, "t") == [[1, 0, 0], [1, 0, 0]]
    assert values(out, "b") == [[True, False, False], [False] * 3]
    assert out.columns["b"].dtype == bool


def test_longer_and_null_lists_name_their_row() -> None:
    with pytest.raises(RowError, match="'ids' has 3 values, more than 2") as caught:
        run(Pad(("ids",), 2), block(ids=[[1], [1, 2, 3]]))
    assert caught.value.row is not None
    assert caught.value.row.row == 1
    assert "list.head(2)" in str(caught.value)
    for column in (pa.array([[1], None]), pa.array([[1], [None]])):
        with pytest.raises(RowError, match="null") as caught:
            run(Pad(("ids",), 2), block(ids=column))
        assert caught.value.row is not None
        assert caught.value.row.row == 1
    with pytest.raises(RowError, match="more than 1"):
        run(Pad(("t",), 1), block(t=np.ones((2, 2))))


def test_such_rows_can_be_skipped() -> None:
    out = run(Pad(("ids",), 2, on_error=Skip()), block(ids=pa.array([[1], [1, 2, 3], None, [4, 5]])))
    assert values(out, "ids") == [[1, 0], [4, 5]]
    assert sorted(out.dead) == [1, 2]


def test_a_null_in_a_list_is_in_its_row_whatever_null_lists_hide() -> None:
    items = pa.array([1, 2, 9, 9, 3, None, 5])
    lists = pa.LargeListArray.from_arrays(pa.array([0, 2, 4, 6, 7]), items, mask=pa.array([False, True, False, False]))
    out = run(Pad(("ids",), 2, on_error=Skip()), block(ids=lists))
    assert values(out, "ids") == [[1, 2], [5, 0]]
    assert sorted(out.dead) == [1, 2]
    assert "has a null in its list" in str(out.dead[2])


def test_rows_of_a_resized_batch_have_no_keys() -> None:
    given_block = block(ids=[[1], [1, 2, 3]])
    resized = Block(given_block.columns, given_block.keys.take(slice(0, 1)), aligned=False)
    with pytest.raises(RowError, match="more than 2") as caught:
        run(Pad(("ids",), 2, on_error=Skip()), resized, batched=True)
    assert caught.value.row is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pad((3,), 2), "not a column name"),  # type: ignore[arg-type]
        (lambda: Pad(("ids",), -1), "integer"),
        (lambda: Pad(("ids",), 2.5), "integer"),  # type: ignore[arg-type]
        (lambda: Pad(("ids",), 2, "x"), "number"),  # type: ignore[arg-type]
    ],
)
def test_arguments_are_checked_at_the_users_line(make: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message) as caught:
        make()
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_columns_are_checked() -> None:
    given_block = block(ids=[[1]], n=[1], deep=[[[1]]])
    for columns, message in ((("id",), "no column 'id'"), (("n",), "not lists"), (("deep",), "not lists")):
        with pytest.raises(PipelineError, match=message):
            run(Pad(columns, 2), given_block)
        with pytest.raises(PipelineError, match=message):
            Pad(columns, 2).schema(given_block.types)
    for value in (0.5, float("nan"), float("inf"), 1 << 63, {"ids": -(1 << 64)}):
        with pytest.raises(PipelineError, match="cannot hold"):
            run(Pad(("ids",), 2, value), given_block)
    for value, kind in ((1e39, pa.float32()), (70_000, pa.float16()), (2**53 + 1, pa.float64()), (300, pa.int8())):
        with pytest.raises(PipelineError, match="cannot hold"):
            run(Pad(("x",), 2, value), block(x=pa.array([[]], pa.large_list(kind))))
    assert run(Pad(("x",), 1, -float("inf")), block(x=pa.array([[]], FLOATS))).columns["x"].tolist() == [[-np.inf]]
    assert np.isnan(run(Pad(("x",), 1, float("nan")), block(x=pa.array([[]], FLOATS))).columns["x"]).all()


def test_a_dict_has_a_value_by_column() -> None:
    out = run(Pad(to=2, value={"ids": -1}), block(ids=[[1]], x=[[2.0]])).columns
    assert (out["ids"].tolist(), out["x"].tolist()) == ([[1, -1]], [[2.0, 0.0]])
    with pytest.raises(PipelineError, match=r"value= names 'idz'.*\n(.*\n)*.*name one of 'ids'"):
        run(Pad(("ids",), 2, {"idz": 1}), block(ids=[[1]]))


def test_schema_effects_and_label() -> None:
    types = {"ids": pa.large_list(pa.int64()), "n": pa.int64()}
    assert Pad(to=3).schema(types) == {"ids": TensorType((3,), "int64"), "n": pa.int64()}
    assert Pad().schema(types) == {"ids": UNKNOWN, "n": pa.int64()}
    assert Pad(to=3).schema({**types, "u": UNKNOWN}) == {"ids": UNKNOWN, "n": pa.int64(), "u": UNKNOWN}
    assert Pad(("u",), 3).schema({"u": UNKNOWN}) == {"u": UNKNOWN}
    assert Pad().schema(None) is None
    assert Pad(("ids",), 3).effects().writes == frozenset({"ids"})
    assert Pad(to=3).effects().reads is None
    assert Pad(("ids",), 3).label() == "pad(ids, to=3)"


def test_arrays_of_any_length_are_refused_with_a_call_that_makes_lists() -> None:
    p = cedar.from_items([{"n": n} for n in (1, 3)]).map(np.ones, "n", into="x", dtype=object)
    with pytest.raises(PipelineError, match="'x' is object, not lists") as caught:
        list(p.batch(2).pad("x"))
    call = str(caught.value.fix).partition("batch: .")[2]
    padded = eval(f"p.{call}", {"p": p}).batch(2).pad("x")
    assert next(iter(padded))["x"].tolist() == [[1, 0, 0], [1, 1, 1]]
