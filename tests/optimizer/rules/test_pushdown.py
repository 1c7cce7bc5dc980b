"""Rules that drop rows earlier: plans before and after."""

import pyarrow as pa
import pytest

import cedar
from cedar import Skip, col
from cedar.datasets.base import Split
from cedar.operators.base import RowOperator
from cedar.operators.sample import Sample
from cedar.optimizer.rules import limit, push_filter, scan_filter
from cedar.plan import graph
from cedar.plan.graph import Scan
from cedar.plan.steps.order import may_swap
from tests.optimizer.plan_lines import after, decided, line, measured, rewritten, table


def f(x):
    return x


def g(x):
    return x > 1


def both(x, y):
    return x


PUSHED = [
    (lambda p: p.map(f, "x").filter(col("y") > 3), "read -> filter(y > 3) -> map(f)"),
    (lambda p: p.map(f, "x").map(f, "x", into="z").filter(col("y") > 3), "read -> filter(y > 3) -> map(f) -> map(f)"),
    (
        lambda p: p.map(f, "x").flat_map(range, "x", into="i").filter(col("y") > 3),
        "read -> filter(y > 3) -> map(f) -> flat_map(range)",
    ),
    (
        lambda p: p.with_columns(z=col("x") + 1).select("y", "z").filter(col("y") > 3),
        "read -> filter(y > 3) -> with_columns(z) -> select(y, z)",
    ),
    (lambda p: p.rename({"x": "z"}).filter(col("y") > 3), "read -> filter(y > 3) -> rename(x -> z)"),
    (lambda p: p.drop("x").filter(col("y") > 3), "read -> filter(y > 3) -> drop(x)"),
    (lambda p: p.shuffle().filter(col("y") > 3), "read -> filter(y > 3) -> shuffle"),
    (lambda p: p.shuffle(by="x").filter(col("y") > 3), "read -> filter(y > 3) -> shuffle"),
    (lambda p: p.map(f, "x").shuffle().map(f, "x").filter(col("y") > 3).batch(2),
     "read -> filter(y > 3) -> map(f) -> shuffle -> map(f) -> batch"),
    (lambda p: p.filter(col("x") > 1).map(f, "x").filter(col("y") > 3),
     "read -> filter(x > 1) -> filter(y > 3) -> map(f)"),
    (lambda p: p.map(f, "x").filter(col("x") > 1).filter(col("y") > 3),
     "read -> filter(y > 3) -> map(f) -> filter(x > 1)"),
    (lambda p: p.map(f, "x", random=False).filter(g, "y").filter(col("y") > 3),
     "read -> filter(y > 3) -> map(f) -> filter(g)"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), PUSHED, ids=[e for _, e in PUSHED])
def test_a_filter_goes_down(make, expected):
    assert after(make(table("x", "y")), push_filter) == expected


def test_a_filter_goes_into_every_input_of_a_concat():
    p = cedar.concat(table("x", "y").map(f, "x"), table("y", "x")).shuffle().filter(col("y") > 3)
    assert after(p, push_filter) == ("concat(read -> filter(y > 3) -> map(f), read -> filter(y > 3)) -> shuffle")
    assert decided(p, push_filter)[0].endswith(
        "below shuffle(seed=0, window='256MiB'), into every input of concat, below map(f)"
    )


