"""Frequent rows: counted as plain code counts them, in memory or on every rank where that is worth most, and what is
computed is the same."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cedar import JaggedTensor
from cedar.core.errors import CedarError
from cedar.nn import DedupEmbeddings, Feature, frequencies
from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.hot import Exchange, Frequency, choices, filled, in_memory
from cedar.trainers.dlrm.inputs import read_batch
from cedar.trainers.dlrm.options import TableOptions
from cedar.trainers.dlrm.sharding import GRADIENTS, ROWS, place_exactly
from cedar.trainers.dlrm.spread import ShardingRequest, Spread
from cedar.trainers.dlrm.tables import Bags, Table, TorchTables
from cedar.trainers.dlrm.tiers import TieredTables, mapped
from cedar.trainers.dlrm.trainer import Trainer
from tests.trainers.dlrm.test_checkpoint import went_on
from tests.trainers.dlrm.test_embeddings import FEATURES, WIDE, WIDTH, batch, trained
from tests.trainers.dlrm.toy_clicks import ITEMS, TAGS, options

RULES = ["rowwise_adagrad", "sgd", "adam"]


def counted(lookups):
    """Rows that are touched with chances like these numbers of 64."""
    rows = sorted((row for row, count in enumerate(lookups) if count), key=lambda row: (-lookups[row], row))
    chance = torch.tensor([lookups[row] / 64 for row in rows], dtype=torch.float64)
    return Frequency(torch.tensor(rows, dtype=torch.int64), chance, chance, chance)


# ---- how often, and where --------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=2, max_size=2), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_rows_are_counted(steps):
    found = Frequency.of([[torch.tensor(ids, dtype=torch.int64) for ids in step] for step in steps])
    lookups = Counter(row for step in steps for ids in step for row in ids)
    asking = Counter(row for step in steps for ids in step for row in set(ids))
    held = Counter(row for step in steps for row in {row for ids in step for row in ids})
    expected = sorted(lookups, key=lambda row: (-held[row], -lookups[row], row))
    assert found.ids.tolist() == expected
    for values, count in ((found.lookups, lookups), (found.asking, asking)):
        assert torch.allclose(values, torch.tensor([count[row] / len(steps) for row in expected]).double())
    assert sorted(found.hottest(8, 10).tolist()[: len(expected)]) == sorted(expected[:8])
    assert len(set(found.hottest(10, 10).tolist())) == 10
    assert found.touched.tolist() == sorted(found.touched.tolist(), reverse=True)


def test_what_another_step_touches_is_told_by_leaving_one_out():
    steps = [{0, 1, 2, 3}, {0, 1, 4}, {0, 2, 5, 6}]
    found = Frequency.of([[torch.tensor(sorted(step))] for step in steps])
    seen, there = Counter(), Counter()
    for at, step in enumerate(steps):
        held = Counter(row for other in steps[:at] + steps[at + 1 :] for row in other)
        for row, count in held.items():
            seen[count] += 1
            there[count] += row in step
    chance = {0: 0.0} | {count: there[count] / seen[count] for count in seen}
    by_row = dict(zip(found.ids.tolist(), found.touched.tolist(), strict=True))
    once, twice = chance[1] * 2 / 3, chance[1] * 2 / 3 + chance[2] / 3  # of three batches, of which others have two
    assert by_row == pytest.approx({0: chance[2], 1: twice, 2: twice, **dict.fromkeys((3, 4, 5, 6), once)})
    assert found.unseen == 4 / 3  # rows of a step that no other has
    assert found.cold(3, 11) == pytest.approx(4 * once + 4 / 3)
    assert found.cold(9, 11) == pytest.approx(4 / 3 * 2 / 4)
    assert found.where(found.ids > 2, 3, 0.5).cold(0, 4) == pytest.approx(4 * once + 2 / 3)


def test_what_a_skewed_table_touches_is_foreseen():
    draw = np.random.default_rng(0)
    order = draw.permutation(20_000)
    steps = [[torch.from_numpy(order[draw.zipf(1.2, 4000) % 20_000])] for _ in range(12)]
    found = Frequency.of(steps[:4])
    for count in (0, 500, 2000, 8000):
        far = torch.ones(20_000, dtype=torch.bool)
        far[found.hottest(count, 20_000)] = False
        touched = np.mean([int(far[torch.unique(ids)].sum()) for (ids,) in steps[4:]])
        assert found.cold(count, 20_000) == pytest.approx(touched, rel=0.15)


def test_features_of_a_table_are_counted_together_on_each_rank():
    found = frequencies([batch(0)], FEATURES, ranks=2)
    plain = [batch(0, rank, 2) for rank in range(2)]
    ids = [torch.cat([one["item"], one["hist"]["hist"].values]) for one in plain]
    expected = Frequency.of([ids])
    assert torch.equal(found["item"].ids, expected.ids)
    assert torch.equal(found["item"].lookups, expected.lookups)


@given(st.lists(st.lists(st.integers(0, 5), max_size=5), min_size=1, max_size=3), st.integers(0, 30))
@settings(max_examples=40, deadline=None)
def test_no_other_rows_in_memory_are_worth_more_but_for_one(lookups, room):
    names = "abc"[: len(lookups)]
    worth = {n: torch.tensor(sorted(each, reverse=True)).double() for n, each in zip(names, lookups, strict=True)}
    sizes = {"a": 2, "b": 3, "c": 5}
    found = filled(worth, sizes, room)
    gain = lambda counts: sum(float(worth[n][: counts[n]].sum()) * sizes[n] for n in names)
    fits = lambda counts: sum(counts[n] * sizes[n] for n in names) <= room
    ways = itertools.product(*(range(len(worth[n]) + 1) for n in names))
    best = max(gain(c) for c in (dict(zip(names, way, strict=True)) for way in ways) if fits(c))
    next_one = max([float(worth[n][found[n]]) * sizes[n] for n in names if found[n] < len(worth[n])], default=0.0)
    assert fits(found)
    assert gain(found) >= best - next_one


def test_memory_that_is_left_goes_to_rows_that_no_batch_held():
    found = in_memory({"a": counted([1, 0, 2, 0]), "b": counted([0, 1])}, {"a": 4, "b": 2}, {"a": 4, "b": 4}, 17)
    assert found["a"].tolist() == [2, 0, 1]
    assert found["b"].tolist() == [1]


class OneOf:
    """A rank of some, for plans."""

    rank = 0

    def __init__(self, size):
        self.size = size

    def tell(self, value):
        return [value] * self.size


def highest(found, lookups, costs, owners, ranks, fast, dear):
    """The highest load of a placement, where each rank has its best rows in memory."""
    loads = []
    for rank in range(ranks):
        held = [n for n in costs if owners[n] == rank]
        counts = filled({n: found[n].touched for n in held}, dict.fromkeys(held, 8), fast)
        loads.append(sum(costs[n] + dear * found[n].cold(counts[n], len(lookups[n])) for n in held))
    return max(loads)


def test_the_greedy_plan_of_tiers_is_near_the_solver():
    """Against every way to place tables, each with its best rows in memory; and the solver finds such a best one."""
    pytest.importorskip("ortools")
    draw = random.Random(0)
    for _ in range(15):
        names, ranks, fast, dear = "abcde"[: draw.randint(2, 5)], 2, 8 * draw.randint(1, 8), 9 * 1.0
        lookups = {n: [min(int(draw.paretovariate(0.8)), 60) for _ in range(draw.randint(1, 8))] for n in names}
        found = {n: counted(each) for n, each in lookups.items()}
        costs = {n: sum(each) / draw.choice((64, 640)) for n, each in lookups.items()}
        every = [dict(zip(names, way, strict=True)) for way in itertools.product(range(ranks), repeat=len(names))]
        least = min(highest(found, lookups, costs, owners, ranks, fast, dear) for owners in every)
        wanted = ShardingRequest("tables", costs, found, "greedy", 0, fast, 10.0)
        features = [Feature(n, len(each)) for n, each in lookups.items()]
        plan = Spread(features, dict.fromkeys(names, 1), "rowwise_adagrad", torch.float32, OneOf(ranks), wanted)
        owners = {n: plan.places[n][0].rank for n in names}
        assert highest(found, lookups, costs, owners, ranks, fast, dear) <= 4 / 3 * least + 1e-9
        ways = {n: choices(found[n], len(lookups[n]), costs[n], 8, dear) for n in names}
        best = place_exactly(costs, dict.fromkeys(names, 1), ranks, choices=ways, fast=fast)
        assert highest(found, lookups, costs, best, ranks, fast, dear) == pytest.approx(least)


# ---- two tiers -------------------------------------------------------------------------------------------------------

TABLES = (Table("users", 5), Table("items", 9))


def steps(tables, first, count):
    """Sums of some steps."""
    found = []
    for step in range(first, first + count):
        draw = torch.Generator().manual_seed(step)
        tables.begin(0.1, step)
        bags = [
            Bags(
                t.name,
                torch.randint(0, t.rows, (12,), generator=draw),
                torch.tensor([0, 3, 3, 12]),
                torch.rand(12, generator=draw) if at else None,
            )
            for at, t in enumerate(TABLES)
        ]
        out = tables.lookup(bags)
        sum((part**2).sum() for part in out).backward()
        tables.update()
        found += [part.detach() for part in out]
    return found


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("hot", [([], []), ([4, 0], [7]), (range(5), range(8, -1, -1))])
def test_tiers_are_the_same_bit_by_bit(rule, dtype, hot, tmp_path):
    near = {t.name: torch.tensor(list(rows), dtype=torch.int64) for t, rows in zip(TABLES, hot, strict=True)}
    plain = TorchTables(TABLES, 3, rule=rule, dtype=dtype, seed=2)
    tiered = TieredTables(TABLES, 3, near, str(tmp_path), rule=rule, dtype=dtype, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(steps(plain, 1, 2), steps(tiered, 1, 2), strict=True))
    saved = {name: value.clone() for name, value in plain.state().items()}
    for name, value in tiered.state().items():  # in the order of tables' rows, and it may be written to
        assert torch.equal(value, saved[name]), name
        value.copy_(saved[name].flip(0))
        plain.state()[name].copy_(saved[name].flip(0))
    assert all(torch.equal(a, b) for a, b in zip(steps(plain, 3, 2), steps(tiered, 3, 2), strict=True))
    assert all(torch.equal(value, plain.state()[name]) for name, value in tiered.state().items())
    assert not list(tmp_path.iterdir())


def test_rows_in_memory_are_not_looked_for_in_the_file(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        TieredTables, "_from_slow", lambda self, kind, rows: asked.append(rows) or self._all(kind)[rows]
    )
    tables = TieredTables((Table("items", 9),), 3, {"items": torch.tensor([2, 5])}, str(tmp_path), rule="sgd")
    tables.begin(0.1, 1)
    tables.lookup([Bags("items", torch.tensor([5, 2, 8, 5, 8]), torch.tensor([0, 5]))])[0].sum().backward()
    assert [rows.tolist() for rows in asked] == [[8]]
    tables.update()
    assert {row for rows in asked for row in rows.tolist()} == {8}


def test_a_folder_without_room_is_told(tmp_path):
    with pytest.raises(CedarError, match="has no room for 1,152,921,504,606,846,976 bytes of tables"):
        mapped((1 << 60,), torch.uint8, str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(CedarError, match="Not a directory"):
        mapped((4,), torch.uint8, str(tmp_path / "file" / "there"))
    with pytest.raises(CedarError, match="torch's fused rules"):
        DedupEmbeddings(FEATURES, WIDTH, rule=None, fast=100)


def tiered(group, how, folder):
    found = frequencies([batch(step) for step in range(5)], how["features"], group.size)
    return trained(group, how | {"fast": 300, "slow": folder, "frequencies": found})


@pytest.mark.parametrize(("sharding", "features"), [("tables", WIDE), ("rows", FEATURES), ("columns", WIDE)])
def test_tiers_train_alike_on_ranks(crew, sharding, features, tmp_path):
    how = {"rule": "adam", "sharding": sharding, "features": features}
    expected = crew.run(trained, how, ranks=2)
    for (losses, parts, _), (plain, whole, _) in zip(
        crew.run(tiered, how, str(tmp_path), ranks=2), expected, strict=True
    ):
        assert losses == plain
        assert all(torch.equal(a[2], b[2]) for a, b in zip(parts, whole, strict=True))


# ---- rows on every rank ----------------------------------------------------------------------------------------------

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
    """Losses, the parts of tables, the rows that every rank has, and the plan's words; ``whole``: of whole numbers,
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
    """Whether a module with another's state goes on as that one, whose state one rank looks at alone."""
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


