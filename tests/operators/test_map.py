import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.block import Block
from cedar.core.columns import OBJECT, UNKNOWN, TensorType
from cedar.core.errors import PipelineError, RowError
from cedar.core.skip import Skip
from cedar.operators.base import Env
from cedar.operators.map import Map
from tests.toy_blocks import SITE, bind, block, run, run_in_parts, same, values

XS = block(x=[1, 2, 3], s=["a", "b", "c"])


def failing(operator, given=XS, **how):
    with pytest.raises(RowError) as caught:
        run(operator, given, **how)
    error = caught.value
    assert error.site == SITE
    assert error.fix
    return error


def test_columns_in_and_out():
    assert values(run(Map(lambda x: x + 1, ("x",)), XS), "x") == [2, 3, 4]
    assert values(run(Map(lambda x, s: s * x, ("x", "s"), "y"), XS), "y") == ["a", "bb", "ccc"]
    several = run(Map(lambda x: (x, -x), ("x",), ("a", "b")), XS)
    assert list(several.columns) == ["x", "s", "a", "b"]
    assert values(several, "b") == [-1, -2, -3]
    assert values(run(Map(lambda row: row["s"] * row["x"], (), "y"), XS), "y") == ["a", "bb", "ccc"]


def test_whole_rows():
    found = run(Map(lambda row: {"q": row["x"] / 2, "s": row["s"]}), XS)
    assert list(found.columns) == ["q", "s"]
    assert values(found, "q") == [0.5, 1.0, 1.5]
    assert run(Map(lambda row: {}), XS).columns == {}
    rows = Block({}, XS.keys)
    assert values(run(Map(lambda row: {"n": len(row)}), rows), "n") == [0, 0, 0]


def test_rows_are_plain_python_values_and_arrays():
    given = block(x=[1], f=[1.5], s=["a"], l=[[1, 2]], d=[{"k": None}], a=np.ones((1, 2), dtype=np.float32))
    seen = []
    run(Map(lambda row: seen.append(row) or {"n": 0}), given)
    row = seen[-1]
    assert {k: v for k, v in row.items() if k != "a"} == {"x": 1, "f": 1.5, "s": "a", "l": [1, 2], "d": {"k": None}}
    assert row["a"].tolist() == [1, 1]
    assert not row["a"].flags.writeable


def test_effects():
    assert Map(abs, ("x",)).effects().writes == frozenset("x")
    wall = Map(dict).effects()
    assert (wall.reads, wall.writes, wall.per_row, wall.rows) == (None, None, True, "1:1")
    assert Map(abs, ("x",), "y", on_error=Skip(refill=True)).effects().rows == "1:0..1"
    assert Map(abs, ("x",)).label() == "map(abs)"


def test_schema():
    known = {"x": pa.int64()}

    def annotated(x: float) -> float:
        return x / 2

    assert Map(annotated, ("x",)).schema(known) == {"x": pa.float64()}
    assert Map(abs, ("x",), "y").schema(known) == {"x": pa.int64(), "y": UNKNOWN}
    assert Map(abs, ("x",), "y", dtype="int8").schema(known) == {"x": pa.int64(), "y": pa.int8()}
    assert Map(dict).schema(known) is Map(abs, ("x",)).schema(None) is None
    with pytest.raises(PipelineError, match="there is no column 'y'; the columns are 'x'"):
        Map(abs, ("y",)).schema(known)


