"""Models of other people in a pipeline: the gradients and steps of torch in one process, or a refusal by name.

Each row of the matrix is a way to build or train a model; the stages run in this process, micro-batch by micro-batch,
through the engines and the optimizer that workers use.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from cedar.core.errors import CedarError
from cedar.trainers import AdamWOptions, PipelineOptions, ResilientPipeline, RunOptions, TorchOptimizer, Workers
from cedar.trainers.common.compute import keyed
from cedar.trainers.resilient.model import AdamW, Engine, State
from cedar.trainers.resilient.process import check_fork
from cedar.trainers.resilient.schedule import Worker
from cedar.trainers.resilient.sharing import ask_process
from tests.trainers.resilient import toy_grid
from tests.trainers.resilient.toy_grid import Crew, job

WIDTH, ROWS, STEPS, RATE = 6, 8, 4, 0.05
Stages = list[Any]


class Block(nn.Module):
    """A residual block, with whatever is done to its inside."""

    def __init__(self, wrap: Callable[..., torch.Tensor] | None = None) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)
        self.wrap = wrap

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(functional.gelu(self.up(self.norm(x))))
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.inside(x) if self.wrap is None else self.wrap(self.inside, x))


class Repeated(nn.Module):
    """ALBERT: one block, several times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.block, self.times = Block(), times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.block(x)
        return x


class Autocast(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inner(x).to(x.dtype)  # type: ignore[no-any-return]


class Linked(nn.Module):
    """A head that uses a weight of another module."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight)


class Detached(nn.Module):
    """Lets no gradient through."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.map(x.detach())  # type: ignore[no-any-return]


def ends() -> tuple[nn.Module, nn.Module]:
    return nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3)


def around(*middle: nn.Module) -> Stages:
    first, last = ends()
    return [first, *middle, last]


def frozen(*which: int) -> Stages:
    stages = around(Block(), Block())
    for at in which:
        stages[at].requires_grad_(False)
    return stages


def frozen_parts() -> Stages:
    stages = [nn.Sequential(nn.Linear(5, WIDTH), Block()), Block(), nn.Sequential(Block(), nn.Linear(WIDTH, 3))]
    for name in ("0.0", "1.norm", "1.up", "2.1"):
        part = nn.ModuleList(stages).get_submodule(name)
        part.requires_grad_(False)
    return stages


def shared_norm(*where: int) -> Stages:
    norm, stages = nn.LayerNorm(WIDTH), around(Block(), Block())
    for at in where:
        stages[at] = nn.Sequential(norm, stages[at]) if at == 3 else nn.Sequential(stages[at], norm)
    return stages


def tied_ends() -> Stages:
    table = nn.Linear(WIDTH, WIDTH, bias=False)
    return [
        nn.Sequential(nn.Linear(5, WIDTH), table),
        Block(),
        nn.Sequential(Linked(table.weight), nn.Linear(WIDTH, 3)),
    ]


def mixed_ties() -> Stages:
    """A weight and a bias, under other names at the other end, next to a frozen parameter that both hold, too."""
    one, other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    other.weight, other.bias, still = one.weight, one.bias, nn.LayerNorm(WIDTH).requires_grad_(False)
    return [nn.Sequential(nn.Linear(5, WIDTH), one, still), Block(), nn.Sequential(other, still, nn.Linear(WIDTH, 3))]


def as_functions(make: Callable[[], Stages]) -> Callable[[], Stages]:
    """Stages that functions make; what they share exists before."""

    def made() -> Stages:
        stages = make()
        return [lambda stage=stage: stage for stage in stages]

    return made


def checkpointed(*, reentrant: bool) -> Block:
    return Block(lambda inside, x: checkpoint(inside, x, use_reentrant=reentrant))


def compiled(stage: nn.Module) -> Any:
    return torch.compile(stage, backend="aot_eager")


def one_norm_twice() -> nn.Module:
    norm = nn.LayerNorm(WIDTH)
    return nn.Sequential(norm, nn.Linear(WIDTH, WIDTH), norm)


def norm_of_both() -> Stages:
    norm = nn.LayerNorm(WIDTH)
    return [nn.Sequential(nn.Linear(5, WIDTH), norm), nn.Sequential(Block(), norm, nn.Linear(WIDTH, 3))]


def at_both_ends(make: Callable[[], nn.Module]) -> Stages:
    return [nn.Sequential(nn.Linear(5, WIDTH), make()), nn.Sequential(make(), nn.Linear(WIDTH, 3))]


