"""Modules: sequences as slow loops pool them, interactions by their formulas."""

from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.model import Cross, Dot, SequencePooling
from cedar.trainers.dlrm.trainer import Trainer
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


def padded(pool, values, offsets):
    """The same on lists that are filled up with zeros, behind a mask, by the functions of torch."""
    lengths, width = offsets.diff(), values.shape[1]
    there = torch.arange(int(lengths.max())) < lengths[:, None]
    rows = torch.zeros(*there.shape, width).masked_scatter(there[..., None], values)
    layer, mask = pool.layer, (there | ~there.any(1, keepdim=True))[:, None, None]
    parts = layer.attention.mixed(layer.before(rows)).view(*there.shape, 3, layer.attention.heads, -1)
    seen = functional.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4), attn_mask=mask)
    rows = rows + layer.attention.out(seen.transpose(1, 2).flatten(2))
    rows = rows + layer.outer(functional.relu(layer.inner(layer.between(rows))))
    scores = pool.query(rows)[..., 0].masked_fill(~there, -1e30)
    return ((torch.softmax(scores, 1) * there)[..., None] * rows).sum(1)


def test_sequences_are_not_padded_and_come_to_what_padded_ones_do():
    pool = SequencePooling(8, 2)
    lengths = torch.randint(0, 30, (64,), generator=torch.Generator().manual_seed(0))
    offsets = functional.pad(lengths.cumsum(0), (1, 0))
    values = torch.randn(int(offsets[-1]), 8, requires_grad=True)
    worked = []
    pool.layer.inner.register_forward_hook(lambda _, given, __: worked.append(given[0].shape))
    found = pool(values, offsets)
    assert worked == [torch.Size([int(lengths.sum()), 8])], "no place is worked that holds nothing"
    expected = padded(pool, values, offsets)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    wanted = (values, *pool.parameters())
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), wanted), torch.autograd.grad(expected.square().sum(), wanted),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


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


def test_a_model_with_dropout_says_what_it_does_not_save(log):
    drops = {"model": {"dropout": 0.1}}
    told = []
    for more in (drops, {"model": {"dropout": 0.1, "repeat_dropout": True}}, drops | {"data": {"dedup": "off"}}):
        trainer = Trainer(options(log, **more), Group())
        trainer.train_step()
        told.append([note for note in trainer.notes if "pooled for all rows" in note])
        trainer.close()
    assert [len(notes) for notes in told] == [1, 0, 0]
    assert told[0][0].startswith("hist is pooled for all rows")


def test_a_model_may_have_dense_features_alone(log):
    trainer = Trainer(options(log, features=[], data={"dedup": "off"}), Group())
    losses = [trainer.train_step().loss for _ in range(28)]
    assert sum(losses[-14:]) < sum(losses[:14])
    assert trainer.evaluate().rows == 128
    trainer.close()
