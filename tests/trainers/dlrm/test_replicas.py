"""Rows on every rank: updated as those of one table, bit by bit, and sent as often as their price says."""

import copy

import pytest
import torch

from cedar import JaggedTensor
from cedar.core.errors import CedarError
from cedar.nn import DedupEmbeddings, Feature, frequencies
from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.hot import Exchange, Frequency
from cedar.trainers.dlrm.inputs import read_batch
from cedar.trainers.dlrm.sharding import GRADIENTS, ROWS
from tests.trainers.dlrm.test_embeddings import batch

SEQUENCES = [
    Feature("item", 11, pooling="attention"), Feature("hist", 11, table="item", pooling="attention"),
    Feature("tags", 7),
]  # fmt: skip
WEIGHT = torch.arange(1, 3, dtype=torch.float64)


def made_of(group, how):
    found = frequencies([batch(step, dedup=False) for step in range(3)], SEQUENCES, group.size)
    how = {"dtype": torch.float64, "frequencies": found, "mean": False, "rate": 2**-4} | how
    return DedupEmbeddings(SEQUENCES, 2, group, **how)


def went(made, first, last):
    losses = []
    for step in range(first, last):
        inputs = read_batch(batch(step, made.group.rank, made.group.size, dedup=False), SEQUENCES, [], None)
        loss = sum((rows * WEIGHT).square().sum() / 64 for rows in made.rows(inputs))
        loss.backward()
        made.step()
        losses.append(float(made.group.add(loss.detach()[None], "loss")))
    return losses


def sequences(group, how, whole=True):
    """Losses, the parts of tables, the rows that every rank has, and the plan's words; ``whole``: of integers,
    whose sums are exact, so that their order cannot be seen."""
    made = made_of(group, how)
    for name, part in made.saved().items():
        if whole and name.endswith("weight"):
            first = 2 * part.start[0] if part.start else 0
            part.tensor.copy_(torch.arange(first, first + part.tensor.numel()).view_as(part.tensor))
    losses = went(made, 0, 3)
    copies = {name: value.clone() for store in made.replicas.values() for name, value in store.state().items()}
    parts = [(name, part.start, part.tensor.clone()) for name, part in made.saved().items()]
    return losses, parts, copies, made.notes


def stopped(group, how):
    """Whether a module with another's state continues as that one, whose state one rank looks at alone."""
    made = made_of(group, how)
    went(made, 0, 2)
    saved = {name: value.clone() for name, value in made.state_dict().items()}
    losses = went(made, 2, 3)
    if group.rank == 1:
        made.state_dict()
    losses += went(made, 3, 4)
    again = made_of(group, how | {"seed": 5})
    went(again, 0, 1)
    again.load_state_dict(saved)
    own = made.state_dict()
    return losses == went(again, 2, 4) and all(torch.equal(own[n], value) for n, value in again.state_dict().items())


def skipped(group, how):
    """Whether a step that is skipped leaves no trace."""
    states = []
    for skips in (True, False):
        made = made_of(group, how)
        if skips:
            inputs = read_batch(batch(9, group.rank, group.size, dedup=False), SEQUENCES, [], None)
            (sum(rows.sum() for rows in made.rows(inputs)) * torch.nan).backward()
            made.zero_grad()
        went(made, 0, 2)
        states.append(made.state_dict())
    return all(torch.equal(states[0][name], value) for name, value in states[1].items())


def joined(runs):
    """Whole tables from the parts of ranks."""
    found = {}
    for _, parts, *_ in runs:
        for name, start, value in parts:
            found.setdefault(name, []).append(((start or (0,))[0], value))
    return {name: torch.cat([v for _, v in sorted(held, key=lambda one: one[0])]) for name, held in found.items()}


def by_torch():
    """The same by torch alone, on whole tables."""
    tables = {
        n: torch.arange(rows * 2).double().view(rows, 2).requires_grad_() for n, rows in (("item", 11), ("tags", 7))
    }
    losses = []
    for step in range(3):
        one = batch(step, dedup=False)
        tags = torch.stack(
            [tables["tags"][ids].sum(0) for ids in one["tags"].values.split(one["tags"].offsets.diff().tolist())]
        )
        rows = [tables["item"][one["item"]], tables["item"][one["hist"].values], tags]
        loss = sum((each * WEIGHT).square().sum() / 64 for each in rows)
        gradients = torch.autograd.grad(loss, list(tables.values()))
        with torch.no_grad():
            for table, gradient in zip(tables.values(), gradients, strict=True):
                table -= gradient / 16
        losses.append(float(loss.detach()))
    return losses, tables


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("more", [{}, {"fast": 150}], ids=["in memory", "in tiers"])
def test_rows_on_every_rank_are_updated_as_one_table_bit_by_bit(crew, ranks, more, tmp_path):
    losses, tables = by_torch()
    runs = crew.run(sequences, {"rule": "sgd", "sharding": "hot", "slow": str(tmp_path)} | more, ranks=ranks)
    found = joined(runs)
    for own, _, copies, notes in runs:
        assert own == losses
        assert 0 < len(copies["item.weight"]) < 11
        assert torch.equal(copies["item.weight"], runs[0][2]["item.weight"])
        assert any("item: " in note and "rows on every rank" in note for note in notes)
    assert all(torch.equal(found[f"{name}.weight"], value) for name, value in tables.items())


