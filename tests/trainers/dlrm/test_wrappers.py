"""DistributedDataParallel, FSDP and tensor parallelism around tables that ranks share out."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from cedar.core.errors import CedarError
from cedar.nn import DedupEmbeddings
from cedar.trainers.common.group import Group
from tests.trainers.dlrm.test_embeddings import COSTS, FEATURES, RATE, WIDTH, batch, expected, head

RULES = pytest.mark.parametrize("rule", [None, "sgd"])


def embeddings(group, rule, sharding="rows", **how):
    how = {"dtype": torch.float64, "costs": COSTS, "rate": RATE} | how
    return DedupEmbeddings(FEATURES, WIDTH, group, rule=rule, sharding=sharding, **how)


def wrapped(group, rule, sharding, kinds):
    """Losses over ranks of training the whole model in DDP; which rows of tables moved when it was wrapped."""
    inside = embeddings(group, rule, sharding)
    first = {name: value.clone() for name, value in inside.state().items()}
    model = DistributedDataParallel(nn.Sequential(inside, head()), process_group=group.ranks, **kinds)
    moved = [name for name, value in inside.state().items() if not torch.equal(value, first[name])]
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(5):
        loss = (model(batch(step, group.rank, group.size)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        inside.step()
        losses.append(float(group.add(loss.detach()[None], "loss")) / group.size)
    return losses, moved


@pytest.mark.heavy
@RULES
@pytest.mark.parametrize(
    ("sharding", "ranks", "kinds"),
    [
        ("rows", 2, {}),
        ("tables", 4, {"find_unused_parameters": True}),  # a rank holds none
        ("columns", 3, {"gradient_as_bucket_view": True}),
        ("auto", 2, {"static_graph": True}),
    ],
)
def test_a_whole_model_in_ddp_trains_as_one_rank(crew, rule, sharding, ranks, kinds):
    losses, _ = expected(rule)
    for found, moved in crew.run(wrapped, rule, sharding, kinds, ranks=ranks):
        assert moved == []
        assert max(abs(a - b) for a, b in zip(found, losses, strict=True)) < 1e-10


def outside(group):
    """What is made before torch.distributed begins is of one rank."""
    said, alone = [], Group()
    alone.ranks, alone.size, alone.rank = None, 1, 0
    for rule in ("sgd", None):
        try:
            model = nn.Sequential(embeddings(alone, rule), head())
            model = DistributedDataParallel(model, process_group=group.ranks)
            said.append(sorted(model.parameters_to_ignore))
        except CedarError as error:
            said.append(str(error))
    return said


def test_tables_of_one_rank_in_ddp_of_several(crew):
    for fused, plain in crew.run(outside, ranks=2):
        assert "DistributedDataParallel has 2 ranks, but the DedupEmbeddings inside has 1" in fused
        assert "after torch.distributed.init_process_group" in fused
        assert plain == []  # each rank has all rows, and DDP averages their gradients


def bare(group, rule):
    try:
        DistributedDataParallel(embeddings(group, rule), process_group=group.ranks)
    except CedarError as error:
        return str(error)


@RULES
def test_embeddings_in_ddp_by_themselves_are_refused(crew, rule):
    """torch ends the process, as its reducer of no parameters does."""
    for said in crew.run(bare, rule, ranks=2):
        assert "DistributedDataParallel has nothing to average" in said


def zero(group, rule):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    inside = embeddings(group, rule)
    model = nn.Sequential(inside, head())
    first = {name: value.clone() for name, value in inside.state().items()}
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, process_group=group.ranks, lr=RATE
    )
    model(batch(0, group.rank, group.size)).sum().backward()
    try:
        optimizer.step()
    except CedarError as error:
        return str(error), all(torch.equal(first[name], value) for name, value in inside.state().items())


@RULES
def test_an_optimizer_that_sends_parameters_to_all_ranks_is_refused(crew, rule):
    for said, kept in crew.run(zero, rule, ranks=2):
        assert "ZeroRedundancyOptimizer broadcasts parameters" in said
        assert kept


def tied(group):
    inside = embeddings(group, None)
    model = nn.Sequential(inside, head())
    model[1].tied = nn.Linear(WIDTH, 1)
    model[1].tied.weight = next(inside.parameters())
    try:
        DistributedDataParallel(model, process_group=group.ranks)
    except CedarError as error:
        return str(error)


def test_weights_that_are_tied_to_pieces_of_tables_are_refused(crew):
    for said in crew.run(tied, ranks=2):
        assert "Linear has a DedupEmbeddings table as its weight" in said


def cut_by(group, how, rule):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import distribute_module

    inside = embeddings(group, rule)
    first = {name: value.clone() for name, value in inside.state().items()}
    model = nn.Sequential(inside, head())
    mesh = DeviceMesh.from_group(group.ranks, "cpu")
    said = ""
    try:
        if how == "fully_shard":
            fully_shard(model, mesh=mesh)
        elif how == "distribute_module":
            distribute_module(model, mesh)
        else:
            FullyShardedDataParallel(model, group.ranks, device_id=torch.device("cpu"), use_orig_params=True)
    except CedarError as error:
        said = str(error)
    kept = how != "fully_shard" or all(torch.equal(first[name], value) for name, value in inside.state().items())
    return said, kept


@pytest.mark.heavy
@RULES
@pytest.mark.parametrize("how", ["fully_shard", "distribute_module", "FSDP"])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_what_would_cut_tables_is_refused(crew, how, rule):
    for said, kept in crew.run(cut_by, how, rule, ranks=2):
        assert "would shard the tables of DedupEmbeddings" in said
        assert "ignored_params=set(embeddings.parameters())" in said
        assert kept


def sharded_around(group, rule):
    """FSDP2 of everything else."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    inside = embeddings(group, rule)
    model = nn.Sequential(inside, head())
    fully_shard(model, mesh=DeviceMesh.from_group(group.ranks, "cpu"), ignored_params=set(inside.parameters()))
    optimizers = [torch.optim.SGD(part.parameters(), lr=RATE) for part in model if [*part.parameters()]]
    losses = []
    for step in range(5):
        loss = (model(batch(step, group.rank, group.size)) - 1).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        inside.step()
        losses.append(float(group.add(loss.detach()[None], "loss")) / group.size)
    return losses