MODELS: dict[str, Callable[[], Stages]] = {
    "plain": lambda: around(Block(), Block()),
    "one stage": lambda: [nn.Sequential(nn.Linear(5, WIDTH), Block(), nn.Linear(WIDTH, 3))],
    "autocast": lambda: [Autocast(stage) for stage in around(Block())],
    "checkpoint": lambda: around(checkpointed(reentrant=False), Block()),
    "checkpoint at both ends": lambda: at_both_ends(lambda: checkpointed(reentrant=False)),
    "reentrant checkpoint": lambda: around(Block(), checkpointed(reentrant=True)),
    "reentrant checkpoint at both ends": lambda: at_both_ends(lambda: checkpointed(reentrant=True)),
    "repeated block": lambda: around(Repeated(2), Repeated(3)),
    "repeated at both ends": lambda: at_both_ends(lambda: Repeated(2)),
    "one norm at two places": lambda: around(one_norm_twice()),
    "frozen first": lambda: frozen(0),
    "frozen first two": lambda: frozen(0, 1),
    "frozen middle": lambda: frozen(1, 2),
    "frozen last": lambda: frozen(3),
    "frozen but one": lambda: frozen(0, 2, 3),
    "frozen parts": frozen_parts,
    "stages without parameters": lambda: around(nn.GELU(), nn.Identity(), Block()),
    "a stage that detaches": lambda: around(Block(), Detached()),
    "norm of the first two": lambda: shared_norm(0, 1),
    "norm of the middle": lambda: shared_norm(1, 2),
    "norm of all": lambda: shared_norm(0, 1, 2, 3),
    "norm of three, as functions": as_functions(lambda: shared_norm(0, 2, 3)),
    "norm of both stages": norm_of_both,
    "one block as three stages": lambda: around(*[Block()] * 3),
    "tied ends": tied_ends,
    "tied ends, as functions": as_functions(tied_ends),
    "tied under other names": mixed_ties,
    "copied": lambda: copy.deepcopy(shared_norm(0, 1)),
    "copied one by one": lambda: [copy.deepcopy(stage) for stage in around(Block())],
    "moved": lambda: [stage.to(torch.float32).to("cpu").double() for stage in around(Block())],
    "weight norm": lambda: around(nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))),
}
COMPILED: dict[str, Callable[[], Stages]] = {
    "middle": lambda: around(compiled(Block()), Block()),
    "first and last": lambda: [compiled(stage) for stage in around(Block())],
    "checkpoint": lambda: around(compiled(checkpointed(reentrant=False))),
    "tied and repeated": lambda: [compiled(stage) for stage in shared_norm(0, 1, 2)],
}


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, 5, generator=draw).double(), torch.randint(0, 3, (ROWS,), generator=draw)


def pipeline(stages: Sequence[Any], **more: Any) -> ResilientPipeline:
    chosen: dict[str, Any] = {
        "optimizer": AdamWOptions(rate=RATE, schedule="constant", clip=0.0),
        "pipeline": PipelineOptions(micro_batches=2), "run": RunOptions(steps=STEPS, dtype="float64"),
    }  # fmt: skip
    return ResilientPipeline(stages, functional.cross_entropy, batch, Workers(2), batch=ROWS, **chosen | more)


def seeded(make: Callable[[], Stages]) -> Stages:
    with keyed("cpu", 0):  # threads make them at the same time
        return make()


def in_stages(built: ResilientPipeline) -> list[float]:
    """The losses, by engines: all micro-batches, gradients of what stages share summed over them, steps."""
    count, tied = len(built.stages), built.shared.stages
    engines, rule, data = [built.engine(stage) for stage in range(count)], built.rule, built.open()
    states: list[State] = [engine.initial_state for engine in engines]
    losses = []
    keys = [(replica, number) for replica in range(2) for number in range(2)]
    for step in range(STEPS):
        for engine, state in zip(engines, states, strict=True):
            engine.load(state)
            engine.reset()
        for key in keys:
            x = data.inputs(step, key)
            for engine in engines:
                x = engine.forward(step, key, x, data.targets(step, key) if engine.last else None)
        losses.append(sum(engines[-1].losses.values()) / len(keys))
        totals = [torch.zeros_like(state.master) for state in states]
        for key in keys:
            gradient = None
            for engine in reversed(engines):
                gradient = engine.backward_input(key, gradient)
        for key in reversed(keys):  # whenever there is time
            for engine, total in zip(engines, totals, strict=True):
                total += engine.backward_weight(key)
        if tied:
            size = engines[tied[0]].layout.tied
            sums = sum(totals[stage][:size] for stage in tied)
            for stage in tied:
                totals[stage][:size] = sums
        scale = rule.scale([float(total.square().sum()) for total in totals])
        states = [rule.step(*each, scale) for each in zip(states, totals, [e.layout for e in engines], strict=True)]
    return losses