def test_gradients_of_rows_on_every_rank_are_means_over_ranks_where_those_of_others_are(crew):
    losses, tables = by_torch()
    runs = crew.run(sequences, {"rule": "sgd", "sharding": "hot", "mean": True, "rate": 2**-3}, ranks=2)
    assert runs[0][0] == losses
    assert all(torch.equal(joined(runs)[f"{name}.weight"], value) for name, value in tables.items())


def test_rows_on_every_rank_are_rounded_as_those_of_a_table(crew):
    alone = joined([sequences(Group(), {"rule": "sgd", "dtype": torch.float16})])
    found = joined(crew.run(sequences, {"rule": "sgd", "sharding": "hot", "dtype": torch.float16}, ranks=2))
    assert torch.equal(found["item.weight"], alone["item.weight"])  # sums of halves of pooled rows are rounded


def test_rows_on_every_rank_take_no_other_place_in_memory():
    numbers = lambda *each: torch.tensor(each, dtype=torch.float64)
    rows = torch.arange(4)
    once = Frequency(rows, numbers(1, 1, 0.1, 0.1), numbers(1, 1, 0.1, 0.1), numbers(1, 1, 0.1, 0.1))
    often = replace(once, asking=numbers(2, 2, 0.1, 0.1), lookups=numbers(9, 8, 0.1, 0.1))
    for found, shared in ((once, {}), (often, {"hist": [0, 1]})):
        wanted = ShardingRequest("hot", None, {"hist": found}, "greedy", 0, 36, 10.0)
        features = [Feature("hist", 4, pooling="attention")]
        plan = Spread(features, {"hist": 2}, "rowwise_adagrad", torch.float32, OneOf(2), wanted)
        assert {name: ids.tolist() for name, ids in plan.shared.items()} == shared
        assert plan.near["hist[rows 0:2]"].tolist() == ([] if shared else [0, 1])
    assert plan.far == [0.0, pytest.approx(0.1)]  # of 36 bytes rows on every rank take 24, and there is room for one


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
    assert all("fused rules" in said for said in crew.run(refused, ranks=2))


