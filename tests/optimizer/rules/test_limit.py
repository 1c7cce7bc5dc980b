"""limit: plans before and after."""

import pyarrow as pa
import pytest

import cedar
from cedar import Skip, col
from cedar.datasets.base import Split
from cedar.optimizer.rules import limit
from tests.optimizer.plan_lines import after, decided, line, table


def f(x):
    return x


LIMITED = [
    (lambda p: p.map(f, "a").take(2), "read -> take(2) -> map(f)"),
    (lambda p: p.filter(col("a") > 1).map(dict).drop("b").take(2),
     "read -> filter(a > 1) -> take(2) -> map(dict) -> drop(b)"),
    (lambda p: p.batch(2).map(f, "a").take(2), "read -> batch -> take(2) -> map(f)"),
    (lambda p: p.map(f, "a", random=False).shuffle().map(f, "a").take(2),
     "read -> map(f) -> shuffle -> take(2) -> map(f)"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), LIMITED, ids=[e for _, e in LIMITED])
def test_take_goes_down(make, expected):
    assert after(make(table("a", "b")), limit) == expected


KEPT = [
    (lambda p: p.filter(col("a") > 1).take(2), "changes the number of rows"),
    (lambda p: p.flat_map(range, "a").take(2), "changes the number of rows"),
    (lambda p: p.map(f, "a", on_error=Skip()).take(2), "may skip rows"),
    (lambda p: cedar.zip((q := p.map(f, "a")).take(2), q.rename({"a": "c", "b": "d"})), "others draw from"),
    (lambda p: p.cache("memory").take(2), None),
    (lambda p: p.take(3).take(2), "states hold how far each of the two is"),
    (lambda p: p.map_batches(dict, "a", size=2).take(2), None),
    (lambda p: p.shuffle().take(2), None),
]


@pytest.mark.parametrize(("make", "why"), KEPT)
def test_why_take_stays(make, why):
    def skips(node):
        return getattr(node.logical.operator, "on_error", None) is not None

    p = make(table("a", "b"))
    assert after(p, limit, skips=skips) == line(p.node)
    assert [why in d for d in decided(p, limit, skips=skips)] == ([True] if why else [])


class Counted:
    """A hundred splits of ten rows; counts those that are read."""

    def __init__(self):
        self.read_splits = []

    def splits(self):
        return [Split(start=10 * i, stop=10 * (i + 1), rows=10, bytes=80, part=i) for i in range(100)]

    def schema(self):
        return {"a": pa.int64()}

    def read(self, split):
        self.read_splits.append(split.part)
        yield pa.table({"a": range(split.start, split.stop)})


SPLITS = [
    (lambda p: p.take(15), 2),
    (lambda p: p.take(20).batch(4), 2),
    (lambda p: p.with_columns(b=col("a") + 1).take(15), 2),
    (lambda p: p.batch(4).take(5), 2),
    (lambda p: p.skip(12).take(15), 2),
    (lambda p: p.take(25).take(5), 1),
]


@pytest.mark.parametrize(("make", "expected"), SPLITS)
@pytest.mark.parametrize("plan", ["off", "auto"])
def test_splits_that_take_leaves_out_are_not_read(make, expected, plan):
    source = Counted()
    with make(cedar.from_source(source)).loader(workers=8, executor="threads", plan=plan, format="arrow") as loader:
        rows = [row["a"] for batch in loader for row in (batch.to_pylist() if hasattr(batch, "to_pylist") else [batch])]
    assert rows == sorted(rows)
    assert len(set(source.read_splits)) == expected


def test_a_resumed_take_reads_on_from_its_place():
    source = Counted()
    p = cedar.from_source(source).take(35).batch(4, last="keep")
    with p.loader(workers=2, executor="threads", plan="off", format="arrow") as loader:
        rest = iter(loader)
        before = [next(rest) for _ in range(4)]
        state = loader.state_dict()
    with p.loader(workers=2, executor="threads", plan="auto", format="arrow") as loader:
        loader.load_state_dict(state)
        rows = [row["a"] for batch in [*before, *loader] for row in batch.to_pylist()]
    assert rows == list(range(35))
    assert max(source.read_splits) == 3