REFUSED = [
    (lambda p: p.map(f, "x").filter(col("x") > 3), "map(f) writes 'x', which filter"),
    (lambda p: p.map(dict).filter(col("x") > 3), "map(dict) may write any column"),
    (lambda p: p.take(3).filter(col("x") > 3), "take(3) counts rows"),
    (lambda p: p.skip(3).filter(col("x") > 3), "skip(3) counts rows"),
    (lambda p: p.repeat(3).filter(col("x") > 3), "repeat(3) counts rows"),
    (lambda p: p.apply(Sample(n=3)).filter(col("x") > 3), "sample(n=3) counts rows"),
    (lambda p: cedar.mix([(p, 1), (p, 2)]).filter(col("x") > 3), "mix(1, 2) counts rows"),
    (lambda p: p.shuffle(by="x", interleave=2).filter(col("x") > 3), "deals rows out in turns"),
    (lambda p: p.take(3).shuffle().filter(col("x") > 3), "takes its windows from the rows of take(3)"),
    (lambda p: p.map_batches(dict, "y", size=2).filter(col("x") > 3), "map_batches(dict) works across rows"),
    (lambda p: p.map_batches(dict, "y", size=2).shuffle().filter(col("x") > 3), "windows from the rows of map_batches"),
    (lambda p: p.cache("memory").filter(col("x") > 3), "would keep other columns"),
    (lambda p: p.map(f, "x").filter(g, "y"), "it needs measurements"),
]


@pytest.mark.parametrize(("make", "why"), REFUSED, ids=[w for _, w in REFUSED])
def test_why_a_filter_stays(make, why):
    p = make(table("x", "y"))
    (decision,) = decided(p, push_filter)
    assert decision.startswith("refused  push_filter: filter(")
    assert why in decision
    assert after(p, push_filter) == line(p.node)


def test_rows_are_skipped_by_the_same_operator_as_written():
    def on_map(node):
        return isinstance(node.operator, RowOperator) and node.logical.operator.on_error is not None

    p = table("x", "y").map(f, "x", on_error=Skip()).filter(col("y") > 3)
    (decision,) = decided(p, push_filter, skips=on_map)
    assert "map(f) may skip rows that filter" in decision


def test_others_that_draw_from_what_is_below_see_all_rows():
    shared = table("x", "y").map(f, "x")
    p = cedar.zip(shared.filter(col("y") > 3), shared.rename({"x": "a", "y": "b"}))
    assert "others draw from map(f), too" in decided(p, push_filter)[0]


class Stream:
    """A source that is read from its beginning."""

    def splits(self):
        return [Split(streaming=True)]

    def read(self, split):
        return [{"x": [1]}]

    def schema(self):
        return None


def test_inputs_that_are_read_from_their_beginning_are_counted_by_windows():
    p = cedar.concat(cedar.from_source(Stream()), cedar.from_source(Stream())).filter(col("x") > 1)
    assert "a shuffle above would count their rows" in decided(p, push_filter)[0]


def test_a_function_goes_down_where_figures_say_that_it_pays():
    p = table("x", "y").map(f, "x").map(f, "x", into="z").filter(g, "y")
    cheap = measured(cpu={1: 1e-3, 2: 1e-3, 3: 1e-4}, keep={3: 0.1})
    assert after(p, push_filter, profile=cheap) == "read -> filter(g) -> map(f) -> map(f)"
    dear = measured(cpu={1: 1e-6, 2: 1e-6, 3: 1e-4}, keep={3: 0.1})
    assert after(p, push_filter, profile=dear) == line(p.node)
    assert "costs more than it saves" in decided(p, push_filter, profile=dear)[0]


def test_a_filter_that_costs_more_further_down_stays_alone():
    p = table("x", "y").map(f, "x", into="z").filter(col("z") > 1).filter(col("y") > 1).filter(col("x") > 1)
    profile = measured(cpu={1: 1e-6, 2: 1e-6, 3: 1e-3, 4: 1e-6}, keep={2: 0.01, 3: 1.0, 4: 0.9}, rows={1: 100})
    root, decisions = rewritten(p, push_filter, profile=profile)
    assert line(root) == "read -> filter(x > 1) -> map(f) -> filter(z > 1) -> filter(y > 1)"
    assert [d.applied for d in decisions] == [True, False, False]
    assert 'which filter([(col("z")) > (1)]) uses' in decisions[1].why
    assert "map(f): it would cost" in decisions[2].why


