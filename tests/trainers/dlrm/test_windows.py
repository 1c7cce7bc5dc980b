"""Lists that slide: sums and gradients are those of lists that are held one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.inputs import read_batch
from cedar.trainers.dlrm.options import FeatureOptions
from cedar.trainers.dlrm.sharding import look
from cedar.trainers.dlrm.trainer import Trainer
from cedar.trainers.dlrm.unique import Windows, pool, windows_of
from tests.trainers.dlrm.test_inputs import jagged
from tests.trainers.dlrm.toy_clicks import ITEMS, options

RUNS = st.lists(st.tuples(st.integers(0, 6), st.lists(st.integers(0, 3), max_size=5)), max_size=5)


def slid(runs):
    """Lists that slide: of each run the first list's length, and by how much each next one moves."""
    lists, number = [], 0
    for length, shifts in runs:
        start = 0
        for shift in [0, *shifts]:
            start += shift
            lists.append([number + start + i for i in range(length)])
        number += start + length + 3  # runs share nothing
    return lists


@given(RUNS, st.data())
def test_sums_and_gradients_are_those_of_plain_bags(runs, data):
    lists = slid(runs)
    held = jagged(lists)
    values, windows = windows_of(held.values, held.offsets)
    assert len(values) == len({i for ids in lists for i in ids})  # each value once
    assert windows.lengths.tolist() == [len(ids) for ids in lists]
    start = data.draw(st.integers(0, len(lists)))
    windows, inside = windows.cut(start, stop := data.draw(st.integers(start, len(lists))))
    values = values[inside]
    table = torch.randn(100, 3, dtype=torch.float64)
    rows = table[values].requires_grad_()
    plain = table.clone().requires_grad_()
    part = jagged(lists[start:stop])
    if len(part.values):
        wanted = functional.embedding_bag(part.values, plain, part.offsets, mode="sum", include_last_offset=True)
    else:
        wanted = plain.sum() * 0 + torch.zeros(stop - start, 3, dtype=torch.float64)
    found = pool(rows, windows)
    weights = torch.randn_like(found)
    torch.testing.assert_close(found, wanted)
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    given_back = torch.zeros_like(table).index_add_(0, values, rows.grad)
    torch.testing.assert_close(given_back, plain.grad)


def test_a_cut_without_lists_holds_no_values():
    windows, inside = Windows(torch.tensor([0]), torch.tensor([3]), 3).cut(1, 1)
    assert (len(windows), windows.total, inside) == (0, 0, slice(0, 0))


def test_statistics_count_what_is_looked_up():
    lists = slid([(10, [1] * 9)])
    option = FeatureOptions("a", 50, sliding=True)
    (found,) = look([read_batch({"a": jagged(lists)}, (option,), (), None)], [option])
    assert found.lookups == 19.0


FEATURES = [
    {"column": "item", "rows": ITEMS},
    {"column": "hist", "rows": ITEMS, "table": "item", "pooling": "mean"},
    {"column": "tags", "rows": 30},
]


def trained(group, chosen, steps):
    trainer = Trainer(chosen, group)
    records = [trainer.train_step() for _ in range(steps)]
    state = {name: value.clone() for name, value in trainer.tables.state().items()}
    scores = trainer.evaluate()
    trainer.close()
    return [r.loss for r in records], state, scores.auc, sum(r.looked_up for r in records)


@pytest.mark.parametrize("dedup", ["off", [["hist"]]])
def test_training_is_that_of_lists_by_themselves(log, dedup):
    sliding = [feature | {"sliding": feature["column"] != "item"} for feature in FEATURES]
    runs = []
    for features in (FEATURES, sliding):
        data = {"dedup": dedup, "interleave": 1}
        runs.append(trained(Group(), options(log, features=features, data=data, run={"dtype": "float64"}), 12))
    (losses, state, auc, ids), (other_losses, other, other_auc, fewer) = runs
    assert np.abs(np.subtract(losses, other_losses)).max() < 1e-10
    assert all(float((state[name] - other[name]).abs().max()) < 1e-10 for name in state)
    assert abs(auc - other_auc) < 1e-10
    assert fewer < 0.6 * ids if dedup == "off" else fewer <= ids


def test_ranks_exchange_shared_values_alone(crew, log):
    chosen = options(
        log, features=[feature | {"sliding": feature["column"] == "hist"} for feature in FEATURES],
        data={"dedup": "off", "interleave": 1}, run={"dtype": "float64"},
    )  # fmt: skip
    losses, state, auc, _ = trained(Group(), chosen, 6)
    found = crew.run(trained, chosen, 6, ranks=2)
    assert sorted(name for _, own, _, _ in found for name in own) == sorted(state)
    for other_losses, own, other_auc, _ in found:
        assert np.abs(np.subtract(losses, other_losses)).max() < 1e-10
        assert all(float((own[name] - state[name]).abs().max()) < 1e-10 for name in own)
        assert abs(auc - other_auc) < 1e-12