@pytest.mark.heavy
@RULES
def test_fsdp_of_everything_else_trains_as_one_rank(crew, rule):
    losses, _ = expected(rule)
    for found in crew.run(sharded_around, rule, ranks=2):
        assert max(abs(a - b) for a, b in zip(found, losses, strict=True)) < 1e-10


def averaged(group, rule, sharding):
    """What an average of the model's weights predicts, over the rows of all ranks; and a copy."""
    model = nn.Sequential(embeddings(group, rule, sharding), head())
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=RATE) if rule is None and [*model[0].parameters()] else None
    for step in range(3):
        model(batch(step, group.rank, group.size)).square().mean().backward()
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()
        model[0].step()
        average.update_parameters(model)
    last = copy.deepcopy(model).eval()
    found = []
    for each in (average.eval(), last):
        total = each(batch(7, group.rank, group.size)).detach().sum()[None]
        found.append(float(group.add(total, "out")))
    return found


@RULES
@pytest.mark.parametrize("sharding", ["rows", "tables"])
def test_averages_and_copies_of_a_model_are_those_of_one_rank(crew, rule, sharding):
    wanted = averaged(Group(), rule, sharding)
    assert wanted[0] != wanted[1]
    for found in crew.run(averaged, rule, sharding, ranks=2):
        assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) < 1e-10


def on_ranks(group, what):
    """What is special on several ranks: words of a refusal, or numbers."""
    made = embeddings(group, "sgd")
    rows = batch(0, group.rank, group.size)
    if what == "checkpoint":
        weight = torch.ones((), dtype=torch.float64, requires_grad=True)
        try:
            checkpoint(lambda w: made(rows) * w, weight, use_reentrant=False).sum().backward()
        except CedarError as error:
            return str(error)
        finally:
            dist.barrier(group.ranks)
    if what == "scaler":
        before = {name: value.clone() for name, value in made.state().items()}
        factor = float("inf") if group.rank == 1 else 1.0
        (made(rows) * factor).sum().backward()
        made.step(torch.amp.GradScaler("cpu", init_scale=1.0))
        return all(torch.equal(before[name], value) for name, value in made.state().items())
    if what == "forgotten":
        made(rows).sum().backward()
        torch.optim.SGD([torch.nn.Parameter(torch.ones(()))]).step()
        try:
            made(rows)
        except CedarError as error:
            return str(error)
    half = embeddings(group, None, "tables", dtype=torch.float32).to(torch.bfloat16)
    out = half(rows)
    out.float().sum().backward()
    return str(out.dtype), float(out.detach().float().sum()), sorted({str(p.grad.dtype) for p in half.parameters()})


def test_a_lookup_that_is_repeated_in_the_backward_pass_is_refused_on_ranks(crew):
    for said in crew.run(on_ranks, "checkpoint", ranks=2):
        assert "called in a backward pass" in said
        assert "out of the torch.utils.checkpoint region" in said


def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_all(crew):
    assert crew.run(on_ranks, "scaler", ranks=2) == [True, True]


def test_ranks_without_tables_see_a_forgotten_step_too(crew):
    for said in crew.run(on_ranks, "forgotten", ranks=3):
        assert "embeddings.step() was not called" in said


def test_half_tables_and_ranks_that_hold_none_agree_on_the_dtype(crew):
    """A rank without a table read the bytes of others as float32."""
    found = crew.run(on_ranks, "half", ranks=4)
    whole = on_ranks(Group(), "half")
    assert {dtype for dtype, _, _ in found} == {whole[0]} == {"torch.bfloat16"}
    assert abs(sum(total for _, total, _ in found) - whole[1]) < 0.05
    assert {kind for _, _, kinds in found for kind in kinds} == {"torch.bfloat16"}
