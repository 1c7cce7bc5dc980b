"""The model: dropout by rows, experts by their names, and no token that sees what comes after it."""

from __future__ import annotations

import torch

from cedar.trainers.common.group import Group
from cedar.trainers.moe.model import Dropout, Model, mixture
from cedar.trainers.moe.options import ExpertOptions, ModelOptions

EXPERTS = ExpertOptions(experts=3, slots=3, hidden=8, capacity=0.0)


def dropped(rows, step=0, name="a"):
    drop = Dropout(0.5, name)
    drop.step, drop.rows = step, rows
    return drop(torch.ones(len(rows), 40))


def test_what_a_row_loses_depends_on_nothing_but_seed_step_place_and_row():
    whole = dropped(range(6))
    assert torch.equal(torch.cat([dropped(range(2)), dropped(range(2, 6))]), whole)
    assert set(whole.flatten().tolist()) == {0.0, 2.0}
    assert not torch.equal(whole[0], whole[1])
    assert not torch.equal(dropped(range(6), step=1), whole)
    assert not torch.equal(dropped(range(6), name="b"), whole)
    drop = Dropout(0.5, "a").eval()
    assert drop(whole) is whole


def test_the_first_weights_of_an_expert_follow_from_seed_name_and_number():
    made = lambda name="x", seed=0, slots=3: mixture(
        4, ExpertOptions(experts=3, slots=slots, hidden=8), Group(), name, seed
    ).state_dict()
    one = made()["experts.1.up"]
    assert torch.equal(made(slots=7)["experts.1.up"], one)
    for other in (made()["experts.2.up"], made("y")["experts.1.up"], made(seed=1)["experts.1.up"]):
        assert not torch.equal(other, one)


def test_no_token_sees_what_comes_after_it():
    model = Model(ModelOptions(layers=2, width=8, heads=2), EXPERTS, Group(), length=6, vocabulary=11).double().eval()
    tokens = torch.randint(0, 11, (2, 6))
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 6, 11)
    assert torch.allclose(before[:, :4], after[:, :4], atol=1e-12)
    assert not torch.isclose(before[:, 4:], after[:, 4:], atol=1e-9).all(2).any()
