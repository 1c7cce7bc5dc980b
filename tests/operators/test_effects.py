"""Effects: every operator says exactly what it reads and writes."""

import importlib
import inspect
import pkgutil

import polars.selectors as cs
import pytest

import cedar.operators
from cedar import Skip, col
from cedar.datasets.base import Read
from cedar.datasets.items import IterableSource
from cedar.operators.balance import Balance
from cedar.operators.base import Effects, Operator
from cedar.operators.batch import Batch
from cedar.operators.bucket import BucketByLength
from cedar.operators.cache import Cache
from cedar.operators.concat import Concat
from cedar.operators.dedup import Dedup
from cedar.operators.explode import Explode
from cedar.operators.expressions import Drop, FilterExpression, rename, select, with_columns
from cedar.operators.flat_map import FlatMap
from cedar.operators.join import Join, JoinKeys
from cedar.operators.map import Collate, FilterFunction, Map
from cedar.operators.map_batches import MapBatches
from cedar.operators.mix import Mix
from cedar.operators.pack import Pack
from cedar.operators.pad import Pad
from cedar.operators.recsys import FirstX, NGram, Sampling
from cedar.operators.sample import Sample
from cedar.operators.shuffle import Shuffle
from cedar.operators.split_rows import SplitPart, SplitRule
from cedar.operators.surveys import StoredTable, known
from cedar.operators.take import Repeat, SkipRows, Take
from cedar.operators.unique import Repeats, Unique
from cedar.operators.zip import Zip
from cedar.pipeline.rows import RowMethods  # noqa: F401 - every operator module is imported with it
from cedar.plan.graph import Node


def names(text):
    return None if text is None else frozenset(text.split())


def effects(reads, writes, rows="1:1", keeps=None, **more):
    return Effects(names(reads), names(writes), rows=rows, survivors=names(keeps), **more)


EMPTY = StoredTable("")


def two(a, b):
    return a


def drawn(a, rng):
    return a


