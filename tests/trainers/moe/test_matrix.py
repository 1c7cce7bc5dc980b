"""What people do around a model with ``SymiMoE`` in it: each recipe trains as it does by torch alone, or is refused."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from cedar.core.errors import CedarError
from cedar.nn import SymiOptimizer
from cedar.trainers.common.group import Group
from tests.trainers.moe.toy_plain import Alone, Deep, Ours, loaded, loss_of, train


def steps(run):
    return train(run, run.optimizer(lr=1e-2), range(6)), run.net


def autocast(run):
    optimizer, losses = run.optimizer(lr=1e-2), []
    for step in range(6):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, total = loss_of(run, step)
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(run.mean(loss))
    return losses, run.net


def grad_scaler(run):
    """One step overflows on one rank: all skip it, and halve the scale."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    optimizer, losses = run.optimizer(lr=1e-2), []
    many = run.size > 1
    scaler = (
        ShardedGradScaler("cpu", 1024.0, process_group=run.group.ranks) if many else torch.GradScaler("cpu", 1024.0)
    )
    for step in range(6):
        optimizer.zero_grad()
        loss, total = loss_of(run, step)
        scaler.scale(total).backward()
        if step == 2 and run.first:
            run.net.mid.weight.grad[0, 0] = float("inf")
        if many or step % 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        losses.append(run.mean(loss))
    assert scaler.get_scale() == 512.0
    return losses, run.net


def accumulation(run):
    optimizer, losses = run.optimizer(lr=1e-2), []
    for step in range(4):
        for micro in range(3):
            loss, total = loss_of(run, 3 * step + micro)
            (total / 3).backward()
            losses.append(run.mean(loss))
        optimizer.step()
        optimizer.zero_grad()
    return losses, run.net


def checkpointing(reentrant):
    def recipe(run):
        run.net.reentrant = reentrant if isinstance(run, Ours) else None
        losses, net = accumulation(run)
        run.net.reentrant = None
        return losses, net

    return recipe


def summed_before_backward(run):
    """Two forwards, one backward: checkpoints are computed again from the last to the first."""
    run.net.reentrant = True if isinstance(run, Ours) else None
    optimizer, losses = run.optimizer(lr=1e-2), []
    for step in range(3):
        parts = [loss_of(run, 2 * step + micro) for micro in range(2)]
        (parts[0][1] + 3 * parts[1][1]).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses += [run.mean(loss) for loss, _ in parts]
    run.net.reentrant = None
    return losses, run.net


def compiled(run):
    optimizer = run.optimizer(lr=1e-2)
    return train(
        run, optimizer, range(4), torch.compile(run.net, backend="eager") if isinstance(run, Ours) else None
    ), (run.net)


def frozen(parts):
    """Some parts are frozen, and thawed after three steps."""

    def recipe(run):
        layers = (run.net.first, run.net.second)
        chosen = {
            "routers": [p for layer in layers for p in layer.router.parameters()],
            "experts": [p for layer in layers for p in run.experts(layer)],
            "first": [*run.experts(run.net.first), *run.net.first.router.parameters(), *run.net.enter.parameters()],
            "maps": [p for part in (run.net.enter, run.net.mid, run.net.leave) for p in part.parameters()],
        }[parts]
        for p in chosen:
            p.requires_grad_(False)
        kept = [p for p in run.net.parameters() if p.requires_grad or parts == "experts"]
        if isinstance(run, Ours) and parts == "first":
            kept += run.experts(run.net.first)
        optimizer = run.optimizer(params=[{"params": kept}], lr=1e-2, weight_decay=0.1)
        losses = train(run, optimizer, range(3))
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        thawed = [*run.net.parameters()]  # experts may be other leaves by now
        for p in thawed:
            p.requires_grad_(True)
        late = [p for p in thawed if id(p) not in held]
        if late:
            optimizer.add_param_group({"params": late})
        return losses + train(run, optimizer, range(3, 6)), run.net

    return recipe


