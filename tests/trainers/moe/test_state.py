"""State of the optimizer by torch's own means: saved on some ranks, loaded on others, training continues as it
would.
"""

import copy
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from cedar.core.errors import CedarError
from cedar.trainers.common.group import Group
from tests.trainers.moe.toy_plain import OneRank, Ours, loaded, loss_of, train

KINDS = {
    "AdamW": (None, {"lr": 1e-2}),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    "Rprop": (torch.optim.Rprop, {"lr": 1e-3}),
    "NAdam": (torch.optim.NAdam, {"lr": 1e-2}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 1e-2}),
}


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, that there is one process
        yield


def made(group, kind, dtype=torch.float64):
    run = Ours(loaded(group, dtype), group)
    return run, run.optimizer(KINDS[kind][0], **KINDS[kind][1])


def saved(group, kind, folder, dtype=torch.float64):
    """Losses and weights of six steps, whose state was saved after the third."""
    run, optimizer = made(group, kind, dtype)
    losses = train(run, optimizer, range(3))
    for_ranks = {"process_group": group.ranks} if group.size > 1 else {"no_dist": True}
    dcp.save({"model": run.net.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=folder, **for_ranks)
    return losses + train(run, optimizer, range(3, 6)), run.whole(run.net)


def resumed(group, kind, folder, used=(), dtype=torch.float64):
    """Losses and weights of the last three steps, by a new model, or one that made some other steps."""
    run, optimizer = made(group, kind, dtype)
    train(run, optimizer, used)
    state = {"model": run.net.state_dict(), "optimizer": optimizer.state_dict()}
    for_ranks = {"process_group": group.ranks} if group.size > 1 else {"no_dist": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=folder, **for_ranks)
    if used:
        run.net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if not used:
        run.net.load_state_dict(state["model"])
    return train(run, optimizer, range(3, 6)), run.whole(run.net)


def by_names(group, folder=None):
    """Losses and weights after state was taken and set again by torch's functions for it."""
    run, optimizer = made(group, "AdamW")
    losses = train(run, optimizer, range(3))
    model, state = get_state_dict(run.net, optimizer)
    assert "first.weights" in state["state"]
    on, other = made(group, "AdamW")
    empty = dict(zip(("model", "optimizer"), get_state_dict(on.net, other), strict=True))
    if folder is not None:
        dcp.save({"model": model, "optimizer": state}, checkpoint_id=folder, process_group=group.ranks)
        dcp.load(empty, checkpoint_id=folder, process_group=group.ranks)
        model, state = empty["model"], empty["optimizer"]
    set_state_dict(on.net, other, model_state_dict=model, optim_state_dict=state)
    same((train(on, other, range(3, 6)), on.whole(on.net)),
         (train(run, optimizer, range(3, 6)), run.whole(run.net)), 1e-12)  # fmt: skip
    return losses


def test_torchs_functions_for_state_take_it():
    by_names(OneRank())


@pytest.mark.heavy
def test_torchs_functions_for_state_take_it_on_ranks(crew, tmp_path):
    crew.run(by_names, str(tmp_path))


def same(one, other, most):
    assert max(abs(a - b) for a, b in zip(one[0], other[0], strict=True)) < most
    assert all(torch.allclose(value, other[1][name], rtol=0, atol=most) for name, value in one[1].items())


@pytest.mark.parametrize("kind", KINDS)
def test_state_goes_on_on_one_rank(tmp_path, kind):
    losses, weights = saved(Group(), kind, str(tmp_path))
    same(resumed(Group(), kind, str(tmp_path)), (losses[3:], weights), 1e-12)


@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_state_goes_on_on_any_number_of_ranks(crew, tmp_path, ranks):
    losses, weights = crew.run(saved, "AdamW", str(tmp_path), ranks=ranks)[0]
    for others in (1, 2, 4):
        for used in ((), (7, 8)):  # by a new run, and by one that has gone on
            for found in crew.run(resumed, "AdamW", str(tmp_path), used, ranks=others):
                same(found, (losses[3:], weights), 1e-10)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "AdamW"])
def test_state_of_other_optimizers_goes_on_on_other_ranks(crew, tmp_path, kind):
    losses, weights = crew.run(saved, kind, str(tmp_path), ranks=2)[0]
    for found in crew.run(resumed, kind, str(tmp_path), ranks=4):
        same(found, (losses[3:], weights), 1e-10)


@pytest.mark.heavy
def test_masters_keep_their_digits(crew, tmp_path):
    """In bfloat16 weights are rounded masters: what was saved of the masters is what continues."""
    losses, weights = crew.run(saved, "AdamW", str(tmp_path), torch.bfloat16, ranks=2)[0]
    for found in crew.run(resumed, "AdamW", str(tmp_path), (), torch.bfloat16, ranks=2):
        same(found, (losses[3:], weights), 1e-12)


def test_a_state_dict_is_a_copy_in_the_layout_of_torch():
    run, optimizer = made(Group(), "AdamW")
    train(run, optimizer, range(2))
    state = optimizer.state_dict()
    before = copy.deepcopy(state)
    train(run, optimizer, range(2, 4))
    assert [group["params"] for group in state["param_groups"]] == [group["params"] for group in before["param_groups"]]
    assert all(torch.equal(v, before["state"][at][k]) for at, one in state["state"].items() for k, v in one.items())
    assert state["state"][0].keys() == {"master", "begun", "step", "exp_avg", "exp_avg_sq"}
    assert {tuple(one["master"].shape) for one in state["state"].values()} >= {(4, 141), (1, 36)}


@pytest.mark.heavy
def test_slices_of_another_rank_are_refused(crew, tmp_path):
    path = str(tmp_path / "state")
    crew.run(dumped, path, ranks=2)
    for said in [*crew.run(loaded_of_rank_0, path, ranks=2)[1:], loaded_of_rank_0(Group(), path)]:
        assert "the state of SymiOptimizer is from another rank or rank count" in said
        assert "torch.distributed.checkpoint" in said


def dumped(group, path):
    _, optimizer = made(group, "AdamW")
    torch.save(optimizer.state_dict(), f"{path}.{group.rank}")
    again = torch.load(f"{path}.{group.rank}")
    optimizer.load_state_dict(again)


def loaded_of_rank_0(group, path):
    _, optimizer = made(group, "AdamW")
    try:
        optimizer.load_state_dict(torch.load(f"{path}.0"))
    except CedarError as error:
        return str(error)
    return ""


def test_state_of_something_else_is_refused():
    (run, optimizer), (_, other) = made(Group(), "NAdam"), made(Group(), "SGD")
    with pytest.raises(CedarError, match="with NAdam: it lacks exp_avg, exp_avg_sq, mu_product, step"):
        optimizer.load_state_dict(other.state_dict())
    plain = torch.optim.NAdam(run.net.parameters(), lr=1e-2)
    loss_of(run, 0)[1].backward()
    plain.step()
    with pytest.raises(CedarError, match="it lacks begun, master"):
        optimizer.load_state_dict(plain.state_dict())