# ---- the trainer -----------------------------------------------------------------------------------------------------


def test_a_run_with_tiers_and_copies_is_that_of_one_rank_and_goes_on_without(crew, log, tmp_path):
    """Its checkpoint is that of whole tables: it loads on other ranks, without tiers, and the other way round."""
    run = {"dtype": "float64", "folder": str(tmp_path / "run")}
    plain = options(log, run=run)
    hot = options(log, run=run, tables={"sharding": "hot", "fast": 2500}, features=[
        {"column": "item", "rows": ITEMS, "pooling": "attention"}, *FEATURED[1:],
    ])  # fmt: skip
    plain = replace(plain, features=hot.features)
    whole, state = went_on(Group(), plain, str(tmp_path / "none"), False, 8)
    first = crew.run(went_on, hot, str(tmp_path / "some"), True, 3, ranks=2)
    second, _ = went_on(Group(), plain, str(tmp_path / "some"), True, 2)
    third = crew.run(went_on, hot, str(tmp_path / "some"), False, 3, ranks=2)
    losses = first[0][0] + second + third[0][0]
    assert max(abs(a - b) for a, b in zip(losses, whole, strict=True)) < 1e-10
    for _, own in third:
        for name, value in own.items():
            table, _, kind = name.rpartition(".")
            start, _, stop = table.partition("[rows ")[2].rstrip("]").partition(":")
            expected = state[f"{table.partition('[')[0]}.{kind}"]
            assert torch.allclose(value, expected[int(start or 0) : int(stop or len(expected))], atol=1e-10), name
    notes = crew.run(said, hot, ranks=2)[0]
    assert any("item: " in note and "rows on every rank" in note for note in notes)
    assert any("rank 1: " in note and "rows in memory" in note for note in notes)


FEATURED = [
    {"column": "item", "rows": ITEMS},
    {"column": "hist", "rows": ITEMS, "table": "item", "pooling": "transformer"},
    {"column": "acts", "rows": 5, "pooling": "mean"},
    {"column": "tags", "rows": TAGS},
]


def said(group, chosen):
    trainer = Trainer(chosen, group)
    trainer.close()
    return trainer.notes


def test_bytes_of_memory_are_not_negative():
    with pytest.raises(ValueError, match="fast is -1"):
        TableOptions(fast=-1)