def average(run):
    """An exponential moving average, whose experts move with those of the model."""
    average = AveragedModel(run.net, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    optimizer, losses = run.optimizer(lr=1e-2), []
    for step in range(6):
        losses += train(run, optimizer, [step])
        average.update_parameters(run.net)
    return losses, average.module


def average_made_later(run):
    """Of buffers too, made once placements have moved, by torch's default of equal weights."""
    optimizer = run.optimizer(lr=1e-2)
    losses = train(run, optimizer, range(2))
    average = AveragedModel(run.net, use_buffers=True)
    for step in range(2, 6):
        losses += train(run, optimizer, [step])
        average.update_parameters(run.net)
    with torch.no_grad():
        losses.append(run.mean(average(run.batch(9)[0]).square().mean()))
    return losses, average.module


def trained_copy(run):
    """A copy goes its own way once an optimizer trains it."""
    losses = train(run, run.optimizer(lr=1e-2), range(2))
    run.net = copy.deepcopy(run.net)
    return losses + train(run, run.optimizer(lr=2e-2), range(2, 5)), run.net


def tied(run):
    return train(run, run.optimizer(lr=1e-2, weight_decay=0.0), range(6)), run.net


def moved(run):
    """The model becomes float32 and float64 again, in the middle of it."""
    optimizer = run.optimizer(torch.optim.SGD, lr=1e-1)
    losses = train(run, optimizer, range(2))
    run.net.float()
    losses += train(run, optimizer, range(2, 4))
    run.net.double()
    return losses + train(run, optimizer, range(4, 6)), run.net


def changed(run):
    """Weights are changed in place, by ``.data``, and loaded, between steps."""
    optimizer = run.optimizer(lr=1e-2)
    before = copy.deepcopy(run.whole(run.net))
    losses = train(run, optimizer, range(2))
    with torch.no_grad():
        for p in run.experts(run.net.first):
            p.mul_(0.5)
    run.net.mid.weight.data[2, 3] += 1
    for p in run.experts(run.net.second):
        p.data.add_(0.01)
    losses += train(run, optimizer, range(2, 4))
    run.net.load_state_dict(before)
    losses += train(run, optimizer, range(4, 6))
    run.net.load_state_dict(before)
    losses += train(run, optimizer, [6])
    if isinstance(run, Ours):  # in torch's optimizers other parameters are not trained
        run.net.load_state_dict({name: value.clone() for name, value in before.items()}, assign=True)
    else:
        run.net.load_state_dict(before)
    return losses + train(run, optimizer, range(7, 9)), run.net


def closure(run):
    optimizer, losses = run.optimizer(torch.optim.SGD, lr=1e-1), []

    def computed():
        optimizer.zero_grad()
        loss, total = loss_of(run, len(losses))
        total.backward()
        return loss

    for _ in range(4):
        losses.append(run.mean(optimizer.step(computed)))
    return losses, run.net


def hooks(run):
    """Of the optimizer, and of parameters."""
    optimizer, seen = run.optimizer(lr=1e-2), []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    run.net.mid.weight.register_hook(lambda gradient: gradient * 2)
    losses = train(run, optimizer, range(3))
    assert seen == ["before", "after"] * 3
    return losses, run.net


def groups(run):
    """Learning their own rates for routers, experts and the rest."""
    layers = (run.net.first, run.net.second)
    experts = [p for layer in layers for p in run.experts(layer)]
    routers = [p for layer in layers for p in layer.router.parameters()]
    named = {id(p) for p in experts + routers}
    rest = [p for p in run.net.parameters() if id(p) not in named]
    chosen = [{"params": experts, "lr": 1e-3}, {"params": routers, "lr": 0.0}, {"params": rest, "weight_decay": 0.2}]
    optimizer = run.optimizer(params=chosen, lr=1e-2, weight_decay=0.0)
    schedule = lr_scheduler.StepLR(optimizer, 2, 0.5)
    losses = []
    for step in range(6):
        losses += train(run, optimizer, [step])
        schedule.step()
    return losses, run.net


def scheduled(make):
    def recipe(run):
        optimizer = run.optimizer(lr=1e-2)
        schedule, losses = make(optimizer), []
        for step in range(8):
            losses += train(run, optimizer, [step])
            schedule.step(*([losses[-1]] if isinstance(schedule, lr_scheduler.ReduceLROnPlateau) else []))
        return losses, run.net

    return recipe


def optimized(kind, **settings):
    def recipe(run):
        return train(run, run.optimizer(kind, **settings), range(6)), run.net

    return recipe


def tie(net):
    net.leave.weight = net.enter.weight
    net.second = net.first


def widen(net):
    net.mid.float()


O = torch.optim  # noqa: E741
EXACT = {
    "steps": steps, "gradient accumulation": accumulation, "GradScaler": grad_scaler,
    "activation checkpointing": checkpointing(False), "reentrant checkpointing": checkpointing(True),
    "reentrant checkpointing, one backward": summed_before_backward, "frozen routers": frozen("routers"),
    "frozen experts": frozen("experts"), "frozen first mixture": frozen("first"), "frozen maps": frozen("maps"),
    "EMA": average, "AveragedModel, later": average_made_later, "trained copy": trained_copy, "tied": tied,
    "changed weights": changed, "closure": closure, "hooks": hooks, "groups": groups,
    "LambdaLR": scheduled(lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step))),
    "OneCycleLR": scheduled(lambda o: lr_scheduler.OneCycleLR(o, 0.02, total_steps=10)),
    "CosineAnnealingLR": scheduled(lambda o: lr_scheduler.CosineAnnealingLR(o, 5)),
    "SequentialLR": scheduled(lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.8)], [3])),
    "ReduceLROnPlateau": scheduled(lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.5)),
    "SGD": optimized(O.SGD, lr=0.1), "SGD, momentum": optimized(O.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "SGD, dampening": optimized(O.SGD, lr=0.1, momentum=0.9, dampening=0.5),
    "Adam": optimized(O.Adam, lr=1e-2, amsgrad=True), "AdamW, foreach": optimized(O.AdamW, lr=1e-2, foreach=True),
    "AdamW, fused": optimized(O.AdamW, lr=1e-2, fused=True), "NAdam": optimized(O.NAdam, lr=1e-2),
    "RAdam": optimized(O.RAdam, lr=1e-2), "Adamax": optimized(O.Adamax, lr=1e-2), "ASGD": optimized(O.ASGD, lr=1e-2),
    "Adagrad": optimized(O.Adagrad, lr=1e-2, initial_accumulator_value=0.1), "Rprop": optimized(O.Rprop, lr=1e-3),
    "Adadelta": optimized(O.Adadelta), "RMSprop": optimized(O.RMSprop, lr=1e-3, centered=True, momentum=0.5),
}  # fmt: skip
NEAR = {"autocast": (autocast, 0.05), "mixed dtypes": (steps, 1e-5), "to": (moved, 1e-5), "compile": (compiled, 1e-10)}
RECIPES = {name: (recipe, 1e-10) for name, recipe in EXACT.items()} | NEAR
CHANGES = {"tied": tie, "mixed dtypes": widen}


