"""What people do with models, DedupEmbeddings inside: each gives what torch's tables give, or is refused by name."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from cedar.core.errors import CedarError
from cedar.nn import DedupEmbeddings, Feature
from tests.trainers.dlrm.test_embeddings import FEATURES, WIDTH, Plain, batch

RATE = 0.1
KINDS = {
    "parameters": {"rule": None},
    "fused": {"rule": "sgd"},
    "fbgemm": {"rule": "sgd", "backend": "fbgemm"},
    "file": {"rule": "sgd", "fast": 300},
}


def made(kind, dtype=torch.float64, **how):
    if kind == "fbgemm":
        pytest.importorskip("fbgemm_gpu", reason="fbgemm is not installed")
        dtype = torch.float32
    return DedupEmbeddings(FEATURES, WIDTH, rate=RATE, dtype=dtype, **(KINDS[kind] | how))


class Torch(Plain):
    """Tables of torch, with the calls of ours that do nothing there."""

    def __init__(self, ours):
        first = {name: value for name, value in ours.state().items() if name.endswith(".weight")}
        super().__init__({name.removesuffix(".weight"): value for name, value in first.items()})
        self.rate = RATE

    def step(self, scaler=None):
        pass


class Model(nn.Module):
    """A head over embeddings, which may be behind something else that is called for them."""

    def __init__(self, embeddings, around=None):
        super().__init__()
        torch.manual_seed(1)
        dtype = next(embeddings.parameters(), torch.zeros((), dtype=torch.float64)).dtype
        self.embeddings, self.around = embeddings, around
        self.head = nn.Sequential(nn.Linear(len(FEATURES) * WIDTH, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, step):
        return self.of(batch(step, dedup=isinstance(self.embeddings, DedupEmbeddings)))

    def of(self, rows):
        if self.around is None:
            return self.head(self._embedded(self.scale, rows))
        return self.around(lambda scale: self.head(self._embedded(scale, rows)), self.scale)

    def _embedded(self, scale, rows):
        return self.embeddings(rows).flatten(1).to(scale.dtype) * scale


def trained(model, steps=range(5), optimizer=None, scaler=None, schedule=None, autocast=None, every=1):
    """The loss of each step; an optimizer's after ``every`` of them."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for number, step in enumerate(steps):
        with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
            out = model(step)
        loss = (out.double() - 1).square().mean() / every
        losses.append(float(loss.detach()))
        (loss if scaler is None else scaler.scale(loss)).backward()
        if (number + 1) % every:
            continue
        if scaler is None:
            optimizer.step()
            model.embeddings.step()
        else:
            scaler.step(optimizer)
            model.embeddings.step(scaler)
            scaler.update()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
            model.embeddings.rate = schedule.get_last_lr()[0]
    return losses


def alike(kind, found, wanted, within=1e-10):
    within = max(within, 1e-5 if kind == "fbgemm" else 0)
    assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) <= within
    assert len(set(wanted)) > 1 or not wanted


def both(kind, **how):
    """Two models that begin alike: with our embeddings, and with torch's."""
    ours = made(kind)
    return Model(ours, **how), Model(Torch(ours), **how)


@pytest.mark.parametrize("kind", KINDS)
def test_one_table_of_several_features_and_a_plain_loop(kind):
    ours, plain = both(kind)
    alike(kind, trained(ours), trained(plain))


@pytest.mark.parametrize("kind", KINDS)
def test_autocast(kind):
    ours, plain = both(kind)
    alike(kind, trained(ours, autocast=torch.bfloat16), trained(plain, autocast=torch.bfloat16), 1e-3)


@pytest.mark.parametrize("kind", ["parameters", "fused", "file"])
def test_grad_scaler(kind):
    ours, plain = both(kind)
    found, wanted = (trained(each, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0)) for each in (ours, plain))
    alike(kind, found, wanted)


