"""Names and keywords of other libraries work, or are answered with what to write."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from typing import Any, cast

import pytest

import cedar
from cedar import col
from cedar.core.foreign import CALLS, FUNCTIONS, KEYWORDS, LOADER, METHODS, with_suggestions
from cedar.operators import recsys

P: Any = cedar.from_items([{"x": i, "y": i % 2} for i in range(4)])


@pytest.mark.parametrize(
    "name",
    """collect prefetch iter_torch_batches train_test_split rename_columns sum mean min max std agg aggregate
    value_counts null_count compute map_partitions map_groups pipe lazy unnest shift diff rolling fill_nan concat
    n_unique nunique num_rows with_epoch unbatch""".split(),
)
def test_a_foreign_method_is_answered(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'Pipeline' object has no attribute '{name}': here that is "):
        getattr(P, name)
    assert not hasattr(P, name)
    assert getattr(P, name, None) is None


@pytest.mark.parametrize(
    ("name", "says"), [("shufle", "did you mean shuffle?"), ("mapp", "did you mean map"), ("qqq", "help(...)")]
)
def test_another_method_is_answered_with_the_nearest(name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(says)):
        getattr(P, name)


@pytest.mark.parametrize(
    ("name", "says"), [("dataset", "here that is the"), ("get_state", "state_dict"), ("reprot", "mean report?")]
)
def test_an_attribute_of_other_loaders_is_answered(name: str, says: str) -> None:
    with P.loader() as loader:
        with pytest.raises(AttributeError, match=re.escape(says)):
            getattr(loader, name)
        assert not hasattr(loader, name)
        with pytest.raises(AttributeError, match="^__array__$"):
            _ = loader.__array__


def test_pipelines_are_copied_and_pickled_as_before() -> None:
    for other in (copy.copy(P), copy.deepcopy(P), pickle.loads(pickle.dumps(P))):
        assert other.count() == 4
    with pytest.raises(AttributeError, match="^__array__$"):
        _ = P.__array__
    assert "map" in dir(P)
    assert inspect.signature(P.batch).parameters["size"].annotation == "int"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("read_json", "read_jsonl"),
        ("lit", "polars.lit"),
        ("from_item", "did you"),
        ("read_sql", re.escape("from_polars(polars.read_database(...))")),
        ("read_excel", "polars.read_excel"),
        ("scan_csv", "read_csv"),
        ("scan_ndjson", "read_jsonl"),
        ("scan_delta", "read_delta"),
    ],
)
def test_a_foreign_function_is_answered(name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'cedar' has no attribute '{name}': .*{says}"):
        getattr(cedar, name)


def test_the_package_shows_its_public_names_once() -> None:
    names = dir(cedar)
    assert len(names) == len(set(names))
    assert set(cedar.__all__) == {name for name in names if name[:2] != "__"}
    assert cedar.testing.assert_resumable


@pytest.mark.parametrize(
    "table",
    [METHODS, FUNCTIONS, KEYWORDS, CALLS, LOADER],
    ids=["methods", "functions", "keywords", "calls", "loader"],
)
def test_answers_name_what_exists(table: dict[str, str]) -> None:
    for name, answer in table.items():
        for method in re.findall(r"\bp\.(\w+)", answer):
            assert hasattr(P, method), (name, answer)
        for function in re.findall(r"\bcedar\.(\w+)(?=\(| |,|$)", answer):
            assert hasattr(cedar, function), (name, answer)
        for method in re.findall(r"\bloader\.(\w+)", answer):
            assert hasattr(cedar.Loader, method), (name, answer)
    for name in table if table is not KEYWORDS and table is not CALLS else ():
        owner = P if table is METHODS else cedar.Loader if table is LOADER else cedar
        assert not hasattr(owner, name), f"{name} is not a foreign name any more"


CALLS_OF_OTHERS: dict[str, tuple[Any, str]] = {
    "batch(batch_size=4)": (lambda: P.batch(batch_size=4), "here that is batch(n)"),
    "batch(4, drop_last=True)": (lambda: P.batch(4, drop_last=True), 'last="drop"'),
    "batch(4, True)": (lambda: P.batch(4, True), "write batch(size, *, last=None"),
    "batch()": (lambda: P.batch(), "write batch(size, *"),
    "shuffle(1000)": (lambda: P.shuffle(1000), "shuffle(window=1000)"),
    "shuffle(buffer_size=9)": (lambda: P.shuffle(buffer_size=9), "window=n"),
    "map(num_parallel_calls=2)": (lambda: P.map(abs, "x", num_parallel_calls=2), "loader(workers=n)"),
    "map(batched=True)": (lambda: P.map(abs, batched=True), "map_batches(fn, size=n)"),
    "map(dtyp=int)": (lambda: P.map(abs, "x", dtyp=int), "did you mean dtype=?"),
    "map_batches(batch_size=2)": (lambda: P.map_batches(abs, batch_size=2), "size=n"),
    "loader(num_workers=0)": (lambda: P.loader(num_workers=0), 'executor="inline" runs everything'),
    "map(num_workers=2)": (lambda: P.map(abs, "x", num_workers=2), "loader(workers=n)"),
    "loader(32)": (lambda: P.loader(32), "given by name"),
    "read_csv(sep)": (lambda: cast("Any", cedar.read_csv)("x.csv", sep=";"), "delimiter="),
    "filter(x=1)": (lambda: P.filter(x=1), "filter(col('x') == 1"),
    "map(columns=)": (lambda: P.map(abs, columns="x"), "write map(fn, *columns, into=None"),
    "map(input_columns=)": (lambda: P.map(abs, "x", input_columns="x"), "write map(fn, *columns, into=None"),
    "rename('x', 'y')": (lambda: P.rename("x", "y"), "rename({'old': 'new'})"),
    "write(mode=)": (lambda: P.write("out", mode="append"), "write('out/2024-02')"),
    "write(compression=)": (lambda: P.write("out", compression="zstd"), "by name: format, partition_by, rows_per_file"),
    "read_csv(names=)": (lambda: cast("Any", cedar.read_csv)("x.csv", names=["a"]), "column_names="),
    "read_csv(new_columns=)": (lambda: cast("Any", cedar.read_csv)("x.csv", new_columns=["a"]), "column_names="),
    "read_csv(has_header=)": (lambda: cast("Any", cedar.read_csv)("x.csv", has_header=False), "header=?"),
    "read_csv(parse_dates=)": (lambda: cast("Any", cedar.read_csv)("x.csv", parse_dates=["a"]), "datetime.date"),
    "p['x']": (lambda: P["x"], "p.select('x', 'y')"),
    "'x' in p": (lambda: "x" in P, "'x' in p.schema"),
    "sample(5)": (lambda: P.sample(5), "sample(n=5)"),
    "with_columns({})": (lambda: P.with_columns({"z": col("x")}), "y=..."),
    "p[0]": (lambda: P[0], "next(iter(p))"),
    "loader.update_mix(weight=)": (lambda: P.loader().update_mix(weight={}), "did you mean weights=?"),
    "loader.reshard(rank)": (lambda: P.loader().reshard(0), "write reshard(rank, world)"),
    "Skip(rate=)": (lambda: cast("Any", cedar.Skip)(rate=0.1), "did you mean max_rate=?"),
    "Skip(1, ..., 7)": (lambda: cast("Any", cedar.Skip)(*range(7)), "write Skip(max_rate=None, max_count=None"),
    "Budget(mem=)": (lambda: cast("Any", cedar.Budget)(mem="1GiB"), "did you mean memory=?"),
    "Service(worker=)": (lambda: cast("Any", cedar.Service)(worker=1), "did you mean workers=?"),
    "Quantiles(bin=)": (lambda: cast("Any", cedar.preprocessing.Quantiles)("x", bin=3), "did you mean bins=?"),
    "Clamp()": (lambda: cast("Any", recsys.Clamp)(), "write Clamp(low, high)"),
    "map(remove_columns=)": (lambda: P.map(abs, "x", remove_columns=["y"]), "drop('x')"),
    "mix(probabilities=)": (lambda: cast("Any", cedar.mix)([P], probabilities=[1]), "mix([(a, 0.7), (b, 0.3)])"),
    "mix(stopping_strategy=)": (lambda: cast("Any", cedar.mix)([P], stopping_strategy="x"), 'stop="first" or "all"'),
    "loader(handler=)": (lambda: P.loader(handler=print), "cedar.Skip(max_rate=0.01)"),
    "loader(snapshot_every_n_steps=)": (lambda: P.loader(snapshot_every_n_steps=1), "state_dict() is cheap"),
    "split(train=)": (lambda: P.split(train=0.9, val=0.1), "split({'train': 0.9, 'val': 0.1})"),
    "p['x'] = 1": (lambda: P.__setitem__("x", 1), "p = p.with_columns("),
}


@pytest.mark.parametrize("call", CALLS_OF_OTHERS)
def test_a_foreign_call_is_answered_at_the_users_line(call: str) -> None:
    ask, says = CALLS_OF_OTHERS[call]
    with pytest.raises(cedar.PipelineError) as caught:
        ask()
    assert says in (caught.value.fix or "")
    assert isinstance(caught.value, TypeError) or call in ("sample(5)", "with_columns({})")
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_public_classes_keep_their_signatures_and_are_wrapped_once() -> None:
    assert list(inspect.signature(cedar.Skip).parameters)[:2] == ["max_rate", "max_count"]
    once = vars(cedar.Skip)["__init__"]
    assert vars(with_suggestions(cedar.Skip))["__init__"] is once
    assert pickle.loads(pickle.dumps(cedar.Skip(max_count=3))) == cedar.Skip(max_count=3)


def test_a_type_error_from_inside_is_not_taken_for_a_wrong_call() -> None:
    def strange() -> None:
        raise TypeError("strange() got an unexpected keyword argument 'x'")

    with pytest.raises(TypeError, match=r"^strange\(\)") as caught:
        with_suggestions(strange)()
    assert not isinstance(caught.value, cedar.CedarError)


def test_an_error_of_two_types_travels() -> None:
    with pytest.raises(TypeError) as caught:
        len(P)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is cedar.PipelineError
    assert str(again) == str(caught.value)


def test_conventions_of_polars_and_torch_work() -> None:
    two = P.filter(col("x") > 0, [col("y") == 1])
    assert [row["x"] for row in two] == [1, 3]
    assert next(iter(P.with_columns([(col("x") + 1).alias("z")], w=col("x")))) == {"x": 0, "y": 0, "z": 1, "w": 0}
    assert list(P.drop(["x"]).schema) == list(P.drop("x").schema) == ["y"]
    assert list(P.rename(x="a").schema) == list(P.rename({"x": "a"}).schema) == ["a", "y"]
    assert list(P.rename({"x": "a"}, y="b").schema) == ["a", "b"]
    assert [row["x"] for row in P + P] == [row["x"] for row in cedar.concat([P, P])] == [0, 1, 2, 3] * 2
    assert list(cedar.zip([P.select("x"), P.select("y")])) == list(P)


@pytest.mark.parametrize(
    "call",
    [
        lambda p, k: p.join(p, on=k),
        lambda p, k: p.join_asof(p, on=k),
        lambda p, k: p.join_asof(p, on="k", by=k),
        lambda p, k: p.unique(k),
        lambda p, k: p.split({"a": 1.0}, by=k),
        lambda p, k: p.shuffle(by=k),
        lambda p, k: p.balance_classes(k),
        lambda p, k: p.bucket_by_length(k, [1], [1, 1]),
        lambda p, k: p.drop(k),
        lambda p, k: p.pad(k),
    ],
)
def test_an_expression_in_place_of_a_name_is_refused_at_the_users_line(call: Any) -> None:
    with pytest.raises(cedar.PipelineError, match="name") as caught:
        call(cedar.from_items([{"k": 1}]), col("k"))
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