def dtype_of(name):
    return torch.float32 if name == "autocast" else torch.float64


def ours(group, name):
    """Losses and whole weights of a recipe on the ranks of a group."""
    run = Ours(loaded(group, dtype_of(name), CHANGES.get(name)), group)
    losses, net = RECIPES[name][0](run)
    return losses, run.whole(net)


def compared(name, answers):
    recipe, most = RECIPES[name]
    run = Alone(loaded(None, dtype_of(name), CHANGES.get(name)))
    losses, net = recipe(run)
    expected = run.whole(net)
    assert len(set(losses)) > 1
    for found, weights in answers:
        assert max(abs(one - two) for one, two in zip(found, losses, strict=True)) < most
        assert weights.keys() == expected.keys()
        for key, value in expected.items():
            assert weights[key].dtype == value.dtype
            assert torch.allclose(weights[key], value, rtol=0, atol=most), key


FAST = (
    "steps", "GradScaler", "reentrant checkpointing", "frozen experts", "EMA", "changed weights", "SGD", "OneCycleLR"
)  # fmt: skip
TRACES = "ignore:The .grad attribute of a Tensor that is not a leaf"  # of torch, while it compiles


@pytest.mark.filterwarnings(TRACES)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.heavy) for n in RECIPES])
def test_a_recipe_trains_as_by_torch_alone(name):
    compared(name, [ours(Group(), name)])


@pytest.mark.heavy
@pytest.mark.filterwarnings(TRACES)
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_on_ranks_as_by_torch_alone(crew, name):
    compared(name, crew.run(ours, name, ranks=2))


# ---- what is refused, by name ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (O.LBFGS, "LBFGS cannot work on slices of weights"), (O.Adafactor, "Adafactor cannot work on slices"),
        (O.SparseAdam, "SparseAdam cannot work on slices"), (O.Muon, "Muon cannot work on slices"),
    ],
)  # fmt: skip
def test_optimizers_of_whole_tensors_are_refused(kind, said):
    with pytest.raises(CedarError, match=said):
        SymiOptimizer(Deep(), optimizer_class=kind)