CASES = [
    (Map(abs, ("a",)), effects("a", "a", per_row=True)),
    (Map(two, ("a", "b"), "c"), effects("a b", "c", per_row=True)),
    (Map(two, ("a", "b"), ("c", "d")), effects("a b", "c d", per_row=True)),
    (Map(drawn, ("a",), random=True), effects("a", "a", per_row=True, random=True)),
    (Map(dict), effects(None, None, per_row=True)),
    (Collate(list), effects(None, None, per_row=True)),
    (Map(abs, ("a",), on_error=Skip(refill=True)), effects("a", "a", "1:0..1", per_row=True)),
    (FlatMap(range, ("a",), "b"), effects("a", "b", "1:n", per_row=True)),
    (Explode("a", "b"), effects("a b", "a b", "1:n")),
    (Explode("a", fields=True), effects("a", None, "1:n")),
    (FlatMap(dict), effects(None, None, "1:n", per_row=True)),
    (FilterFunction(bool, ("a",)), effects("a", "", "1:0..1", per_row=True)),
    (FilterFunction(bool), effects(None, "", "1:0..1", per_row=True)),
    (FilterExpression(col("a") > col("b")), effects("a b", "", "1:0..1")),
    (FilterExpression(cs.numeric().is_not_null()), effects(None, "", "1:0..1")),
    (with_columns(col("a") + col("b"), c=col("d")), effects("a b d", "a c")),
    (with_columns(cs.numeric() + 1), effects(None, None)),
    (select("a", b=col("c")), effects("a c", "b", keeps="a")),
    (select("a", "b"), effects("a b", "", keeps="a b")),
    (select(cs.numeric()), effects(None, None, keeps="")),
    (Drop(("a",)), effects("", "a")),
    (rename({"a": "b"}), effects("a", "a b")),
    (MapBatches(dict, ("a",)), effects("a", "a")),
    (MapBatches(dict, ("a",), "b"), effects("a", "b")),
    (MapBatches(dict), effects(None, None)),
    (Pad(("a",), 3), effects("a", "a")),
    (Pad(to=3), effects(None, None)),
    (Cache("memory"), effects("", "")),
    (Sampling(0.5), effects("", "", "1:0..1", random=True)),
    (Sampling(0.5, by="a", keep="b"), effects("a b", "", "1:0..1", random=True)),
    (Map(FirstX(2), ("a",)), effects("a", "a", algebra="length", waits=False)),
    (Map(NGram(2), ("a", "b"), "c"), effects("a b", "c", waits=False)),
    (SplitPart("x", 0, SplitRule((9,), "a", 0), known({})), effects("a", "", "1:0..1")),
    (SplitPart("x", 0, SplitRule((9,), None, 0), known({})), effects("", "", "1:0..1")),
    (Unique(("a",), "first", known(Repeats(0, EMPTY))), effects("", "", "1:0..1")),
    (Join(JoinKeys(("a",), ("k",)), "left", (), (("p", "q"),), False, "", "", known(EMPTY)), effects("a", "q")),
    (Join(JoinKeys(("a",), ("k",)), "semi", (), (), False, "", "", known(EMPTY)), effects("a", "", "1:0..1")),
    (Join(JoinKeys(("a",), ("k",)), "inner", (), (("p", "p"),), True, "", "", known(EMPTY)), effects("a", "p", "1:n")),
    (Join(JoinKeys(("a",), ("a",), "t"), "left", (), (("p", "p"),), False, "", "", known(EMPTY)), effects("a t", "p")),
    (Dedup((("a", "b"),), "c"), effects("", "")),
    (Dedup(), effects("", "")),
    (Shuffle(), effects("", "", "stream")),
    (Shuffle(by="a"), effects("a", "", "stream")),
    (Batch(2), effects("", "", "stream")),
    (Batch(2, "pad"), effects("", "valid", "stream")),
    (BucketByLength("a", (1,), (1, 1)), effects("a", "", "stream")),
    (Balance("a"), effects("a", "", "stream")),
    (Balance(col("a") * col("b")), effects("a b", "", "stream")),
    (Balance(bool), effects(None, "", "stream")),
    (Pack(4), effects(None, None, "stream")),
    (Pack(4, ("a", "b")), effects("a b", "a b segment_ids positions", "stream", keeps="")),
    (Sample(), effects("", "", "stream", random=True)),
    (Sample("a"), effects("a", "", "stream", random=True)),
    (Sample(col("a") * col("b")), effects("a b", "", "stream", random=True)),
    (Take(1), effects("", "", "stream")),
    (SkipRows(1), effects("", "", "stream")),
    (Repeat(2), effects("", "", "stream")),
    (Concat(), effects("", "", "stream")),
    (Mix((1, 2)), effects("", "", "stream")),
    (Zip(), effects("", "", "stream")),
]


@pytest.mark.parametrize(("operator", "expected"), CASES, ids=lambda case: getattr(case, "label", str)())
def test_what_an_operator_reads_and_writes(operator, expected):
    assert operator.effects() == expected


def test_results_that_depend_on_row_keys():
    source = Node(Read(IterableSource(list)))
    above_rows = [operator for operator, _ in CASES if operator.inputs == 1 and not isinstance(operator, Balance)]
    nodes = [Node(operator, (source,)) for operator in above_rows]  # balance is refused: it needs batches
    assert [node.operator.label() for node in nodes if node.by_keys] == ["split('x')", "unique(a)"]


def test_every_operator_of_the_package_is_tested_here():
    for module in pkgutil.iter_modules(cedar.operators.__path__):
        importlib.import_module(f"cedar.operators.{module.name}")
    known, waiting = set(), [Operator]
    while waiting:
        waiting += (found := waiting.pop().__subclasses__())
        known |= {kind for kind in found if kind.__module__.startswith("cedar.operators")}
    concrete = {kind for kind in known if not inspect.isabstract(kind)}
    assert concrete == {type(operator) for operator, _ in CASES}


def test_a_source_reads_no_column_and_may_write_any():
    assert Read(IterableSource(list)).effects() == effects("", None)