def test_operators_that_share_no_column_are_not_compared(monkeypatch):
    compared = []
    for place in ("cedar.optimizer.rules.pushdown.may_swap", "cedar.plan.steps.order.may_swap"):
        monkeypatch.setattr(place, lambda below, above, facts: compared.append(above) or may_swap(below, above, facts))
    p = table("x", "y")
    for i in range(100):
        p = p.filter(col(f"z{i - 1}") > 0).filter(col("x") > i) if i % 2 else p.with_columns(**{f"z{i}": col("y") + i})
    root, _ = rewritten(p, push_filter)
    assert [node.filters for node in graph.walk(root)][1:52] == [True] * 50 + [False]
    assert len(compared) < 1000


def test_filters_behind_batch_stay_there():
    p = table("x", "y").batch(2).map(f, "x").filter(lambda y: True, "y")
    profile = measured(cpu={2: 1.0, 3: 1e-6}, keep={3: 0.1})
    assert after(p, push_filter, profile=profile) == "read -> batch -> filter(<lambda>) -> map(f)"


def test_filters_do_not_pass_one_another_for_ever():
    p = table("x", "y").map(f, "x", into="z").filter(col("y") > 3).filter(g, "x")
    profile = measured(cpu={0: 1e-6, 1: 1e-5, 2: 1e-4, 3: 1e-6}, keep={2: 0.9, 3: 0.1})
    assert after(p, push_filter, profile=profile) == "read -> filter(y > 3) -> filter(g) -> map(f)"
    assert not any("below filter" in text for text in decided(p, push_filter, profile=profile)), "the search's choice"


def test_a_filter_becomes_part_of_reading():
    p = table("x", "y").filter(col("y") > 3)
    assert after(p, scan_filter) == "read[* where y > 3]"
    assert decided(p, scan_filter)[0].endswith("into " + p.node.inputs[0].operator.label())


def test_several_filters_keep_their_order():
    p = table("x", "y").map(f, "x").filter(col("y") > 3).shuffle().filter(col("y") < 9).batch(2)
    assert after(p, push_filter, scan_filter) == "read[* where y > 3 and y < 9] -> map(f) -> shuffle -> batch"


def test_the_scan_knows_the_filters_and_the_source_as_written():
    p = table("x", "y").filter(col("y") > 3)
    root, _ = rewritten(p, scan_filter)
    assert isinstance(root.operator, Scan)
    assert root.origin is p.node.inputs[0]
    assert [node.logical for node in root.operator.where] == [p.node]
    assert root.operator.source is p.node.inputs[0].operator.source


def test_every_input_of_a_concat_filters_by_itself():
    p = cedar.concat(table("x"), table("x")).filter(col("x") > 1)
    assert after(p, push_filter, scan_filter) == "concat(read[* where x > 1], read[* where x > 1])"


SCAN_FILTER_REFUSED = [
    (lambda p: p.filter(col("x") > 1, on_error=Skip()), "rows may be skipped"),
    (lambda p: cedar.zip(p.filter(col("x") > 1), p.rename({"x": "y"})), "others draw from"),
    (lambda p: p.filter(cedar.col("^x.*$") > 1), "depends on their types"),
]


@pytest.mark.parametrize(("make", "why"), SCAN_FILTER_REFUSED, ids=[w for _, w in SCAN_FILTER_REFUSED])
def test_why_a_filter_is_not_part_of_reading(make, why):
    p = make(table("x"))
    (decision,) = decided(p, scan_filter, skips=lambda n: getattr(n.logical.operator, "on_error", None) is not None)
    assert why in decision
    assert after(p, scan_filter, skips=lambda n: True) == line(p.node)


def test_sources_that_cannot_select_and_functions_are_left_alone():
    assert decided(cedar.from_items([{"x": 1}]).filter(col("x") > 1), scan_filter) == []
    assert decided(table("x").filter(lambda x: True, "x"), scan_filter) == []


def test_sources_that_are_read_from_their_beginning(tmp_path):
    path = tmp_path / "t.csv.gz"
    import gzip

    path.write_bytes(gzip.compress(b"x\n1\n2\n"))
    p = cedar.read_csv(str(path)).filter(col("x") > 1)
    assert "only be read from their beginning" in decided(p, scan_filter)[0]


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
