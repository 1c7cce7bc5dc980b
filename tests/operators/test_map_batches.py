from collections import UserDict

import cloudpickle
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cedar.core.columns import UNKNOWN
from cedar.core.errors import PipelineError, RowError, Skip
from cedar.core.jagged import JaggedTensor
from cedar.operators.base import Env
from cedar.operators.map_batches import MapBatches
from tests.toy_blocks import SITE, bind, block, run, values

XS = block(x=[1, 2, 3, 4], f=[1.5, float("nan"), None, 0.0], s=["a", "b", "c", "d"], l=[[1], [], [2, 3], [4]])
DOUBLE = {
    "arrow": lambda table: pa.table({"x": pc.multiply(table["x"], 2)}),
    "polars": lambda frame: frame.with_columns(pl.col("x") * 2),
    "numpy": lambda arrays: {"x": arrays["x"] * 2},
    "torch": lambda tensors: {"x": tensors["x"] * 2},
}


@pytest.mark.parametrize("format", list(DOUBLE))
@pytest.mark.parametrize("size", [None, 3])
def test_formats(format, size):
    found = run(MapBatches(DOUBLE[format], ("x",), format=format, size=size), XS)
    assert values(found, "x") == [2, 4, 6, 8]
    assert list(found.columns) == list(XS.columns)
    assert found.types == XS.types
    assert found.keys is XS.keys


def test_columns_may_be_of_any_mapping():
    found = run(MapBatches(lambda arrays: UserDict(n=[len(s) for s in arrays["s"]]), ("s",), "n", format="numpy"), XS)
    assert values(found, "n") == [1, 1, 1, 1]


@pytest.mark.parametrize("format", ["arrow", "polars"])
def test_all_columns_pass_as_they_were(format):
    found = run(MapBatches(lambda given: given, format=format), XS)
    assert found.types == XS.types
    assert all(repr(values(found, name)) == repr(values(XS, name)) for name in XS.columns)


def test_lists_are_jagged():
    found = run(MapBatches(lambda t: {"n": t["l"].lengths(), "l": t["l"]}, ("l",), ("n", "l"), format="torch"), XS)
    assert values(found, "n") == [1, 0, 2, 1]
    assert values(found, "l") == values(XS, "l")
    more = run(MapBatches(lambda t: {"l": JaggedTensor(t["l"].values * 2, t["l"].offsets)}, ("l",), format="numpy"), XS)
    assert values(more, "l") == [[2], [], [4, 6], [8]]


def test_into_and_whole_blocks():
    made = run(MapBatches(lambda t: {"y": t["x"], "z": t["x"]}, ("x",), ("y", "z"), format="numpy"), XS)
    assert list(made.columns) == ["x", "f", "s", "l", "y", "z"]
    whole = run(MapBatches(lambda t: {"y": t["x"]}, format="numpy"), block(x=[1, 2]))
    assert list(whole.columns) == ["y"]


def test_what_it_gets_cannot_be_written_to():
    def in_place(tensors):
        tensors["x"].mul_(2)
        return tensors

    given = block(x=[1, 2])
    assert values(run(MapBatches(in_place, ("x",), format="torch"), given), "x") == [2, 4]
    assert values(given, "x") == [1, 2]


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        (MapBatches(lambda t: t[:1], ("x",)), "got 4 rows and returned 1"),
        (MapBatches(lambda t: None, ("x",)), "returned None, not a pyarrow.Table"),
        (MapBatches(lambda t: {"x": 1}, ("x",)), "returned {'x': 1} (dict), not a pyarrow.Table"),
        (MapBatches(lambda t: t, ("x",), format="numpy", into="y"), "returned no column 'y'"),
        (MapBatches(lambda t: t | {"y": t["x"]}, ("x",), format="numpy"), "returned an extra column 'y'"),
        (MapBatches(lambda t: pa.table([t["x"], t["x"]], names=["x", "x"]), ("x",)), "the column 'x' twice"),
        (MapBatches(lambda t: {"x": 5}, ("x",), format="torch"), "returned 5 (int) for column 'x', not an array"),
        (MapBatches(lambda t: t.nothing, ("x",)), "failed: AttributeError"),
        (MapBatches(lambda t: t, ("xx",)), "no column 'xx'"),
    ],
)
def test_results_that_are_refused(operator, says):
    with pytest.raises((PipelineError, RowError)) as caught:
        bind(operator, XS)
    assert says in caught.value.what
    assert caught.value.site == SITE
    assert caught.value.fix