@pytest.mark.parametrize("kind", ["parameters", "fused", "file"])
def test_grad_scaler_skips_a_step_whose_gradients_overflow(kind):
    ours, _ = both(kind)
    before = {name: value.clone() for name, value in ours.embeddings.state().items()}
    scaler = torch.amp.GradScaler("cpu", init_scale=float("inf"))
    trained(ours, steps=[0], scaler=scaler)
    assert all(torch.equal(before[name], value) for name, value in ours.embeddings.state().items())
    assert ours.embeddings.steps == (kind == "parameters")
    trained(ours, steps=[0, 1])
    assert not torch.equal(before["item.weight"], ours.embeddings.state()["item.weight"])


def test_grad_scaler_that_is_forgotten_or_too_late_is_refused():
    ours = Model(made("fused"))
    with pytest.raises(CedarError, match=r"float16 autocast.*GradScaler"):
        trained(ours, autocast=torch.float16)
    ours.embeddings.zero_grad()
    trained(ours, autocast=torch.float16, scaler=torch.amp.GradScaler("cpu", enabled=False))
    with pytest.raises(CedarError, match="fbgemm has updated the rows in the backward pass"):
        trained(Model(made("fbgemm")), scaler=torch.amp.GradScaler("cpu"))


@pytest.mark.parametrize("kind", ["parameters", "fused", "file"])
def test_gradient_accumulation(kind):
    ours, plain = both(kind)
    alike(kind, trained(ours, range(6), every=3), trained(plain, range(6), every=3))


def test_gradient_accumulation_where_rows_are_updated_at_once_is_refused():
    with pytest.raises(CedarError, match=r"fbgemm has updated the rows.*embeddings.step\(\) was not called"):
        trained(Model(made("fbgemm")), every=2)