def test_where_types_come_from():
    def annotated(x: float) -> float:
        return x

    def never(block):
        raise AssertionError

    assert run(Map(annotated, ("x",)), XS).types["x"] == pa.float64()
    assert run(Map(annotated, ("x",), dtype="int32"), XS).types["x"] == pa.int32()
    both = run(Map(lambda x: (x, x), ("x",), ("a", "b"), dtype={"b": float}), XS).types
    assert (both["a"], both["b"]) == (pa.int64(), pa.float64())
    assert run(Map(lambda x: (x, x), ("x",), ("a", "b"), dtype=(int, object)), XS).types["b"] == OBJECT
    assert run(Map(lambda x: torch.full((2,), x), ("x",)), XS).types["x"] == TensorType((2,), "int64")
    assert run(Map(lambda row: {"y": row["x"]}, dtype={"y": "float32"}), XS).types == {"y": pa.float32()}
    pair: tuple[str, ...] = ("a", "b")

    def two(x) -> tuple[int, float]:
        return x, x

    assert list(run(Map(two, ("x",), pair), XS).types.values())[2:] == [pa.int64(), pa.float64()]


def test_the_sample_fixes_the_type():
    many = block(x=list(range(100)))
    error = failing(Map(lambda x: x if x < 80 else x / 2, ("x",)), many)
    assert "40.0 (float) does not fit int64, the type fixed by the first rows" in error.what
    assert error.row.row == 80
    assert "dtype=" in error.fix
    assert "dtype=" in failing(Map(lambda x: "a", ("x",), dtype=int)).what
    assert (
        "ndarray int64[80]"
        in failing(Map(lambda x: np.zeros((2, 2), int) if x < 80 else np.zeros(x, int), ("x",)), many).what
    )
    skipped = run(Map(lambda x: x if x < 98 else x / 2, ("x",), on_error=Skip()), many)
    assert sorted(skipped.dead) == [98, 99]
    nulls = run(Map(lambda x: x if x < 80 else None, ("x",)), many)
    assert values(nulls, "x")[78:82] == [78, 79, None, None]


def test_rows_whose_keys_change():
    many = block(x=list(range(100)))
    error = failing(Map(lambda row: {"a": 1} if row["x"] < 70 else {"b": 1}), many)
    assert error.what == "map(<lambda>) returned a row without 'a' and the new column 'b'"
    assert error.row.row == 70
    assert "not a row" in failing(Map(lambda row: row if row["x"] < 70 else 5), many).what
    assert "not a tuple of 2" in failing(Map(lambda x: (x, x) if x < 70 else (x,), ("x",), ("a", "b")), many).what
    kept = run(Map(lambda row: row if row["x"] < 99 else {}, on_error=Skip(refill=True)), many)
    assert (len(kept), kept.slots) == (99, 100)


def test_functions_that_fail():
    fails = lambda x: 1 // (x - 2)
    error = failing(Map(fails, ("x",)))
    assert error.what == "map(<lambda>) failed: ZeroDivisionError: integer division or modulo by zero"
    assert (error.row.row, error.done) == (1, "stopped at this row")
    assert isinstance(error.__cause__, ZeroDivisionError)
    dead = run(Map(fails, ("x",), on_error=Skip()), XS)
    assert values(dead, "x") == [-1, 1]
    assert values(dead, "s") == ["a", "c"]
    assert dead.dead[1].error.startswith("ZeroDivisionError")
    assert (dead.dead[1].operator, dead.slots) == (3, 3)
    refilled = run(Map(fails, ("x",)), XS, on_error=Skip(refill=True))
    assert (refilled.slots, len(refilled), [w.refill for w in refilled.dead.values()]) == (3, 2, [True])
    sampled = run(Map(fails, ("x",)), XS, env=Env(sampling=True))
    assert values(sampled, "x") == [-1, 1]
    assert "map(<lambda>) failed" in failing(Map(lambda x: 1 / 0, ("x",), on_error=Skip())).what