def three_fails(arrays):
    if (arrays["x"] == 3).any():
        raise ValueError("three")
    return arrays


def test_types_that_polars_lacks_are_refused_at_the_users_line():
    operator = MapBatches(lambda frame: frame, format="polars")
    with pytest.raises(PipelineError, match=r"map_batches.*: column 'd' of decimal256.*: polars has no") as caught:
        run(operator, block(d=pa.nulls(1, pa.decimal256(50, 2))))
    assert caught.value.site == SITE


def test_a_failing_row_is_found():
    with pytest.raises(RowError, match=r"map_batches\(three_fails\) failed: ValueError: three") as caught:
        run(MapBatches(three_fails, ("x",), format="numpy"), XS)
    assert caught.value.row.row == 2
    assert isinstance(caught.value.__cause__, ValueError)
    found = run(MapBatches(three_fails, ("x",), format="numpy", on_error=Skip()), XS)
    assert values(found, "s") == ["a", "b", "d"]
    assert list(found.dead) == [2]
    refilled = run(MapBatches(three_fails, ("x",), format="numpy", on_error=Skip(refill=True)), XS)
    assert refilled.live_keys().row.tolist() == [0, 1, 3]


def test_with_a_size_the_group_fails_as_a_whole():
    operator = MapBatches(three_fails, ("x",), format="numpy", size=2, on_error=Skip())
    found = run(operator, XS.slice(2, 4), sample=XS)
    assert (len(found), sorted(found.dead)) == (0, [0, 1])
    with pytest.raises(RowError, match="three") as caught:
        run(MapBatches(three_fails, ("x",), format="numpy", size=2), XS.slice(2, 4), sample=XS)
    assert "rows starting at 2" in str(caught.value)


def test_a_block_that_fails_only_as_a_whole():
    def wants_few(arrays):
        assert len(arrays["x"]) < 5
        return arrays

    many = block(x=list(range(8)))
    with pytest.raises(RowError, match="AssertionError"):
        run(MapBatches(wants_few, ("x",), format="numpy"), many, sample=XS)


def test_types_are_fixed_by_the_sample():
    fn = lambda t: {"x": t["x"] / (1 if t["x"][0] < 3 else np.float32(2))} if t["x"][0] < 3 else {"x": t["x"]}
    with pytest.raises(RowError, match="returned int64 for column 'x', whose type was fixed as float64"):
        run(MapBatches(fn, ("x",), format="numpy", size=2), XS.slice(2, 4), sample=XS.slice(0, 2))


def test_schema_effects_and_parameters():
    operator = MapBatches(three_fails, ("x",), ("y",), size=8)
    assert operator.schema({"x": pa.int64()}) == {"x": pa.int64(), "y": UNKNOWN}
    assert operator.effects().reads == frozenset("x")
    assert operator.effects().writes == frozenset("y")
    assert operator.parameters() == {"size": 8}
    assert MapBatches(three_fails).schema({"x": pa.int64()}) is None
    assert MapBatches(three_fails).effects().writes is None


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: MapBatches(3), "int cannot be called"),  # type: ignore[arg-type]
        (lambda: MapBatches(abs, format="pandas"), "unknown format 'pandas'"),  # type: ignore[arg-type]
        (lambda: MapBatches(abs, size=0), "size=0"),
        (lambda: MapBatches(abs, into="y"), "into= without columns"),
        (lambda: MapBatches(abs, ("x",), into=()), "names no column"),
        (lambda: MapBatches(lambda: 0, ("x",)), "cannot be called with one argument"),
    ],
)
def test_what_is_refused_at_the_users_line(build, says):
    with pytest.raises(PipelineError) as caught:
        build()
    assert says in caught.value.what
    assert caught.value.site.file == __file__


def test_classes_are_made_once():
    class Model:
        made = 0

        def __init__(self):
            Model.made += 1

        def __call__(self, arrays):
            return arrays

    kernel = bind(MapBatches(Model, ("x",), format="numpy"), XS)
    env, before = Env(), Model.made
    for _ in range(3):
        assert values(kernel(XS, env), "x") == [1, 2, 3, 4]
    assert Model.made == before + 1


def test_kernels_are_pickled_without_the_sample():
    big = block(x=list(range(64)), blob=[b"x" * 10_000] * 64)
    text = cloudpickle.dumps(bind(MapBatches(DOUBLE["numpy"], ("x",), format="numpy"), big))
    assert len(text) < 20_000
    assert values(cloudpickle.loads(text)(XS, Env()), "x") == [2, 4, 6, 8]
