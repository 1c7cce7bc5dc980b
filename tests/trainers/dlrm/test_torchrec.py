"""torchrec's collections under our embeddings, and ours under torchrec's own model: against each other and torch."""

import sys

import pytest
import torch

from cedar import JaggedTensor
from cedar.core.errors import CedarError
from cedar.nn import DedupBagCollection, DedupEmbeddings, Feature
from cedar.trainers.common.group import Group
from cedar.trainers.dlrm.inputs import read_batch
from cedar.trainers.dlrm.torchrec import module
from tests.trainers.dlrm.test_embeddings import FEATURES, RATE, WIDTH, batch, expected, trained

FP32 = {"rule": None, "dtype": torch.float32}


def there() -> str:
    try:
        module("models.dlrm")
    except CedarError as error:
        return str(error).splitlines()[0]
    return ""


WHY = there()
needs_torchrec = pytest.mark.skipif(bool(WHY), reason=WHY or "torchrec is there")


@needs_torchrec
@pytest.mark.parametrize("sharding", ["tables", "rows", "columns"])
def test_training_on_collections_of_torchrec_is_that_of_torch(crew, sharding):
    how = FP32 | {"backend": "torchrec", "sharding": sharding}
    losses, tables = expected(None)
    for ranks in ([trained(Group(), how)], [trained(Group(), how, dedup=False)], crew.run(trained, how, ranks=2)):
        seen = {name: torch.zeros_like(value) for name, value in tables.items()}
        for found, parts, _ in ranks:
            assert max(abs(a - b) for a, b in zip(found, losses, strict=True)) < 1e-5
            for name, (row, column), value in [(name, start or (0, 0), value) for name, start, value in parts]:
                seen[name][row : row + value.shape[0], column : column + value.shape[1]] += value
        for name, value in tables.items():
            assert torch.allclose(seen[name], value, atol=1e-5), name


@needs_torchrec
def test_rows_of_sequences_and_weighted_lists_are_those_of_torch():
    ids, weights = torch.tensor([2, 0, 1, 1]), torch.tensor([0.5, 2.0, 1.0, 3.0])
    offsets = torch.tensor([0, 3, 3, 4])
    given = {"seen": JaggedTensor(ids, offsets), "bought": JaggedTensor(ids, offsets)}
    given |= {"paid": JaggedTensor(weights, offsets), "last": torch.tensor([0, 3, 3])}
    features = [Feature("seen", 4, pooling="attention"), Feature("bought", 3, weights="paid"), Feature("last", 5)]
    found = []
    for backend in ("torchrec", "torch"):
        made = DedupEmbeddings(features, WIDTH, rule=None, backend=backend)
        rows = made.rows(read_batch(given, features, [], None))
        sum(part.square().sum() for part in rows).backward()
        found.append([*(part.detach() for part in rows), *(p.grad for p in made.parameters())])
        assert sorted(made.state_dict()) == ["tables.bought", "tables.last", "tables.seen"]
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@needs_torchrec
def test_the_model_of_torchrec_trains_on_our_embeddings_as_on_its_own():
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.models.dlrm import DLRM

    features = [Feature(feature.column, feature.rows) for feature in FEATURES]

    def plain(step):
        lists = batch(step, dedup=False)
        lists["item"] = type(lists["tags"])(lists["item"], torch.arange(13))
        lengths = torch.cat([lists[f.column].offsets.diff() for f in features])
        values = torch.cat([lists[f.column].values for f in features])
        return KeyedJaggedTensor([f.column for f in features], values, lengths=lengths)

    def trained_by(collection, feed):
        torch.manual_seed(3)
        model = DLRM(collection, 2, [4, WIDTH], [8, 1])
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=RATE), []
        for step in range(5):
            dense = torch.rand(12, 2, generator=torch.Generator().manual_seed(step))
            loss = (model(dense, feed(step)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    theirs = EmbeddingBagCollection([
        EmbeddingBagConfig(name=f.column, num_embeddings=f.rows, embedding_dim=WIDTH, feature_names=[f.column])
        for f in features
    ])  # fmt: skip
    first = {name: value.clone() for name, value in DedupEmbeddings(features, WIDTH, rule=None).tables.items()}
    for name, bag in theirs.embedding_bags.items():
        bag.weight.data.copy_(first[name])
    wanted = trained_by(theirs, plain)
    for feed in (batch, plain):
        for backend in ("torch", "torchrec"):
            ours = DedupBagCollection(DedupEmbeddings(features, WIDTH, rule=None, backend=backend))
            found = trained_by(ours, feed)
            assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) < 1e-5
    assert wanted[-1] < wanted[0]


def test_what_torchrec_cannot_do_is_refused(monkeypatch):
    with pytest.raises(CedarError, match="do not support fused rules"):
        DedupEmbeddings(FEATURES, WIDTH, backend="torchrec")
    with pytest.raises(CedarError, match="no tables of float64"):
        DedupEmbeddings(FEATURES, WIDTH, backend="torchrec", rule=None, dtype=torch.float64)
    monkeypatch.setitem(sys.modules, "torchrec", None)
    for name in [name for name in sys.modules if name.startswith("torchrec.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(CedarError, match="torchrec cannot be used"):
        DedupEmbeddings(FEATURES, WIDTH, backend="torchrec", rule=None)
