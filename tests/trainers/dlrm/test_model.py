"""Modules: sequences as slow loops pool them, interactions by their formulas, and what unique rows must not run."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from cedar.core.errors import CedarError
from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.model import Cross, Dot, SequencePooling
from cedar.trainers.dlrm.trainer import Trainer
from cedar.trainers.dlrm.unique import check_repeatable
from tests.trainers.dlrm.toy_clicks import options


@pytest.mark.parametrize("heads", [0, 2])
def test_lists_are_pooled_each_by_itself_whatever_their_lengths(heads):
    torch.manual_seed(0)
    pool = SequencePooling(4, heads).double()
    lengths = [3, 0, 1, 3]
    values = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    offsets = torch.tensor([0, 3, 3, 4, 7])
    found = pool(values, offsets)
    (gradient,) = torch.autograd.grad(found.square().sum(), values)
    alone = [pool(values[a:b], torch.tensor([0, b - a])) for a, b in pairwise(offsets)]
    assert torch.allclose(found, torch.cat(alone), atol=1e-12)
    assert found[lengths.index(0)].tolist() == [0.0] * 4
    assert bool(torch.isfinite(gradient).all())


def test_attention_is_a_softmax_over_a_list():
    pool = SequencePooling(3).double()
    rows = torch.randn(5, 3, dtype=torch.float64)
    shares = torch.softmax(rows @ pool.query.weight[0], 0)
    assert torch.allclose(pool(rows, torch.tensor([0, 5]))[0], (shares[:, None] * rows).sum(0))


def test_lists_that_are_all_empty_give_zeros():
    pool = SequencePooling(4, 2)
    values = torch.zeros(0, 4, requires_grad=True)
    found = pool(values, torch.tensor([0, 0, 0]))
    found.sum().backward()
    assert found.tolist() == [[0.0] * 4] * 2


def test_pairs_meet_in_dot_products():
    rows = torch.randn(2, 3, 4)
    found = Dot(3, 4, first=True)(rows)
    for at in range(2):
        a, b, c = rows[at]
        assert torch.allclose(found[at], torch.cat([a, torch.stack([b @ a, c @ a, c @ b])]), atol=1e-6)
    assert Dot(3, 4, first=False)(rows).shape == (2, 3)


@pytest.mark.parametrize("first", [True, False])
def test_products_have_the_gradient_of_their_formula(first):
    rows = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Dot(3, 4, first=first), (rows,))


def test_crosses_are_those_of_dcn():
    cross = Cross(2, 3, layers=2, rank=2).double()
    rows = torch.randn(4, 2, 3, dtype=torch.float64)
    start = found = rows.reshape(4, 6)
    for down, up in zip(cross.down, cross.up, strict=True):
        found = start * (found @ down.weight.T @ up.weight.T + up.bias) + found
    assert torch.allclose(cross(rows), found)


@pytest.mark.parametrize(
    "module",
    [
        nn.Dropout(0.1),
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),
        nn.MultiheadAttention(4, 2, dropout=0.1),
        nn.RReLU(),
    ],
)
def test_modules_that_tell_equal_rows_apart_are_refused(module):
    with pytest.raises(CedarError, match="not run on unique rows"):
        check_repeatable(module)
    check_repeatable(module, anyway=True)


def test_modules_that_treat_rows_alike_are_taken():
    check_repeatable(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Dropout(0.0), nn.MultiheadAttention(4, 2)))


def test_dropout_on_deduplicated_features_is_refused_before_the_first_step(log):
    drops = {"model": {"dropout": 0.1}}
    with pytest.raises(CedarError, match=r"model\.repeat_dropout = true"):
        Trainer(options(log, **drops), Group())
    for more in ({"model": {"dropout": 0.1, "repeat_dropout": True}}, drops | {"data": {"dedup": "off"}}):
        trainer = Trainer(options(log, **more), Group())
        trainer.train_step()
        trainer.close()
    trainer = Trainer(options(log, **drops, data={"dedup": "auto"}), Group())
    with pytest.raises(CedarError, match=r"model\.repeat_dropout = true"):  # known when the first batch is
        trainer.train_step()
    assert trainer.step == 0
    trainer.close()


def test_a_model_may_have_dense_features_alone(log):
    trainer = Trainer(options(log, features=[], data={"dedup": "off"}), Group())
    losses = [trainer.train_step().loss for _ in range(28)]
    assert sum(losses[-14:]) < sum(losses[:14])
    assert trainer.evaluate().rows == 128
    trainer.close()
