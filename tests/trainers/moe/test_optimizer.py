"""The optimizer in models of others: against plain torch, on ranks, saved and wrapped."""

import runpy
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from cedar.nn import SymiOptimizer, SymiOptions, router_losses, whole_state_dict
from cedar.trainers.common.group import Group
from tests.trainers.moe.toy_foreign import Net, batch
from tests.trainers.moe.toy_plain import Alone, Ours, loaded, loss_of

EXAMPLE = Path(__file__).parents[3] / "examples" / "mixtral_text.py"


def fine_tuned(group, steps=12):
    """Losses and whole weights of some steps of AdamW with clipping and decay, from loaded weights; placements seen."""
    net = loaded(group)
    optimizer = SymiOptimizer(net, SymiOptions(rate=1e-2, clip=0.5, decay=0.1))
    run, losses, replicas = Ours(net, group), [], set()
    for step in range(steps):
        loss, total = loss_of(run, step)
        total.backward()
        replicas.add(optimizer.layers[0].placement.replicas)
        assert not optimizer.step().skipped
        losses.append(run.mean(loss))
    return losses, run.whole(net), len(replicas)


@pytest.mark.heavy
def test_fine_tuning_is_that_of_torch_alone_on_any_number_of_ranks(crew):
    """From loaded weights: losses and weights in float64."""
    run = Alone(loaded())
    experts = {p for layer in (run.net.first, run.net.second) for p in layer.experts.parameters()}  # all of them decay
    decayed = [p for p in run.net.parameters() if p.dim() > 1 or p in experts]
    others = [p for p in run.net.parameters() if p.dim() <= 1 and p not in experts]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    expected = []
    for step in range(12):
        loss, total = loss_of(run, step)
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(run.net.parameters(), 0.5)
        optimizer.step()
        expected.append(run.mean(loss))
    for ranks in (1, 2, 4):
        for losses, state, placements in crew.run(fine_tuned, ranks=ranks):
            assert max(abs(one - two) for one, two in zip(losses, expected, strict=True)) < 1e-10
            assert state.keys() == run.net.state_dict().keys()
            for name, value in run.net.state_dict().items():
                assert torch.allclose(state[name], value, rtol=0, atol=1e-10), name
            assert placements > 1


def test_the_example_trains_on_ranks_as_alone(crew, shared_data):
    text = str(shared_data / "tinyshakespeare.txt")
    example = runpy.run_path(str(EXAMPLE))
    alone = example["train"](text, 6, Group(), torch.float64)
    for losses in crew.run(example_losses, text, ranks=2):
        assert max(abs(one - two) for one, two in zip(losses, alone, strict=True)) < 1e-10
    assert alone[-1] < alone[0]
    assert len(EXAMPLE.read_text().splitlines()) <= 100


def example_losses(group, text):
    return runpy.run_path(str(EXAMPLE))["train"](text, 6, group, torch.float64)


def test_state_is_complete_and_goes_on_bit_by_bit():
    net = Net(slots=8).double()
    names = set(net.state_dict())
    assert {f"first.experts.{e}.{name}" for e in range(4) for name in net.first.experts.shapes} <= names
    assert len(list(net.parameters())) == len(dict(net.named_parameters())) > 0
    assert all(bool(torch.isfinite(value).all()) for value in net.state_dict().values())
    first = [net.first.state_dict()[f"experts.{e}.0.weight"] for e in range(4)]
    assert all(not torch.equal(one, two) for one, two in pairwise(first))  # each begins in its own way

    def steps(net, optimizer, count, start=0):
        for step in range(start, start + count):
            x, y = batch(step)
            (functional.mse_loss(net(x), y) + router_losses(net)).backward()
            optimizer.step()

    optimizer = SymiOptimizer(net, SymiOptions(rate=1e-2))
    steps(net, optimizer, 3)
    saved = {name: value.clone() for name, value in net.state_dict().items()}, optimizer.state_dict()
    steps(net, optimizer, 3, 3)

    again = Net(slots=8).double()
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    again.load_state_dict(saved[0])
    assert all(torch.equal(value, saved[0][name]) for name, value in again.state_dict().items())
    resumed = SymiOptimizer(again, SymiOptions(rate=1e-2))
    resumed.load_state_dict(saved[1])
    steps(again, resumed, 3, 3)
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in again.state_dict().items())
    del saved[0]["first.experts.2.0.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.* \"first.experts.2.0.weight\""):
        again.load_state_dict(saved[0])


def partly(group, frozen):
    """The names of what three steps change in a model parts of which are frozen."""
    net = Net(group, 8 // group.size)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(not frozen(name))
    first = {name: value.clone() for name, value in whole_state_dict(net).items()}
    optimizer = SymiOptimizer(net, SymiOptions(rate=1e-2, decay=0.1))
    for step in range(3):
        x, y = (part.float() for part in batch(step, group.rank, group.size))
        (functional.mse_loss(net(x), y) + router_losses(net)).backward()
        optimizer.step()
    return {name for name, value in whole_state_dict(net).items() if not torch.equal(value, first[name])}


def first_experts(name):
    return name == "first.weights"


def all_but_experts(name):
    return "weights" not in name


def test_frozen_experts_stay_as_they_are_while_replicas_move(crew):
    """They were made parameters again, which were trained, and decayed."""
    for changed in [partly(Group(), first_experts), *crew.run(partly, first_experts, ranks=2)]:
        assert not [name for name in changed if name.startswith("first.experts.")]
        assert {"first.router.weight", "mid.weight", "second.experts.0.0.weight"} <= changed


def test_experts_are_trained_alone(crew):
    """There was no device of the other parameters to be found."""
    for changed in [partly(Group(), all_but_experts), *crew.run(partly, all_but_experts, ranks=2)]:
        assert {name.split(".")[1] for name in changed} == {"experts"}
