"""The embeddings in models of others: against plain torch, however tables are spread and rows deduplicated."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from cedar import InverseKeyedJaggedTensor, JaggedTensor
from cedar.core.errors import CedarError
from cedar.nn import DedupEmbeddings, Feature
from cedar.trainers.common.group import Group

FEATURES = [
    Feature("item", 11), Feature("hist", 11, table="item", pooling="mean"), Feature("tags", 7), Feature("acts", 3),
]  # fmt: skip
RATE, WIDTH = 0.05, 4
WIDE = [replace(feature, width={"item": 6, "acts": 2}.get(feature.home, 0)) for feature in FEATURES]


def batch(step, rank=0, ranks=1, dedup=True):
    """Twelve rows: ids, lists of a group that repeats, their own lists."""
    draw = torch.Generator().manual_seed(step)
    lists = [torch.randint(0, 11, (n,), generator=draw) for n in (3, 0, 2, 1)]
    acts = [torch.randint(0, 3, (len(one),), generator=draw) for one in lists]
    inverse = torch.sort(torch.randint(0, 4, (12,), generator=draw)).values
    tags = [torch.randint(0, 7, (int(n),), generator=draw) for n in torch.randint(0, 4, (12,), generator=draw)]
    rows = range(rank * 12 // ranks, (rank + 1) * 12 // ranks)
    mine = inverse[rows.start : rows.stop]
    used, own = torch.unique(mine, return_inverse=True)
    jagged = lambda parts: JaggedTensor(
        torch.cat([*parts, torch.zeros(0, dtype=torch.int64)]), torch.tensor([0, *map(len, parts)]).cumsum(0)
    )
    found = {
        "item": torch.randint(0, 11, (12,), generator=draw)[rows.start : rows.stop],
        "tags": jagged([tags[r] for r in rows]),
    }
    if not dedup:
        return found | {"hist": jagged([lists[u] for u in mine]), "acts": jagged([acts[u] for u in mine])}
    held = {"hist": jagged([lists[u] for u in used]), "acts": jagged([acts[u] for u in used])}
    values, offsets = ({key: getattr(one, what) for key, one in held.items()} for what in ("values", "offsets"))
    group = InverseKeyedJaggedTensor(("hist", "acts"), values, offsets, own.int())
    return found | {"hist": group, "acts": group}


class Plain(nn.Module):
    """The same by torch alone."""

    def __init__(self, first):
        super().__init__()
        self.tables = nn.ParameterDict({name: nn.Parameter(value.clone()) for name, value in first.items()})

    def forward(self, batch):
        parts = []
        for feature in FEATURES:
            column, table = batch[feature.column], self.tables[feature.home]
            if isinstance(column, torch.Tensor):
                parts.append(table[column])
            else:
                parts.append(nn.functional.embedding_bag(
                    column.values, table, column.offsets, mode=feature.pooling, include_last_offset=True
                ))  # fmt: skip
        return torch.cat(parts, 1)


def head(features=FEATURES):
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(sum(one.width or WIDTH for one in features), 1)).double()


def trained(group, how, dedup=True, steps=5):
    """Losses over all ranks, and the parts of whole tables that this rank holds."""
    how = {"features": FEATURES, "width": WIDTH, "dtype": torch.float64, "costs": COSTS, "rate": RATE} | how
    made, top = DedupEmbeddings(group=group, **how), head(how["features"])
    fused = how.get("rule", "rowwise_adagrad") is not None
    optimizer = torch.optim.SGD([*top.parameters(), *([] if fused else made.parameters())], lr=RATE)
    losses = []
    for step in range(steps):
        out = top(made(batch(step, group.rank, group.size, dedup)))
        loss = (out - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in top.parameters():
            parameter.grad = group.add(parameter.grad, "dense") / group.size
        optimizer.step()
        made.step()
        losses.append(float(group.add(loss.detach()[None], "loss")) / group.size)
    tables = [(name, part.start, part.tensor.clone()) for name, part in made.saved().items()]
    return losses, tables, sorted(made.state_dict())


COSTS = {"item": 9.0, "tags": 2.0, "acts": 1.0}


def expected(rule, steps=5, features=FEATURES):
    first = {name: value for name, _, value in trained(Group(), {"rule": rule, "features": features}, steps=0)[1]}
    plain, top = (
        Plain({name.removesuffix(".weight"): v for name, v in first.items() if name.endswith(".weight")}),
        head(features),
    )
    optimizer = torch.optim.SGD([*plain.parameters(), *top.parameters()], lr=RATE)
    losses = []
    for step in range(steps):
        loss = (top(plain(batch(step, dedup=False))) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, {f"{name}.weight": value.detach() for name, value in plain.tables.items()}


@pytest.mark.heavy
@pytest.mark.parametrize("rule", ["sgd", None])
@pytest.mark.parametrize("sharding", ["tables", "rows", "columns", "auto"])
@pytest.mark.parametrize("features", [FEATURES, WIDE], ids=["one width", "widths"])
def test_however_tables_are_spread_training_is_that_of_torch(crew, rule, sharding, features):
    losses, tables = expected(rule, features=features)
    how = {"rule": rule, "sharding": sharding, "features": features}
    runs = [
        [trained(Group(), how)],
        [trained(Group(), how, dedup=False)],
        crew.run(trained, how, ranks=2),
        crew.run(trained, how, ranks=3),
    ]
    for ranks in runs[: 4 if sharding != "tables" else 3]:
        seen = {name: torch.zeros_like(value) for name, value in tables.items()}
        for found, parts, _ in ranks:
            assert max(abs(a - b) for a, b in zip(found, losses, strict=True)) < 1e-10
            for name, start, value in parts:
                (row, column), shape = start, value.shape
                seen[name][row : row + shape[0], column : column + shape[1]] += value
        for name, value in tables.items():
            assert torch.allclose(seen[name], value, atol=1e-10), name


def test_tables_have_the_widths_that_features_say():
    made = DedupEmbeddings(WIDE, WIDTH)
    assert {name: tuple(value.shape) for name, value in made.state_dict().items() if name.endswith("weight")} == {
        "item.weight": (11, 6), "tags.weight": (7, 4), "acts.weight": (3, 2),
    }  # fmt: skip
    assert made(batch(0)).shape == (12, 6 + 6 + 4 + 2)
    with pytest.raises(CedarError, match="table 'item' has widths 6 and 4"):
        DedupEmbeddings([WIDE[0], FEATURES[1]], WIDTH)
    with pytest.raises(ValueError, match="width of 'item' is -1"):
        Feature("item", 3, width=-1)


def test_tables_that_a_solver_has_placed_train_alike(crew):
    pytest.importorskip("ortools")
    losses, _ = expected("sgd")
    found = crew.run(trained, {"rule": "sgd", "planner": "milp"}, ranks=2)
    assert [sorted(names) for _, _, names in found] == [
        ["item.weight", "steps"],
        ["acts.weight", "steps", "tags.weight"],
    ]
    for own, _, _ in found:
        assert max(abs(a - b) for a, b in zip(own, losses, strict=True)) < 1e-10


@pytest.mark.parametrize(("rule", "sharding"), [("rowwise_adagrad", "rows"), ("adam", "columns"), ("adam", "rows")])
def test_fused_rules_are_the_same_on_pieces(crew, rule, sharding):
    how = {"rule": rule, "sharding": sharding}
    losses, parts, names = trained(Group(), how)
    whole = {name: value for name, _, value in parts}
    for found, pieces, _ in crew.run(trained, how, ranks=2):
        assert max(abs(a - b) for a, b in zip(found, losses, strict=True)) < 1e-10
        for name, start, value in pieces:
            cut = tuple(slice(at, at + n) for at, n in zip(start, value.shape, strict=True))
            assert torch.allclose(whole[name][cut], value, atol=1e-10), name
    assert "item.weight" in names


def test_what_cannot_be_spread_is_told(crew):
    for said in crew.run(refused, ranks=2):
        assert "rowwise_adagrad needs all columns of a row on one rank, but 'item' is sharded by columns" in said
    sequence = DedupEmbeddings([Feature("hist", 11, pooling="attention")], WIDTH)
    with pytest.raises(CedarError, match="'hist' is a sequence, which rows\\(\\) looks up"):
        sequence({"hist": torch.tensor([1])})


def refused(group):
    try:
        DedupEmbeddings(FEATURES, WIDTH, group, sharding="columns")
    except CedarError as error:
        return str(error)


@pytest.mark.parametrize("rule", ["adam", "rowwise_adagrad", None])
def test_state_is_complete_and_goes_on_bit_by_bit(rule):
    def steps(made, top, count, start):
        for step in range(start, start + count):
            (top(made(batch(step))) - 1).square().mean().backward()
            made.step()

    made, top = DedupEmbeddings(FEATURES, WIDTH, rule=rule, seed=1, dtype=torch.float64), head()
    steps(made, top, 2, 0)
    saved = {name: value.clone() for name, value in made.state_dict().items()}
    steps(made, top, 2, 2)
    again = DedupEmbeddings(FEATURES, WIDTH, rule=rule, seed=2, dtype=torch.float64)
    again.load_state_dict(saved)
    steps(again, top, 2, 2)
    assert all(torch.equal(value, made.state_dict()[name]) for name, value in again.state_dict().items())
    gone = next(name for name in saved if "item" in name)
    with pytest.raises(RuntimeError, match="Missing key"):
        again.load_state_dict({name: value for name, value in saved.items() if name != gone})


@pytest.mark.parametrize("rule", ["adam", "rowwise_adagrad", "sgd"])
@pytest.mark.parametrize("zero_first", [True, False])
def test_a_step_that_is_skipped_leaves_no_trace(rule, zero_first):
    """The next step took its gradients, and one that was no number stayed in the rows."""
    states = []
    for skips in (True, False):
        made = DedupEmbeddings(FEATURES, WIDTH, rule=rule, rate=0.1, seed=1, dtype=torch.float64)
        if skips:
            (made(batch(9)).sum() * torch.nan).backward()
            if zero_first:
                made.zero_grad()
        made.rate = 0.2
        loss = made(batch(0)).square().sum()
        if not zero_first:
            made.zero_grad()  # between the passes, as many loops have it
        loss.backward()
        made(batch(1)).square().sum().backward()
        made.step()
        states.append(made.state_dict())
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())


@pytest.mark.parametrize(
    "wrong",
    [{"rule": "adagrad"}, {"backend": "cuda"}, {"planner": "best"}, {"sharding": "row"}, {"sharding": {"tags": "row"}}],
)
def test_an_unknown_word_is_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is '.*': give one of"):
        DedupEmbeddings(FEATURES, WIDTH, **wrong)
