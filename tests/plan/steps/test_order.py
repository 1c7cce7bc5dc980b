"""may_swap: what may change places, and that the result is then the same."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import Skip, col
from cedar.core.compare import column_difference
from cedar.engine.binding import Binding
from cedar.operators.algebra import length_changing, per_value, pointwise, resampling, spatial
from cedar.operators.base import Bound, Env
from cedar.optimizer.rewrite import rewrite
from cedar.optimizer.rules import RULES
from cedar.plan import graph
from cedar.plan.steps.order import may_swap, rivals
from cedar.plan.steps.step import facts_of, is_inserted, rebuilt
from tests.optimizer.plan_lines import table


def f(x):
    return x


def half(x):
    return x % 3 > 0


def drawn(x, rng):
    return x + int(rng.integers(100))


def swap(p, skips=lambda node: False):
    return refusal(p.node.inputs[0], p.node, facts_of(p.node, p.node, skips))


def refusal(below, above, facts):
    """Why two operators may not be swapped; such operators are rivals."""
    refused = may_swap(below, above, facts)
    assert refused is None or 0 in rivals((below, above), facts)[1]
    return refused


YES = [
    lambda p: p.map(f, "a").map(f, "b"),
    lambda p: p.map(f, "a", into="x").map(f, "a", into="y"),
    lambda p: p.map(f, "a").filter(col("b") > 1),
    lambda p: p.filter(col("b") > 1).map(f, "a"),
    lambda p: p.filter(col("a") > 1).filter(half, "a"),
    lambda p: p.filter(lambda row: True).filter(col("a") > 1),
    lambda p: p.map(drawn, "a", random=True).map(drawn, "b", random=True),
    lambda p: p.map(drawn, "a", random=True).filter(col("b") > 1),
    lambda p: p.flat_map(range, "a").filter(col("b") > 1),
    lambda p: p.flat_map(range, "a").map(f, "b"),
    lambda p: p.select("a", "b").filter(col("b") > 1),
    lambda p: p.filter(col("b") > 1).select("b", x=col("a") + 1),
    lambda p: p.drop("c").map(f, "a"),
    lambda p: p.rename({"c": "d"}).map(f, "a"),
    lambda p: p.with_columns(x=col("a")).map_batches(dict, "b"),
    lambda p: p.map(pointwise(lambda x: x), "a").map(spatial(lambda x: x), "a"),
    lambda p: p.map(spatial(lambda x: x), "a").map(pointwise(lambda x: x), "a"),
    lambda p: p.map(per_value(lambda x: x), "a").map(length_changing(lambda x: x), "a"),
]


@pytest.mark.parametrize("make", YES)
def test_these_commute(make):
    assert swap(make(table("a", "b", "c"))) is None


NO = [
    (lambda p: p.map(f, "a").map(f, "a"), "do not say how"),
    (lambda p: p.map(f, "a", into="x").map(f, "x", into="y"), "map(f) writes 'x', which map(f) #2 uses"),
    (lambda p: p.map(f, "a", into="x").map(f, "b", into="a"), "writes 'a', which map(f) uses"),
    (lambda p: p.map(f, "a", into="x").map(f, "b", into="x"), "writes 'x', which map(f) #2 writes, too"),
    (lambda p: p.map(f, "a").filter(col("a") > 1), "writes 'a', which filter"),
    (lambda p: p.map(dict).map(f, "a"), "map(dict) may write any column"),
    (lambda p: p.map(f, "a").map(dict), "map(dict) may write any column"),
    (lambda p: p.map(f, "a").filter(bool), "filter(bool) may read any column"),
    (lambda p: p.with_columns(cedar.col("^a|b$") + 1).filter(col("c") > 1), "may write any column"),
    (lambda p: p.flat_map(range, "a").flat_map(range, "b"), "their order would change"),
    (lambda p: p.flat_map(range, "a").map(drawn, "b", random=True), "draws by row key"),
    (lambda p: p.map(drawn, "b", random=True).flat_map(range, "a"), "draws by row key"),
    (lambda p: p.filter(col("b") > 1).select("a"), "drops 'b', which filter"),
    (lambda p: p.select("a", "b").map(f, "a", into="x"), "drops what map(f) writes"),
    (lambda p: p.map(f, "a", into="x").select("a"), "drops what map(f) writes"),
    (lambda p: p.select("a", "b").select("a"), "drops what select(a) writes"),
    (lambda p: p.drop("a").map(f, "b", into="a"), "writes 'a'"),
    (lambda p: p.rename({"a": "x"}).filter(col("x") > 1), "writes 'x'"),
    (lambda p: p.map_batches(dict, "a", size=2).map(f, "b"), "works across rows"),
    (lambda p: p.map(f, "a").cache("memory"), "would keep other columns"),
    (lambda p: p.cache("memory").map(f, "a"), "would keep other columns"),
    (lambda p: p.shuffle().map(f, "a"), "works across rows"),
    (lambda p: p.batch(2).map(f, "a"), "works across rows"),
    (lambda p: p.map(resampling(lambda x: x), "a").map(pointwise(lambda x: x), "a"), "do not commute"),
    (lambda p: p.map(spatial(lambda x: x), "a").map(spatial(lambda x: x), "a"), "do not commute"),
    (lambda p: p.map(length_changing(lambda x: x), "a").map(pointwise(lambda x: x), "a"), "do not commute"),
    (lambda p: p.map(pointwise(lambda x: x), "a").map(f, "a"), "do not say how"),
]


@pytest.mark.parametrize(("make", "why"), NO, ids=[why for _, why in NO])
def test_these_do_not(make, why):
    assert why in swap(make(table("a", "b", "c"))).reason


def test_a_row_is_skipped_by_the_same_operator():
    base, everywhere = table("a", "b"), lambda node: True
    assert "may both skip rows" in swap(base.map(f, "a").map(f, "b"), everywhere).reason
    assert swap(base.map(f, "a").drop("b"), everywhere) is None
    p = base.map(f, "a", on_error=Skip()).filter(col("b") > 1)
    assert "may skip rows that" in swap(p, lambda n: n is p.node.inputs[0]).reason
    q = base.map(f, "a", on_error=Skip()).map(f, "b")
    assert swap(q, lambda n: n is q.node.inputs[0]) is None
    r = base.batch(2).map(f, "a", on_error=Skip()).map(f, "b")
    assert "out of the batch" in swap(r, lambda n: n is r.node.inputs[0]).reason


# ---- the result is the same ----------------------------------------------------------------------------------------

NAMES = "abc"


def build(seed: int, length: int) -> cedar.Pipeline:
    """A chain of random row operators over three columns, some of which come and go."""
    draw = random.Random(seed)
    p = cedar.from_arrow(pa.table({n: pa.array([(i * 7 + k) % 11 for i in range(40)]) for k, n in enumerate(NAMES)}))
    for number in range(length):
        x, y = draw.choices(NAMES, k=2)
        kind = draw.randrange(11)
        if kind == 0:
            p = p.map(lambda v, n=number: v * 2 + n, x, into=y)
        elif kind == 1:
            p = p.with_columns((col(x) + number).alias(y))
        elif kind == 2:
            p = p.filter(col(x) % 5 != number % 5)
        elif kind == 3:
            p = p.filter(half, x)
        elif kind == 4:
            p = p.map(drawn, x, into=y, random=True)
        elif kind == 5:
            p = p.flat_map(lambda v: range(v % 3), x, into=y)
        elif kind == 6:
            p = p.with_columns(**{f"n{number}": col(x) - col(y)})
        elif kind == 7:
            p = p.drop(f"n{number - 1}") if f"n{number - 1}" in p.schema else p.rename({x: "t"}).rename({"t": x})
        elif kind == 8:
            p = p.map_batches(lambda c: {n: v + 1 for n, v in c.items()}, x, format="numpy")
        elif kind == 9:
            p = p.map(lambda row: row | {"w": next(iter(row.values()))})  # sees the order of columns
            p = p if number == length - 1 else p.select(*draw.sample([*NAMES, "w"], k=4))
        else:
            p = p.select(*draw.sample(list(p.schema), k=len(p.schema)))
    return p


def run(root: graph.Node, binding: Binding):
    """What a chain gives: every operator bound as at its place in the pipeline as written."""
    node, chain = root, []
    while node.inputs:
        chain.append(node)
        node = node.inputs[0]
    source = graph.sources(binding.root)[0]
    block = binding.sample(source)
    names = getattr(node.operator, "columns", None)
    if names is not None:
        where = {n for w in getattr(node.operator, "where", ()) for n in w.operator.effects().reads}
        block = block.only_columns({n: block.columns[n] for n in block.columns if n in where | set(names)})
    for each in [*getattr(node.operator, "where", ()), *chain[::-1]]:
        block = kernel(each, binding)(block, Env(seed=1))
    return block if names is None or chain else block.only_columns({n: block.columns[n] for n in names})


def kernel(node, binding):
    if node.operator is node.logical.operator and id(node.logical) in binding.index:
        return binding.kernel(node.logical)
    place = binding.index.get(id(node.logical), 0)
    bound = Bound(place, node.operator.label(), None, 0, None, False, lambda: None, None)
    return node.operator.bind(bound)


def same(a, b):
    assert list(a.columns) == list(b.columns)
    assert np.array_equal(a.keys.hash(0), b.keys.hash(0))
    for name, column in a.columns.items():
        assert column_difference(column, b.columns[name]) is None, name


def substituted(root, old, new, facts):
    done = {id(old): new}
    for node in graph.walk(root):
        inputs = tuple(done[id(child)] for child in node.inputs)
        done.setdefault(id(node), node if inputs == node.inputs else rebuilt(node, inputs, facts))
    return done[id(root)]


def swapped(p: cedar.Pipeline, draw: random.Random, facts):
    """The graph after some random swaps that are allowed."""
    root = p.node
    for _ in range(30):
        places = [n for n in graph.walk(root) if n.inputs and n.inputs[0].inputs]
        if not places:
            break
        above = draw.choice(places)
        below = above.inputs[0]
        if refusal(below, above, facts.at(root)) is None:
            lower = rebuilt(above, below.inputs, facts)
            root = substituted(root, above, rebuilt(below, (lower,), facts), facts)
    return root


@given(st.integers(0, 10**9), st.integers(2, 7))
def test_swaps_change_no_value_and_no_row(seed, length):
    p = build(seed, length)
    facts = facts_of(p.node, p.node, lambda node: False)
    root = rewrite(facts.at(swapped(p, random.Random(seed), facts)), ()).root
    binding = Binding(p.node, None, Env(seed=1))
    same(run(root, binding), run(p.node, binding))


@given(st.integers(0, 10**9), st.integers(2, 7))
def test_rules_change_no_value_and_no_row(seed, length):
    p = build(seed, length)
    facts = facts_of(p.node, p.node, lambda node: False)
    root = rewrite(facts, RULES).root
    again = rewrite(facts.at(root), RULES).root
    binding = Binding(p.node, None, Env(seed=1))
    same(run(root, binding), run(p.node, binding))
    same(run(again, binding), run(p.node, binding))
    assert all(is_inserted(n, facts) or n.logical in set(graph.walk(p.node)) for n in graph.walk(again))
