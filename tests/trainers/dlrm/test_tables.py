"""Tables: looked up and updated as slow and obvious code would, also in half precision."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.trainers.dlrm.tables import Table, TorchTables, zeros
from tests.trainers.dlrm.toy_bags import TABLES, bags_of

WIDTH = 3


def slow_sums(weight, lists, weights):
    rows = []
    for at, ids in enumerate(lists):
        row = torch.zeros(weight.shape[1], dtype=weight.dtype)
        for place, i in enumerate(ids):
            row = row + weight[i] * (1.0 if weights is None else weights[at][place])
        rows.append(row)
    return torch.stack(rows) if rows else torch.zeros(0, weight.shape[1], dtype=weight.dtype)


def slow_step(rule, weight, state, gradient, touched, rate, step, eps):
    """The rules as they are published, row by row."""
    for r in touched:
        g = gradient[r]
        if rule == "sgd":
            weight[r] -= rate * g
        elif rule == "rowwise_adagrad":
            state["sum"][r] += (g * g).mean()
            weight[r] -= rate * g / (state["sum"][r].sqrt() + eps)
        else:
            state["first"][r] = 0.9 * state["first"][r] + 0.1 * g
            state["second"][r] = 0.999 * state["second"][r] + 0.001 * g * g
            size = rate * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
            weight[r] -= size * state["first"][r] / (state["second"][r].sqrt() + eps)


lists_of = lambda rows: st.lists(st.lists(st.integers(0, rows - 1), max_size=4), min_size=0, max_size=5)


@given(lists_of(5), lists_of(9), lists_of(9), st.booleans(), st.sampled_from(["rowwise_adagrad", "sgd", "adam"]))
def test_sums_and_updates_are_those_of_plain_loops(users, items, more, weighed, rule):
    tables = TorchTables(TABLES, WIDTH, rule=rule, dtype=torch.float64, seed=3, eps=1e-8)
    lists = [("users", users), ("items", items), ("items", more)]
    weights = [[[0.5 + place for place, _ in enumerate(ids)] for ids in each] for _, each in lists]
    slow = {name: value.clone() for name, value in tables.state().items()}
    for step in (1, 2):
        tables.begin(0.1, step)
        given_weights = weights if weighed else [None] * 3
        found = tables.lookup([bags_of(n, each, w) for (n, each), w in zip(lists, given_weights, strict=True)])
        leaves = {t.name: slow[f"{t.name}.weight"].clone().requires_grad_() for t in TABLES}
        loss, slow_loss = torch.zeros(()), torch.zeros(())
        for (name, each), w, got in zip(lists, given_weights, found, strict=True):
            expected = slow_sums(leaves[name], each, w)
            assert torch.allclose(got, expected, atol=1e-12)
            loss, slow_loss = loss + (got**2).sum(), slow_loss + (expected**2).sum()
        if loss.requires_grad:
            loss.backward()
        if slow_loss.requires_grad:
            slow_loss.backward()
        tables.update()
        for table in TABLES:
            gradient = leaves[table.name].grad
            touched = {i for name, each in lists if name == table.name for ids in each for i in ids}
            state = {kind: slow[f"{table.name}.{kind}"] for kind in tables.moments}
            if touched:
                slow_step(rule, slow[f"{table.name}.weight"], state, gradient, touched, 0.1, step, 1e-8)
        for name, value in tables.state().items():
            assert torch.allclose(value, slow[name], atol=1e-12), name


def test_the_first_weights_of_a_table_do_not_depend_on_its_neighbors():
    both, alone = TorchTables(TABLES, WIDTH, seed=7), TorchTables(TABLES[1:], WIDTH, seed=7)
    assert torch.equal(both.state()["items.weight"], alone.state()["items.weight"])
    assert not torch.equal(alone.weight, TorchTables(TABLES[1:], WIDTH, seed=8).weight)


def test_several_lookups_of_a_step_are_one_update():
    once, twice = (TorchTables(TABLES, WIDTH, dtype=torch.float64) for _ in "ab")
    lists = [[1, 2], [2]], [[2, 8]]
    for tables, parts in (
        (once, [[bags_of("items", each) for each in lists]]),
        (twice, [[bags_of("items", each)] for each in lists]),
    ):
        tables.begin(0.1, 1)
        sum((found**2).sum() for part in parts for found in tables.lookup(part)).backward()
        tables.update()
    assert torch.allclose(once.weight, twice.weight, atol=1e-14)


def half_run(tables, steps, start=1):
    for step in range(start, start + steps):
        tables.begin(1e-3, step)
        (tables.lookup([bags_of("items", [[1, 2, 3], [3]])])[0] * 0.01).sum().backward()
        tables.update()
    return tables


def test_float16_rounding_follows_from_seed_step_table_and_row():
    make = lambda tables, seed=0: TorchTables(tables, 64, rule="sgd", dtype=torch.float16, seed=seed)
    whole = half_run(make(TABLES), 20)
    alone = half_run(make(TABLES[1:]), 20)
    assert torch.equal(whole.state()["items.weight"], alone.state()["items.weight"])
    resumed = half_run(make(TABLES), 8)
    other = make(TABLES)
    other.weight.data.copy_(resumed.weight)
    assert torch.equal(half_run(other, 12, start=9).weight, whole.weight)


def test_float16_rounding_keeps_small_updates_on_average():
    tables = TorchTables((Table("items", 9),), 4096, rule="sgd", dtype=torch.float16)
    tables.weight.data.fill_(1.0)
    for step in range(1, 33):  # each update is a 1/100 of the distance to the next float16
        tables.begin(1.0, step)
        (tables.lookup([bags_of("items", [[4]])])[0] * -(2.0**-10) / 100).sum().backward()
        tables.update()
    moved = (tables.weight[4].float().mean().item() - 1) / (2.0**-10 * 32 / 100)
    assert 0.9 < moved < 1.1
    assert bool((tables.weight[3] == 1).all())


def test_large_tables_begin_with_zeros_that_can_be_written():
    for shape, dtype in (((1 << 19, 8), torch.float32), ((3, 2), torch.float64)):
        found = zeros(shape, dtype, None)
        assert found.shape == shape
        assert found.dtype == dtype
        assert not found.any()
        found[1:].fill_(1.0)
        assert float(found.sum()) == (shape[0] - 1) * shape[1]
