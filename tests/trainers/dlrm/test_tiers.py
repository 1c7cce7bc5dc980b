"""Tables in two tiers: bit by bit those in memory, whichever rows are where."""

import pytest
import torch

from cedar.core.errors import CedarError
from cedar.nn import DedupEmbeddings, frequencies
from cedar.trainers.dlrm.tables import Bags, Table, TorchTables
from cedar.trainers.dlrm.tiers import TieredTables, mapped
from tests.trainers.dlrm.test_embeddings import FEATURES, WIDE, WIDTH, batch, trained
from tests.trainers.dlrm.toy_bags import TABLES

RULES = ["rowwise_adagrad", "sgd", "adam"]


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


@pytest.mark.heavy
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
    with pytest.raises(CedarError, match="has no space for 1,152,921,504,606,846,976 bytes of tables"):
        mapped((1 << 60,), torch.uint8, str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(CedarError, match="Not a directory"):
        mapped((4,), torch.uint8, str(tmp_path / "file" / "there"))
    with pytest.raises(CedarError, match="fast= needs a fused rule"):
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