def test_dead_slots_stay():
    once = run(Map(lambda x: 1 // (x - 2), ("x",), on_error=Skip()), XS)
    twice = run(Map(lambda x: 1 // (x - 1), ("x",), on_error=Skip()), once)
    assert sorted(twice.dead) == [1, 2]
    assert len(twice) == 1
    assert run(Map(lambda x: 1 // (x - 1), ("x",)), twice.slice(1, 3), sample=XS.slice(1, 2)).slots == 2


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda x: None, "returned None for each of the first 3 rows"),
        (lambda x: later(x), "returned a coroutine to be awaited"),
        (lambda x: x.nothing, "has no attribute 'nothing'"),
        (lambda x: "a" if x == 2 else x, "1 (int) and 'a' (str) do not fit into one column"),
    ],
)
def test_samples_that_fix_nothing(fn, says):
    with pytest.raises((PipelineError, RowError)) as caught:
        bind(Map(fn, ("x",)), XS)
    assert says in caught.value.what
    assert caught.value.site == SITE


async def later(x):
    return x


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Map(5), "int cannot be called"),  # type: ignore[arg-type]
        (lambda: Map(lambda x: x, ("x", "y")), "cannot be called with 2 arguments"),
        (lambda: Map(lambda x: x, ("x",), random=True), "has no parameter rng"),
        (lambda: Map(abs, ("x",), into=()), "names nothing"),
        (lambda: Map(abs, ("x",), into=""), "names nothing"),
        (lambda: Map(abs, ("x",), into=("a", "a")), "a column twice"),
        (lambda: Map(abs, "x"), "is no column name"),  # type: ignore[arg-type]
        (lambda: Map(abs, (3,)), "3 is no column name"),  # type: ignore[arg-type]
        (lambda: Map(abs, ("x",), dtype="foo"), "no type of column"),
        (lambda: Map(abs, ("x",), ("a", "b"), dtype="int8"), "2 columns are written"),
        (lambda: Map(abs, ("x",), dtype={"y": int}), "names 'y', which is not written"),
        (lambda: Map(dict, dtype=int), "returns whole rows"),
        (lambda: Map(abs, ("x",), timeout=0), "no time to wait"),
        (lambda: Map(abs, ("x",), on_error="skip"), "is no policy"),  # type: ignore[arg-type]
        (lambda: Map(torch.nn.Linear, ("x",)), "the class needs arguments"),
    ],
)
def test_what_is_refused_at_the_users_line(build, says):
    with pytest.raises(PipelineError) as caught:
        build()
    assert says in caught.value.what
    assert caught.value.site.file == __file__
    assert caught.value.fix


def test_a_misspelt_column():
    with pytest.raises(PipelineError, match="no column 'xx'") as caught:
        bind(Map(abs, ("xx",)), XS)
    assert caught.value.fix == "did you mean 'x'?"


def test_a_sample_without_rows():
    nothing = XS.slice(0, 0)
    assert len(run(Map(abs, ("x",)), nothing)) == 0
    assert "a sample that had no rows" in failing(Map(abs, ("x",)), sample=nothing).what
    assert values(run(Map(abs, ("x",), dtype=int), XS, sample=nothing), "x") == [1, 2, 3]


def noisy(x, rng):
    if x % 7 == 3:
        raise ValueError(x)
    return float(rng.random()) + x


@given(st.lists(st.integers(0, 50), min_size=1), st.lists(st.integers(0, 60), max_size=4), st.booleans())
def test_the_size_of_a_block_never_shows(xs, cuts, refill):
    whole = block(x=xs)
    kernel = bind(Map(noisy, ("x",), random=True, dtype=float, on_error=Skip(refill=refill)), whole)
    found = kernel(whole, Env())
    assert same(found, run_in_parts(kernel, whole, cuts))
    good = [x for x in xs if x % 7 != 3]
    assert [int(v) for v in values(found, "x")] == good
    assert found.slots == len(xs)


def test_kernels_are_pickled_without_the_sample():
    kernel = bind(Map(lambda x: x + 1, ("x",)), block(x=list(range(64)), blob=[b"x" * 10_000] * 64))
    text = cloudpickle.dumps(kernel)
    assert len(text) < 20_000
    assert values(cloudpickle.loads(text)(XS, Env()), "x") == [2, 3, 4]
