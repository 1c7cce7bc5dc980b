"""Deduplicated and plain rows, one rank and several, in tiers or not: the same training, up to the order of sums."""

from dataclasses import replace

import pytest
import torch

from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.trainer import Trainer
from tests.trainers.dlrm.test_checkpoint import went_on
from tests.trainers.dlrm.toy_clicks import ITEMS, TAGS, options

KEPT = ("item.weight", "acts.weight", "tags.weight")
WEIGHED = [
    {"column": "item", "rows": ITEMS},
    {"column": "tags", "rows": TAGS, "pooling": "attention"},
    {"column": "hist", "rows": 100, "ids": "modulo", "weights": "acts"},
]
WIDTHS = [
    {"column": "item", "rows": ITEMS, "width": 4},
    {"column": "hist", "rows": ITEMS, "table": "item", "pooling": "transformer", "width": 4},
    {"column": "acts", "rows": 5, "pooling": "mean", "width": 12},
    {"column": "tags", "rows": TAGS},
]


def trained(group, chosen, steps):
    """Losses, weights and scores of a run."""
    trainer = Trainer(chosen, group)
    losses = [trainer.train_step().loss for _ in range(steps)]
    state = {name: value.clone() for name, value in trainer.tables.state().items()}
    found = trainer.evaluate()
    dense = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    trainer.close()
    return losses, state, dense, found


def far(one, other):
    """The largest difference of tensors of the same names."""
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.mark.heavy
@pytest.mark.parametrize(("backend", "steps"), [("torch", 200), ("fbgemm", 50)])
def test_single_precision_agrees_without_and_with_deduplication(log, backend, steps):
    if backend == "fbgemm":
        pytest.importorskip("fbgemm_gpu", reason="fbgemm is not installed")
    runs = []
    for dedup in ([["hist", "acts"], ["tags"]], "off"):
        chosen = options(log, data={"dedup": dedup}, tables={"backend": backend})
        runs.append(trained(Group(), chosen, steps))
    (losses, _, _, scores), (plain_losses, _, _, plain_scores) = runs
    assert abs(losses[0] - plain_losses[0]) <= 1e-6
    assert abs(losses[-1] - plain_losses[-1]) <= 1e-4 * plain_losses[-1]
    assert abs(scores.auc - plain_scores.auc) <= 1e-4


@pytest.mark.heavy
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model": {"interaction": "dcn", "cross": 2, "rank": 4}, "tables": {"rule": "adam", "rate": 0.01}},
        {"features": WEIGHED, "tables": {"rule": "sgd"}, "optimizer": {"rule": "adam", "rate": 0.01}},
        {"data": {"dense": [], "log": []}},
        {"model": {"dropout": 0.3}},
        {"features": WIDTHS},
    ],
)
def test_double_precision_agrees_without_and_with_deduplication(log, more):
    runs = []
    for dedup in ([["hist", "acts"], ["tags"]], "off", "auto"):
        data = more.get("data", {}) | {"dedup": dedup}
        runs.append(trained(Group(), options(log, **(more | {"data": data, "run": {"dtype": "float64"}})), 20))
    for losses, state, dense, _ in runs[1:]:
        assert max(abs(a - b) for a, b in zip(losses, runs[0][0], strict=True)) < 1e-10
        assert far(state, runs[0][1]) < 1e-10
        assert far(dense, runs[0][2]) < 1e-10


@pytest.mark.heavy
def test_bfloat16_learns_too(log):
    losses, _, _, _ = trained(Group(), options(log, run={"dtype": "bfloat16"}), 150)
    assert sum(losses[-14:]) < 0.95 * sum(losses[:14])


@pytest.mark.heavy
@pytest.mark.parametrize("more", [{}, {"features": WEIGHED, "tables": {"rule": "sgd"}}, {"features": WIDTHS}])
def test_ranks_train_as_one_does(crew, log, more):
    chosen = options(log, **more, run={"dtype": "float64"})
    losses, state, dense, scores = trained(Group(), chosen, 16)
    for ranks in (2, 4):
        found = crew.run(trained, chosen, 16, ranks=ranks)
        held = [name for _, own, _, _ in found for name in own]
        assert sorted(held) == sorted(state)  # each table on one rank
        for other_losses, own, other_dense, other_scores in found:
            assert max(abs(a - b) for a, b in zip(losses, other_losses, strict=True)) < 1e-10
            assert far(own, state) < 1e-10 if own else True
            assert far(other_dense, dense) < 1e-10
            assert other_scores.rows == scores.rows == 128
            assert abs(other_scores.auc - scores.auc) < 1e-12


