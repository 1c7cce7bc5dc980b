from collections import UserDict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.columns import UNKNOWN
from cedar.core.errors import PipelineError, RowError, Skip
from cedar.operators.base import Bound, Env
from cedar.operators.flat_map import FlatMap
from tests.toy_blocks import SITE, bind, block, run, run_in_parts, same, values

XS = block(x=[1, 0, 3], s=["a", "b", "c"], t=np.arange(6).reshape(3, 2))


def test_items_become_rows_and_other_columns_repeat():
    found = run(FlatMap(range, ("x",)), XS)
    assert list(found.columns) == ["x", "s", "t"]
    assert values(found, "x") == [0, 0, 1, 2]
    assert values(found, "s") == ["a", "c", "c", "c"]
    assert values(found, "t") == [[0, 1], [4, 5], [4, 5], [4, 5]]
    assert found.keys.row.tolist() == [0, 2, 2, 2]
    assert found.keys.sub.tolist() == [0, 0, 1, 2]


def test_several_columns_and_whole_rows():
    pairs = run(FlatMap(lambda x: [(i, str(i)) for i in range(x)], ("x",), ("i", "w")), XS)
    assert list(pairs.columns) == ["x", "s", "t", "i", "w"]
    assert values(pairs, "w") == ["0", "0", "1", "2"]
    rows = run(FlatMap(lambda row: ({"w": row["s"]} for _ in range(row["x"]))), XS)
    assert values(rows, "w") == ["a", "c", "c", "c"]
    assert list(rows.columns) == ["w"]


def test_types_of_items():
    def annotated(x) -> Iterator[float]:
        yield from range(x)

    assert run(FlatMap(annotated, ("x",)), XS).types["x"] == pa.float64()
    assert run(FlatMap(range, ("x",), dtype="int8"), XS).types["x"] == pa.int8()
    assert FlatMap(annotated, ("x",)).schema({"x": pa.int64()}) == {"x": pa.float64()}
    assert FlatMap(range, ("x",), "i").schema({"x": pa.int64()}) == {"x": pa.int64(), "i": UNKNOWN}
    assert FlatMap(range, ("x",)).effects().rows == "1:n"


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda x: "abc", "returned a str, not an iterable"),
        (lambda x: b"abc", "returned a bytes, not an iterable"),
        (lambda x: {"a": 1}, "returned a dict, not an iterable"),
        (lambda x: UserDict(a=1), "returned a UserDict, not an iterable"),
        (lambda x: None, "returned None, not an iterable"),
        (lambda x: 5, "returned a int, not an iterable"),
        (lambda x: [1 / x], "failed: ZeroDivisionError"),
        (lambda x: (1 / i for i in [x]), "failed: ZeroDivisionError"),
        (lambda x: [1, "a"], "do not fit into one column"),
    ],
)
def test_functions_that_fail(fn, says):
    with pytest.raises(RowError) as caught:
        run(FlatMap(fn, ("x",)), XS)
    assert says in caught.value.what
    assert caught.value.site == SITE
    assert caught.value.row.row in {0, 1}


def test_a_misfit_takes_its_whole_row():
    given = block(x=[1, 2, 3, 4])
    fn = lambda x: [x, "late" if x == 3 else x, x]
    with pytest.raises(RowError, match=r"'late' \(str\) does not fit int64") as caught:
        run(FlatMap(fn, ("x",)), given, sample=given.slice(0, 2))
    assert caught.value.row.row == 2
    found = run(FlatMap(fn, ("x",), on_error=Skip()), given, sample=given.slice(0, 2))
    assert values(found, "x") == [1, 1, 1, 2, 2, 2, 4, 4, 4]
    assert list(found.dead) == [6]
    assert found.keys.row.tolist() == [0, 0, 0, 1, 1, 1, 2, 3, 3, 3]


def test_no_items_at_all():
    found = run(FlatMap(lambda x: [], ("x",)), XS)
    assert (len(found), found.slots, list(found.columns)) == (0, 0, ["x", "s", "t"])


@pytest.mark.parametrize("first", [1, 64, 1500])
def test_types_come_from_the_first_item_wherever_it_is(first):
    p = cedar.from_items([{"i": i} for i in range(first + 9)])
    p = p.flat_map(lambda i: ["a"] * (i >= first), "i", into="w").map(len, "w")
    assert [(row["i"], row["w"]) for row in p] == [(i, 1) for i in range(first, first + 9)]


def test_no_more_rows_are_asked_for_an_item_than_it_takes():
    parts = [block(x=[10 * i, 10 * i + 1]) for i in range(4)]
    asked = []

    def some(x):
        asked.append(x)
        return [x] * (x == 21)

    operator = FlatMap(some, ("x",))
    operator.bind(Bound(0, "", SITE, 0, None, False, lambda: parts[0], None, further=lambda: iter(parts[1:])))
    assert asked == [0, 1, 10, 11, 20, 21]


def test_items_of_later_splits_are_found(tmp_path):
    pq.write_table(pa.table({"i": range(16)}), tmp_path / "x.parquet", row_group_size=1)
    p = cedar.read_parquet(tmp_path / "x.parquet").flat_map(lambda i: [i] * (i % 3), "i")
    assert [row["i"] for row in p.take(3)] == [1, 2, 2]


def test_an_item_behind_all_rows_that_are_looked_at_is_a_misfit_that_says_so():
    given = block(x=[0, 0, 5])
    with pytest.raises(RowError, match="the type fixed by a sample that gave no items") as caught:
        run(FlatMap(range, ("x",)), given, sample=given.slice(0, 2))
    assert "dtype=" in caught.value.fix


def test_refused_below_a_batch():
    with pytest.raises(PipelineError, match=r"after batch\(\) the rows are fixed") as caught:
        bind(FlatMap(range, ("x",)), XS, batched=True)
    assert "before batch" in caught.value.fix


def fragile(x, rng):
    if x == 5:
        raise ValueError(x)
    return [x + float(rng.random()) for _ in range(x % 4)]


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 60), max_size=4), st.booleans())
def test_against_plain_python(xs, cuts, refill):
    whole = block(x=xs)
    kernel = bind(FlatMap(fragile, ("x",), "y", random=True, dtype=float, on_error=Skip(refill=refill)), whole)
    found = kernel(whole, Env())
    assert values(found, "x") == [x for x in xs if x != 5 for _ in range(x % 4)]
    assert [int(y) for y in values(found, "y")] == values(found, "x")
    assert len(found.dead) == xs.count(5)
    parts = run_in_parts(kernel, whole, cuts)
    assert same(found, parts)
    live = found.live_keys()
    assert len({(int(r), int(s)) for r, s in zip(live.row, np.broadcast_to(live.sub, len(live)), strict=True)}) == len(
        found
    )
