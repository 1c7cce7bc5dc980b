"""push_filter: plans before and after."""

import pytest

import cedar
from cedar import Skip, col
from cedar.datasets.base import Split
from cedar.operators.base import RowOperator
from cedar.operators.sample import Sample
from cedar.optimizer.rules.push_filter import push_filter
from tests.optimizer.plan_lines import after, decided, line, measured, table


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


def test_filters_behind_batch_stay_there():
    p = table("x", "y").batch(2).map(f, "x").filter(lambda y: True, "y")
    profile = measured(cpu={2: 1.0, 3: 1e-6}, keep={3: 0.1})
    assert after(p, push_filter, profile=profile) == "read -> batch -> filter(<lambda>) -> map(f)"


def test_filters_do_not_pass_one_another_for_ever():
    p = table("x", "y").map(f, "x", into="z").filter(col("y") > 3).filter(g, "x")
    profile = measured(cpu={0: 1e-6, 1: 1e-5, 2: 1e-4, 3: 1e-6}, keep={2: 0.9, 3: 0.1})
    assert after(p, push_filter, profile=profile) == "read -> filter(y > 3) -> filter(g) -> map(f)"
    assert not any("below filter" in text for text in decided(p, push_filter, profile=profile)), "the search's choice"
