import cloudpickle
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.block import Block
from cedar.core.columns import UNKNOWN
from cedar.core.errors import PipelineError
from cedar.core.skip import Skip
from cedar.operators.base import Env
from cedar.operators.map import Map
from tests.operators.toy_maps import XS
from tests.toy_blocks import bind, block, run, run_in_parts, same, values


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