def traffic(group, chosen):
    """Bytes that ranks ask for and get in a step, and the ids that this one looked up."""
    trainer = Trainer(chosen, group)
    record = trainer.train_step()
    trainer.close()
    return sum(record.sent[phase] for phase in ("ids", "pooled rows", "row gradients")), record.looked_up


def test_what_ranks_send_falls_with_deduplication(crew, log):
    features = [{"column": "hist", "rows": ITEMS, "pooling": "attention"}, {"column": "acts", "rows": 5}]
    sent, ids = {}, {}
    for dedup in ([["hist", "acts"]], "off"):
        chosen = options(log, features=features, data={"dedup": dedup, "batch": 256, "interleave": 1})
        found = crew.run(traffic, chosen, ranks=2)
        sent[dedup == "off"], ids[dedup == "off"] = (sum(part) for part in zip(*found, strict=True))
    factor = ids[True] / ids[False]
    assert factor > 5
    assert 0.85 * factor < sent[True] / sent[False] < 1.15 * factor


def test_fbgemm_shards_as_torch_does(crew, log):
    pytest.importorskip("fbgemm_gpu", reason="fbgemm is not installed")
    found = [crew.run(trained, options(log, tables={"backend": b}), 8, ranks=2) for b in ("torch", "fbgemm")]
    for (losses, state, _, _), (other_losses, other_state, _, _) in zip(*found, strict=True):
        assert max(abs(a - b) for a, b in zip(losses, other_losses, strict=True)) < 1e-5
        assert state.keys() == other_state.keys()
        assert all(torch.allclose(state[name], other_state[name], atol=1e-4) for name in state)


def test_a_run_with_tiers_and_copies_is_that_of_one_rank_and_goes_on_without(crew, log, tmp_path):
    """Its checkpoint is that of whole tables: it loads on other ranks, without tiers, and the other way round."""
    run = {"dtype": "float64", "folder": str(tmp_path / "run")}
    plain = options(log, run=run)
    hot = options(log, run=run, tables={"sharding": "hot", "fast": 2500}, features=[
        {"column": "item", "rows": ITEMS, "pooling": "attention"}, *FEATURED[1:],
    ])  # fmt: skip
    plain = replace(plain, features=hot.features)
    whole, state = went_on(Group(), plain, str(tmp_path / "none"), False, 8)
    first = crew.run(went_on, hot, str(tmp_path / "some"), True, 3, ranks=2)
    second, _ = went_on(Group(), plain, str(tmp_path / "some"), True, 2)
    third = crew.run(went_on, hot, str(tmp_path / "some"), False, 3, ranks=2)
    losses = first[0][0] + second + third[0][0]
    assert max(abs(a - b) for a, b in zip(losses, whole, strict=True)) < 1e-10
    for _, own in third:
        for name, value in own.items():
            table, _, kind = name.rpartition(".")
            start, _, stop = table.partition("[rows ")[2].rstrip("]").partition(":")
            expected = state[f"{table.partition('[')[0]}.{kind}"]
            assert torch.allclose(value, expected[int(start or 0) : int(stop or len(expected))], atol=1e-10), name
    notes = crew.run(said, hot, ranks=2)[0]
    assert any("item: " in note and "rows on every rank" in note for note in notes)
    assert any("rank 1: " in note and "rows in memory" in note for note in notes)


FEATURED = [
    {"column": "item", "rows": ITEMS},
    {"column": "hist", "rows": ITEMS, "table": "item", "pooling": "transformer"},
    {"column": "acts", "rows": 5, "pooling": "mean"},
    {"column": "tags", "rows": TAGS},
]


def said(group, chosen):
    trainer = Trainer(chosen, group)
    trainer.close()
    return trainer.notes