def test_a_step_that_is_skipped_leaves_no_trace_on_any_rank(crew):
    assert crew.run(skipped, {"sharding": "hot"}, ranks=2) == [True, True]


def test_gradients_of_rows_on_every_rank_are_means_over_ranks_where_those_of_others_are(crew):
    losses, tables = by_torch()
    runs = crew.run(sequences, {"rule": "sgd", "sharding": "hot", "mean": True, "rate": 2**-3}, ranks=2)
    assert runs[0][0] == losses
    assert all(torch.equal(joined(runs)[f"{name}.weight"], value) for name, value in tables.items())


def test_rows_on_every_rank_are_rounded_as_those_of_a_table(crew):
    alone = joined([sequences(Group(), {"rule": "sgd", "dtype": torch.float16})])
    found = joined(crew.run(sequences, {"rule": "sgd", "sharding": "hot", "dtype": torch.float16}, ranks=2))
    assert torch.equal(found["item.weight"], alone["item.weight"])  # sums of halves of pooled rows are rounded


@pytest.mark.parametrize("rule", ["rowwise_adagrad", "adam"])
def test_rows_on_every_rank_follow_each_rule(crew, rule):
    alone = sequences(Group(), {"rule": rule}, whole=False)
    runs = crew.run(sequences, {"rule": rule, "sharding": "hot"}, False, ranks=2)
    found, expected = joined(runs), joined([alone])
    assert all(torch.allclose(found[name], value, atol=1e-12) for name, value in expected.items())
    assert max(abs(a - b) for a, b in zip(runs[0][0], alone[0], strict=True)) < 1e-10
    assert runs[0][2].keys() == {name for name in expected if name.startswith("item")}
    assert all(torch.equal(value, runs[1][2][name]) for name, value in runs[0][2].items())


def test_a_state_is_that_of_all_rows_and_may_be_loaded(crew, tmp_path):
    for more in ({}, {"fast": 300, "slow": str(tmp_path)}):
        assert crew.run(stopped, {"rule": "adam", "sharding": "hot"} | more, ranks=2) == [True, True]


def refused(group):
    assert not DedupEmbeddings(SEQUENCES, 2, group, rule=None, sharding="auto").replicas
    try:
        DedupEmbeddings(SEQUENCES, 2, group, rule=None, sharding="hot")
    except CedarError as error:
        return str(error)


def sent(group):
    """Bytes of rows and gradients that all ranks send in a step, and what the plan says; ids are alike on ranks."""
    features = [Feature("hist", 40, pooling="attention")]
    ids = torch.tensor([0] * 50 + [1] * 20 + [2] * 6 + [*range(3, 40)])
    inputs = read_batch({"hist": JaggedTensor(ids, torch.tensor([0, len(ids)]))}, features, [], None)
    found = {"hist": Frequency.of([[ids] * group.size])}
    made = DedupEmbeddings(features, 8, group, sharding="hot", frequencies=found)
    for _ in range(2):  # copies are made in the first
        group.meter.take()
        made.rows(inputs)[0].sum().backward()
        made.step()
    told, _ = group.meter.take()
    bytes_ = group.add(torch.tensor([float(told[ROWS] + told[GRADIENTS])]), "test")
    slots = made.replicas[8].slots["hist"]
    one, price = found["hist"], Exchange(group.size, 32, id=0)
    copied = torch.where(slots[one.ids] >= 0, price.by_copies(one), price.by_rows(one)).sum()
    return (slots >= 0).nonzero()[:, 0].tolist(), float(bytes_), float(copied), float(price.by_rows(one).sum())


def test_bytes_between_ranks_are_those_of_the_price(crew):
    for hot, measured, priced, alone in (*crew.run(sent, ranks=2), *crew.run(sent, ranks=3)):
        assert hot == [0, 1, 2]  # what is looked up once by each is not worth it
        assert measured == priced < alone / 2
    assert all("needs a fused rule" in said for said in crew.run(refused, ranks=2))


def moved(group, sharding, freezes):
    """Losses of training that begins in float32 and continues in float64; gradients of three batches are one step."""
    made = made_of(group, {"rule": "sgd", "dtype": torch.float32, "sharding": sharding})
    assert bool(made.replicas) == (sharding == "hot" and group.size > 1)
    losses = []
    for step in range(9):
        if step == 3:
            made.double()
        for parameter in made.parameters():
            parameter.requires_grad_(not freezes or step > 5)
        rows = made.rows(batch(step % 3, group.rank, group.size, dedup=False))
        loss = sum(each.square().sum() / 64 for each in rows)
        if loss.requires_grad:
            loss.backward()
        if step % 3 == 2:
            made.step()
        losses.append(float(group.add(loss.detach().double()[None], "loss")))
    return losses


@pytest.mark.parametrize("freezes", [True, False])
def test_copies_move_and_freeze_with_the_other_rows(crew, freezes):
    wanted = moved(Group(), "tables", freezes)
    assert (abs(wanted[0] - wanted[3]) < 1e-6) == freezes
    for sharding in ("hot", "rows"):
        for found in crew.run(moved, sharding, freezes, ranks=2):
            assert max(abs(a - b) / b for a, b in zip(found, wanted, strict=True)) < 1e-5


def copied(group):
    try:
        copy.deepcopy(made_of(group, {"sharding": "hot"}))
    except CedarError as error:
        return str(error)


def test_rows_on_every_rank_are_not_copied(crew):
    assert all("frequent rows are on every rank cannot be copied" in said for said in crew.run(copied, ranks=2))