@pytest.mark.parametrize("kind", ["fused", "fbgemm", "file"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_step_that_is_forgotten_is_an_error_in_the_next_forward(kind, optimizer):
    model = Model(made(kind))
    model.embeddings.step = lambda scaler=None: None
    with pytest.raises(CedarError, match=r"an optimizer has made a step.*embeddings.step\(\) was not called"):
        trained(model, optimizer=optimizer(model.parameters(), lr=RATE))
    model.eval()
    assert model(0).shape == (12, 1)  # a forward that trains nothing is not a step
    model.train()
    with torch.no_grad():
        model(0)
    del model.embeddings.step
    model.embeddings.step()
    trained(model)


def test_steps_of_another_models_optimizer_do_not_end_an_accumulation():
    (ours, plain), (other, _) = both("fused"), both("fused")
    found = []
    for model in (ours, plain):
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=RATE), []
        for step in range(4):
            losses += trained(model, [step, step + 4], optimizer, every=2)
            trained(model, [step], optimizer, every=2)  # a backward pass alone
            trained(other, [step])
            losses += trained(model, [step + 8], optimizer)
        found.append(losses)
    alike("fused", *found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(kind, reentrant):
    ours, plain = both(kind, around=lambda fn, scale: checkpoint(fn, scale, use_reentrant=reentrant))
    alike(kind, trained(ours), trained(plain))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch looks at it itself
@pytest.mark.parametrize("kind", KINDS)
def test_torch_compile(kind):
    ours, plain = both(kind)
    ours.of = torch.compile(ours.of, backend="eager")
    alike(kind, trained(ours), trained(plain))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["module", "parameters"])
def test_frozen_tables(kind, how):
    ours, plain = both(kind)
    for model in (ours, plain):
        if how == "module":
            model.embeddings.requires_grad_(False)
        for parameter in model.embeddings.parameters():
            parameter.requires_grad = False
    before = {name: value.clone() for name, value in ours.embeddings.state().items()}
    alike(kind, trained(ours), trained(plain))
    assert all(torch.equal(before[name], value) for name, value in ours.embeddings.state().items())
    for parameter in (*ours.embeddings.parameters(), *plain.embeddings.parameters()):
        parameter.requires_grad = True
    alike(kind, trained(ours), trained(plain))
    assert not torch.equal(before["item.weight"], ours.embeddings.state()["item.weight"])


@pytest.mark.parametrize("kind", ["parameters", "fused", "fbgemm"])
@pytest.mark.parametrize("how", ["averaged", "manually"])
def test_moving_averages(kind, how):
    found = []
    for model in both(kind):
        if how == "averaged":
            average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        else:
            average = copy.deepcopy(model)
        for step in range(4):
            trained(model, steps=[step])
            if how == "averaged":
                average.update_parameters(model)
            else:
                with torch.no_grad():
                    for own, other in zip(average.parameters(), model.parameters(), strict=True):
                        own.lerp_(other, 0.5)
        found.append(average.eval()(7).flatten().tolist())
    alike(kind, *found)


@pytest.mark.parametrize("kind", ["parameters", "fused", "fbgemm"])
def test_copies_train_by_themselves(kind):
    ours, plain = both(kind)
    trained(plain, steps=[8])
    wanted, twice = trained(copy.deepcopy(plain)), copy.deepcopy(plain)
    twice(9).sum().backward()
    wanted_twice = trained(twice)
    trained(ours, steps=[8])
    if kind != "fbgemm":  # which updates rows at once
        ours(9).sum().backward()  # copies do not take gradients along
    other, state = copy.deepcopy(ours), copy.deepcopy(ours.embeddings.state())
    alike(kind, trained(other), wanted)
    assert all(torch.equal(state[name], value) for name, value in ours.embeddings.state().items())
    alike(kind, trained(ours), wanted if kind == "fbgemm" else wanted_twice)


def test_copies_of_rows_in_a_file_are_refused():
    with pytest.raises(CedarError, match="rows are in a file cannot be copied"):
        copy.deepcopy(Model(made("file")))


@pytest.mark.parametrize("kind", ["parameters", "fused", "fbgemm"])
@pytest.mark.parametrize("rule", ["rowwise_adagrad", "adam"])
def test_moves_to_other_dtypes_keep_the_optimizer(kind, rule):
    if kind == "fbgemm":
        ours = made(kind)
        with pytest.raises(CedarError, match="fbgemm's tables are float32, not float64"):
            ours.double()
        return
    rule = rule if kind == "fused" else None
    ours, wanted = (made(kind, dtype, rule=rule) for dtype in (torch.float32, torch.float64))
    wanted.load_state_dict(ours.state_dict())
    trained(Model(ours), steps=[0])
    again = DedupEmbeddings(FEATURES, WIDTH, rule=rule, rate=RATE, dtype=torch.float64)
    again.load_state_dict(ours.state_dict())
    assert ours.double() is ours
    assert {value.dtype for value in ours.state().values()} == {torch.float64}
    alike(kind, trained(Model(ours), range(1, 5)), trained(Model(again), range(1, 5)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tables_of_one_dtype_and_models_of_another(dtype):
    for rule in (None, "sgd", "adam"):
        ours = made("fused", torch.float32, rule=rule)
        if dtype == torch.bfloat16 and rule is not None:
            with pytest.raises(
                CedarError, match="fused rules update tables of float64, float32 and float16, not bfloat16"
            ):
                ours.to(dtype)
            continue
        ours.to(dtype)
        assert ours.state()["item.weight"].dtype == dtype
        assert {value.dtype for name, value in ours.state().items() if "weight" not in name} <= {torch.float32}
        model = Model(ours)
        model.head, model.scale = model.head.float(), nn.Parameter(torch.ones(()))
        losses = trained(model, steps=[0] * 12)
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", KINDS)
def test_moves_to_other_devices_take_the_tables_along(kind):
    ours = made(kind)
    if kind == "file":
        with pytest.raises(CedarError, match="tables in a file stay float64"):
            ours.float()
        return
    assert ours.to("cpu") is ours
    trained(Model(ours))
    if kind != "fbgemm":  # which has no tables without memory
        assert {value.device.type for value in ours.to("meta").state().values()} == {"meta"}


@pytest.mark.parametrize("kind", KINDS)
def test_learning_rate_schedules(kind):
    ours, plain = both(kind)
    found = []
    for model in (ours, plain):
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        found.append(trained(model, optimizer=optimizer, schedule=StepLR(optimizer, 1, 0.5)))
    alike(kind, *found)


@pytest.mark.parametrize(
    "kind", "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop SGD".split()
)
def test_any_optimizer_of_torch_trains_tables_that_are_parameters(kind):
    make = getattr(torch.optim, kind)
    found = [trained(model, optimizer=make(model.parameters(), lr=0.01)) for model in both("parameters")]
    alike("parameters", *found)


@pytest.mark.parametrize("optimizer", ["Adam", "Adagrad", "SGD"])
def test_optimizers_leave_tables_of_fused_rules_alone(optimizer):
    ours, plain = both("fused")
    found = []
    for model in (ours, plain):
        kinds = {"lr": RATE, "weight_decay": 0.1}
        rest = getattr(torch.optim, optimizer)([*model.head.parameters(), model.scale], **kinds)
        if model is plain:
            tables = torch.optim.SGD(model.embeddings.parameters(), lr=RATE)
            rest.register_step_post_hook(lambda *_, tables=tables: tables.step() or tables.zero_grad())
        else:
            rest.add_param_group({"params": [*model.embeddings.parameters()]})
        found.append(trained(model, optimizer=rest))
    alike("fused", *found)


def test_optimizers_that_do_not_suit_say_so():
    model = Model(made("parameters"))
    with pytest.raises(RuntimeError, match="SparseAdam does not support dense gradients"):
        trained(model, optimizer=torch.optim.SparseAdam(model.parameters(), lr=RATE))
    model = Model(made("parameters"))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)

    def loss():
        optimizer.zero_grad()
        value = (model(0) - 1).square().mean()
        value.backward()
        return value.detach()

    assert float(optimizer.step(loss)) > float(loss())


def test_tables_may_have_names_of_what_modules_have():
    names = ["items", "keys", "type", "training", "a.b"]
    for rule in (None, "sgd"):
        made = DedupEmbeddings([Feature(name, 5) for name in names], 4, rule=rule)
        assert made({name: torch.tensor([1, 4]) for name in names}).shape == (2, 5, 4)
        other = DedupEmbeddings([Feature(name, 5) for name in names], 4, rule=rule, seed=1)
        other.load_state_dict(made.state_dict())
        assert all(torch.equal(value, other.state()[name]) for name, value in made.state().items())
        copy.deepcopy(made).double()


def test_weights_tied_to_another_module():
    ours = made("parameters")
    model, plain = Model(ours), Model(Torch(ours))
    for each in (model, plain):
        table = each.embeddings.tables["item"]
        forward = each.forward
        each.forward = lambda step, forward=forward, table=table: (
            forward(step) + functional.linear(torch.ones(1, WIDTH, dtype=torch.float64), table).sum()
        )
    alike("parameters", trained(model), trained(plain))
    fused = Model(made("fused"))
    block = next(iter(fused.embeddings.parameters()))
    fused.embeddings(batch(0)).sum().backward()
    block.sum().backward()
    with pytest.raises(CedarError, match="another module uses its weights"):
        fused.embeddings.step()


def test_parameters_that_others_put_there_are_the_tables():
    """What functional_call and load_state_dict(assign=True) set was ignored: lookups went to the first ones."""
    ours = made("parameters")
    twice = {name: value.detach() * 2 for name, value in ours.named_parameters()}
    expected = ours(batch(0)).detach() * 2
    assert torch.equal(torch.func.functional_call(ours, twice, (batch(0),)), expected)
    ours.load_state_dict(twice, assign=True)
    assert torch.equal(ours(batch(0)), expected)