def in_torch(stages: Sequence[Any]) -> list[float]:
    model, losses = nn.Sequential(*(s if isinstance(s, nn.Module) else s() for s in stages)).double(), []
    trained = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.dim() > 1]},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(STEPS):
        x, wanted = batch(step)
        loss = functional.cross_entropy(model(x), wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for p in trained:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad  # a pipeline decays what has no gradient, too
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of a reentrant checkpoint
@pytest.mark.parametrize("name", MODELS)
def test_losses_are_those_of_torch(name: str) -> None:
    near, make = 0.02 if name == "autocast" else 1e-10, MODELS[name]
    assert in_stages(pipeline(seeded(make))) == pytest.approx(in_torch(seeded(make)), abs=near)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo looks at it
@pytest.mark.parametrize("name", COMPILED)
def test_losses_of_compiled_stages_are_those_of_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # dynamo would leave its thread behind

    def losses() -> tuple[list[float], list[float]]:
        return in_stages(pipeline(seeded(COMPILED[name]))), in_torch(seeded(COMPILED[name]))

    # in a process of its own: where torch.compile comes first, torch rejects backward passes in forked processes
    found, expected = ask_process(losses, threads=1, died="compiled stages died")
    assert found == pytest.approx(expected, abs=1e-10)


def test_stages_share_by_identity_whatever_the_names() -> None:
    shared = pipeline(seeded(lambda: shared_norm(0, 3))).shared
    assert shared.stages == (0, 3)
    assert shared.names == {
        0: {"1.weight": "0.1.weight", "1.bias": "0.1.bias"}, 3: {"0.weight": "0.1.weight", "0.bias": "0.1.bias"},
    }  # fmt: skip
    assert pipeline(seeded(MODELS["plain"])).shared.stages == ()
    named = pipeline(tied_ends(), named=True).shared
    assert list(named.names[2].values()) == ["1.weight"]  # as the first of the stages says


def one_memory() -> Stages:
    stages = around(Block(), Block())
    stages[2].up.weight.data = stages[1].up.weight.data
    return stages


def other_ties() -> Stages:
    stages, one, other = around(Block(), Block()), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
    return [nn.Sequential(stages[0], one), nn.Sequential(one, other), nn.Sequential(other, stages[3])]


def half(stage: nn.Module) -> Stages:
    return around(nn.Sequential(stage, nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)))


