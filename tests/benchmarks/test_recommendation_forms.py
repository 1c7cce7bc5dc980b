"""The figures of recommendation: parts that exist, rows that are alike on both sides, what depends on no clock."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks import harness, recommendation, recommendation_formats, recommendation_quality, recommendation_whole
from cedar.trainers.dlrm.inputs import read_batch


def test_a_part_that_fails_is_told_and_the_others_are_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(harness, "OUT", tmp_path)

    def apart(part, form):
        if part == "storage":
            raise RuntimeError("the part 'storage' ended with code 1")
        return [harness.at_least(part, 1.0, [2.0], "x")]

    monkeypatch.setattr(recommendation, "apart", apart)
    assert recommendation.main(["--quick", "--only", "storage", "dedup"]) == 2
    assert [row["what"] for row in json.loads((tmp_path / "recommendation_part.json").read_text())] == ["dedup"]
    told = capsys.readouterr()
    assert "'storage' ended with code 1" in told.err
    assert "1 of 1 targets were met" in told.out


@pytest.mark.parametrize("what", ["OTTO", "Yambda, sequential"])
def test_factors_of_a_format_are_those_that_are_predicted(tmp_path, what):
    make = recommendation_formats.LOGS[what]
    found = recommendation_formats._histories(str(tmp_path), what, make, 6000)
    assert [figure.met for figure in found] == [True, True]


def test_the_held_out_hour_is_another_and_its_best_auc_is_known(tmp_path):
    train, held_out, best = recommendation_quality.files(str(tmp_path), 4000, 2000)
    parts = [pq.read_table(path, columns=["session_id"])["session_id"].to_pylist() for path in (train, held_out)]
    assert [len(part) for part in parts] == [4000, 2000]
    assert not set(parts[0]) & set(parts[1])
    assert 0.75 < best < 0.95


def test_both_ways_from_files_to_weights_see_the_same_rows(tmp_path):
    raw, clustered = recommendation_whole.files(str(tmp_path), 1024)
    chosen = recommendation_whole.options(128)
    dense, sums = chosen.data.dense, []
    plain = [recommendation_whole._jagged(batch) for batch in recommendation_whole.Rows(raw, 128)]
    rows = recommendation_whole.read_clustered(clustered, session="session_id", sort="ts")
    for name, fn in recommendation_whole.hashes().items():
        rows = rows.map(fn, name)
    with rows.batch(128).loader(format="torch", executor="inline") as loader:
        for batches in (plain, list(loader)):
            inputs = [read_batch(batch, chosen.features, dense, "label") for batch in batches]
            ids = [torch.cat([i.features[at].bags.ids for i in inputs]).sort().values for at in range(12)]
            sums.append((ids, torch.cat([i.dense for i in inputs]).sum(0), sum(i.labels.sum() for i in inputs)))
    (ids, values, labels), (other, other_values, other_labels) = sums
    assert all(torch.equal(a, b) for a, b in zip(ids, other, strict=True))
    assert np.allclose(values, other_values, atol=1e-3)
    assert labels == other_labels


def test_plain_lookups_of_torch_and_torchrec_are_the_same(recwarn):
    ways, _ = recommendation_whole.lookups()
    if "torchrec" not in ways:
        pytest.skip("torchrec is not installed")
    from cedar.trainers.dlrm.options import FeatureOptions
    from cedar.trainers.dlrm.tables import Bags

    features = (FeatureOptions("a", 9, pooling="attention"), FeatureOptions("b", 9), FeatureOptions("c", 9))
    bags = [
        Bags("a", torch.tensor([1, 2, 1]), torch.tensor([0, 1, 2, 3])),
        Bags("b", torch.tensor([3, 4, 5]), torch.tensor([0, 2, 3])),
        Bags("c", torch.tensor([8, 0]), torch.tensor([0, 1, 2])),
    ]
    theirs = ways["torchrec"](features)(bags)
    ours = ways["torch"](features)(bags)
    assert [tuple(t.shape) for t in theirs] == [tuple(o.shape) for o in ours] == [(3, 64), (2, 64), (2, 64)]
    assert torch.equal(theirs[0][0], theirs[0][2])