def of_norms(params, lr=0.1):
    """An optimizer of another process, which divides by the norm of a tensor."""

    class Normalized(O.Optimizer):
        def step(self):
            for p in (p for group in self.param_groups for p in group["params"]):
                p.data -= self.param_groups[0]["lr"] * p.grad / p.grad.norm()

    return Normalized(params, {"lr": lr})


def complex_part(net):
    net.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))


def without_experts(net):
    return {"params": [{"params": net.mid.parameters()}]}


@pytest.mark.parametrize(
    ("change", "settings", "said"),
    [
        (None, lambda net: {"optimizer_class": of_norms}, "of_norms cannot work on slices of weights"),
        (complex_part, lambda net: {}, "does not support complex parameters"),
        (None, without_experts, "params leaves out the experts of experts0, experts1"),
    ],
)
def test_what_cannot_be_spread_is_refused(change, settings, said):
    net = Deep()
    if change:
        change(net)
    with pytest.raises(CedarError, match=said):
        SymiOptimizer(net, **settings(net))


def test_a_model_without_mixtures_is_refused():
    with pytest.raises(CedarError, match="the model has no SymiMoE"):
        SymiOptimizer(nn.Linear(2, 2))


def test_a_parameter_that_was_thawed_behind_its_back_is_refused():
    net = Deep()
    net.mid.weight.requires_grad_(False)
    run = Ours(net, Group())
    optimizer = run.optimizer()
    train(run, optimizer, range(2))
    net.mid.weight.requires_grad_(True)
    with pytest.raises(CedarError, match="mid.weight got a gradient, but SymiOptimizer does not train it"):
        train(run, optimizer, [2])
    optimizer.add_param_group({"params": [net.mid.weight]})
    before = net.mid.weight.clone()
    train(run, optimizer, [2])
    assert not torch.equal(net.mid.weight, before)


def test_an_optimizer_is_not_copied():
    with pytest.raises(CedarError, match="copy the model, and create an optimizer for the copy"):
        copy.deepcopy(SymiOptimizer(Deep()))


def wrapped(group):
    """What is said to each wrapper, around the model before the optimizer is created, or after."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    def ddp(net):
        return DistributedDataParallel(net, process_group=group.ranks)

    def fsdp(net):
        mesh = DeviceMesh.from_group(group.ranks, "cpu")
        return fully_shard(net, mesh=mesh)

    def forward(net):
        net(torch.randn(4, 6))

    said = []
    for wrap in (ddp, fsdp):
        for late in (False, True):
            net = Deep(group)
            try:
                if late:
                    optimizer = SymiOptimizer(net)
                    net = wrap(net)
                    if wrap is ddp:
                        forward(net)
                    optimizer.step()
                else:
                    SymiOptimizer(wrap(net))
            except CedarError as error:
                said.append(str(error))
    return said


@pytest.mark.heavy
def test_wrappers_that_take_experts_for_alike_are_refused(crew):
    for said in crew.run(wrapped, ranks=2):
        assert [line.split(",")[0].removeprefix("the model is wrapped in ") for line in said] == [
            *["DistributedDataParallel"] * 2, *["FSDP"] * 2
        ]  # fmt: skip


def unlike_scales(group):
    """A gradient is infinite on the last rank alone, and torch's GradScaler of each rank sees its own."""
    run = Ours(loaded(group), group)
    optimizer, scaler = run.optimizer(lr=1e-2), torch.GradScaler("cpu", 16.0)
    _, total = loss_of(run, 0)
    scaler.scale(total).backward()
    if group.rank == 1:
        run.net.mid.weight.grad[0, 0] = float("inf")
    before = run.net.mid.weight.clone()
    with pytest.raises(CedarError) as error:
        scaler.step(optimizer)
    assert torch.equal(run.net.mid.weight, before)
    return str(error.value)


def lonely_average(group):
    run = Ours(loaded(group), group)
    optimizer = run.optimizer(lr=1e-2)
    average = AveragedModel(run.net) if group.rank == 0 else None
    with pytest.raises(CedarError) as error:
        train(run, optimizer, [0])
    del average
    train(run, optimizer, range(3))
    return str(error.value)


@pytest.mark.heavy
def test_ranks_that_do_different_things_are_told_so(crew):
    for said in crew.run(unlike_scales, ranks=2):
        assert "GradScaler found infinite gradients on ranks [1] only" in said
        assert "ShardedGradScaler" in said
    for said in crew.run(lonely_average, ranks=2):
        assert "ranks disagree: [1] differ from rank 0 in copies of the model" in said