REFUSED: dict[str, tuple[Callable[[], ResilientPipeline], str]] = {
    "one memory": (lambda: pipeline(one_memory()), r"'up.weight' of stage 1 and 'up.weight' of stage 2 are two param"),
    "other ties": (lambda: pipeline(other_ties()), r"stages 0, 1 share '1.bias'; stages 1, 2 share '1.bias'"),
    "other ties, functions": (lambda: pipeline(as_functions(other_ties)()), r"stages 0, 1 share '1.bias'; stages 1,"),
    "other values": (lambda: pipeline([nn.Linear(5, 5), nn.Linear(5, 5)], tied="weight"), "different values of it"),
    "frozen": (lambda: pipeline(frozen(0, 1, 2, 3)), "no stage has a parameter that requires a gradient"),
    "EMA": (lambda: pipeline(around(AveragedModel(Block()))), "stage 1 holds an AveragedModel"),
    "mixed dtypes": (lambda: pipeline(half(Block())), "stage 1 has parameters of torch.bfloat16 and torch.float32"),
    "meta": (lambda: pipeline(around(Block().to("meta"))), "stage 1 has no values in 'norm.weight'"),
    "lazy": (lambda: pipeline(around(nn.LazyLinear(WIDTH))), "stage 1 has not initialized 'weight' yet"),
    "float16": (lambda: pipeline(around(), run=RunOptions(dtype="float16")), "dtype is 'float16'"),
    "torch optimizer": (
        lambda: pipeline(around(), optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters())),
        "optimizer is a torch.optim.sgd.SGD",
    ),
    "amsgrad": (
        lambda: pipeline(around(), optimizer=TorchOptimizer(partial(torch.optim.Adam, amsgrad=True))),
        "Adam cannot step a pipeline: it keeps exp_avg",
    ),
    "scheduler": (
        lambda: pipeline(around(), optimizer=torch.optim.lr_scheduler.ConstantLR(
            torch.optim.SGD(nn.Linear(1, 1).parameters()))),
        "optimizer is a torch.optim.lr_scheduler.ConstantLR",
    ),
    "GradScaler": (
        lambda: pipeline(around(), optimizer=torch.amp.GradScaler("cpu")),
        "optimizer is a torch.amp.grad_scaler.GradScaler",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_trained_wrongly_is_refused_by_name(name: str) -> None:
    make, told = REFUSED[name]
    with pytest.raises((CedarError, ValueError), match=told):
        make().train(quiet=True)


def test_autocast_around_train_is_refused() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(CedarError, match=r"torch.autocast is on"):
        pipeline(around(Block())).train(quiet=True)


def test_activations_of_half_precision_are_refused() -> None:
    class Half(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.half()

    with pytest.raises(CedarError, match=r"stage 1 returned torch.float16, whose gradients would vanish"):
        in_stages(pipeline(around(Half())))


@pytest.mark.parametrize("name", ["norm of all", "frozen parts", "frozen first"])
def test_an_optimizer_of_torch_steps_all_stages(name: str) -> None:
    make = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    model, losses = nn.Sequential(*seeded(MODELS[name])).double(), []
    optimizer = make([p for p in model.parameters() if p.requires_grad])
    for step in range(STEPS):
        x, wanted = batch(step)
        loss = functional.cross_entropy(model(x), wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    built = pipeline(seeded(MODELS[name]), optimizer=TorchOptimizer(make))
    assert in_stages(built) == pytest.approx(losses, abs=1e-10)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_rate_follows_its_schedule(schedule: Any) -> None:
    chosen = AdamWOptions(rate=RATE, least=0.01, warmup=2, schedule=schedule, clip=0.0)
    rates = [chosen.rate_at(step, STEPS) for step in range(STEPS)]
    stages, losses = nn.Sequential(*seeded(MODELS["plain"])).double(), []
    bias = [p for p in stages.parameters() if p.dim() <= 1]
    groups = [{"params": [p for p in stages.parameters() if p.dim() > 1]}, {"params": bias, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[min(step, STEPS - 1)])
    for step in range(STEPS):
        x, wanted = batch(step)
        loss = functional.cross_entropy(stages(x), wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
        losses.append(float(loss.detach()))
    assert in_stages(pipeline(seeded(MODELS["plain"]), optimizer=chosen)) == pytest.approx(losses, abs=1e-10)


def test_gradients_are_clipped_by_the_norm_of_all_stages_in_which_shared_weights_count_once() -> None:
    chosen = AdamWOptions(clip=3.0)
    assert AdamW(chosen).scale([16.0, 20.0]) == 0.5


@pytest.mark.parametrize("sign", ["is_initialized", "_is_in_bad_fork"])  # here, and in a process that is forked
def test_a_process_that_has_used_cuda_forks_no_workers_for_it(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("is_initialized", "_is_in_bad_fork"):
        monkeypatch.setattr(torch.cuda, name, lambda: False)
    check_fork(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, sign, lambda: True)
    check_fork(torch.device("cpu"))
    with pytest.raises(CedarError, match="this process has used CUDA, so the workers that it forks cannot"):
        check_fork(torch.device("cuda"))


def test_a_process_forks_no_workers_that_could_not_run_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing")

    check_fork(torch.device("cpu"))
    monkeypatch.setattr("cedar.trainers.resilient.process._differentiate", refuse)
    with pytest.raises(CedarError, match="torch rejects backward passes in the workers that this process forks"):
        check_fork(torch.device("cpu"))


# ---- deaths, as threads ----------------------------------------------------------------------------------------------

DEATHS = {
    "norm of three": lambda: shared_norm(0, 2, 3),
    "norm of the first two": lambda: shared_norm(0, 1),
    "frozen": lambda: frozen(0, 2),
    "repeated": lambda: around(Repeated(2), Repeated(3)),
}


@pytest.mark.heavy
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", DEATHS)
@pytest.mark.parametrize("mode", ["sync", "staggered"])
def test_a_death_changes_no_bit(name: str, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one worker, whose work others take over, and of a whole stage, which restores alone from logs."""
    model = DEATHS[name]

    def engine(stage: int, *_: object) -> Engine:
        built = pipeline(seeded(model))
        made: Engine = built.engine(stage)
        x = built.open().inputs(0, (0, 0))
        for before in range(stage):
            x = built.module(before).double()(x).detach()
        made.find_signatures(x)
        made.load(made.initial_state)
        return made

    monkeypatch.setattr(toy_grid, "engine", engine)
    monkeypatch.setattr(toy_grid, "Tokens", lambda: pipeline(seeded(model)).open())
    tied = pipeline(seeded(model)).shared.stages
    run = job(stages=4, replicas=2, micro_batches=2, tied=tied, mode=mode, replay=True)
    whole = Crew(run, every=2).run()
    one = Crew(run, {Worker(1, 1): (2, 4)}, rejoin=True, every=2)
    stage = Crew(run, {Worker(0, 0): (3, 3), Worker(0, 1): (3, 5)}, every=2)
    assert one.run() == whole
    assert stage.run() == whole
    assert stage.restores[-1] == "replay"
