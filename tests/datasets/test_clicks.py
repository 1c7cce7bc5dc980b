from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from cedar.core.errors import PipelineError
from cedar.datasets.clicks import write_clicks
from cedar.datasets.parquet import read_parquet


def logistic(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The scores of a logistic regression, by Newton's method."""
    weights = np.zeros(features.shape[1])
    for _ in range(8):
        p = 1 / (1 + np.exp(-features @ weights))
        hessian = (features * (p * (1 - p))[:, None]).T @ features + 1e-3 * np.eye(len(weights))
        weights += np.linalg.solve(hessian, features.T @ (labels - p))
    return features @ weights


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    ranks = np.argsort(np.argsort(scores)) + 1
    positive = int(labels.sum())
    return float((ranks[labels == 1].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive)))


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> pa.Table:
    folder = tmp_path_factory.mktemp("clicks") / "log"
    write_clicks(folder, rows=40_000, rows_per_file=15_000, row_group_rows=4_000)
    return pq.read_table(folder)


def test_columns_and_layout(tmp_path: Path):
    urls = write_clicks(tmp_path / "log", rows=1000, rows_per_file=300, row_group_rows=100)
    assert [pq.read_metadata(url).num_rows for url in urls] == [300, 300, 300, 100]
    schema = read_parquet(tmp_path / "log").schema()
    assert list(schema)[:7] == ["session_id", "user_id", "ts", "item_id", "category", "hist_items", "tags"]
    assert list(schema)[7:] == [f"d{i}" for i in range(13)] + ["label"]
    assert schema["hist_items"] == schema["tags"] == pa.large_list(pa.int64())
    assert {schema[f"d{i}"] for i in range(13)} == {pa.float32()}
    assert schema["label"] == pa.int8()


def test_the_same_seed_gives_the_same_rows(tmp_path: Path):
    tables = []
    for i, seed in enumerate((3, 3, 4)):
        write_clicks(tmp_path / str(i), rows=500, seed=seed)
        tables.append(pq.read_table(tmp_path / str(i)))
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])


def test_sessions(log: pa.Table):
    sessions = log["session_id"].to_numpy()
    ids, first, counts = np.unique(sessions, return_index=True, return_counts=True)
    assert 3 < counts.mean() < 15
    users, histories = log["user_id"].to_numpy(), log["hist_items"].to_pylist()
    at = dict(zip(ids.tolist(), first.tolist(), strict=True))
    for i in range(0, len(sessions), 97):
        assert users[i] == users[at[int(sessions[i])]]
        assert histories[i] == histories[at[int(sessions[i])]]
    assert np.count_nonzero(np.diff(sessions)) > 1.5 * len(ids), "sessions interleave"


def test_values(log: pa.Table):
    lengths = pc.list_value_length(log["hist_items"]).to_numpy()
    assert lengths.min() == 0
    assert lengths.max() == 50
    gaps = [log[f"d{i}"].null_count / log.num_rows for i in range(13)]
    assert gaps[0] == 0
    assert 0.2 < gaps[12] < 0.28
    assert set(log["label"].to_pylist()) == {0, 1}
    assert 0.2 < log["label"].to_numpy().mean() < 0.5


def test_the_label_can_be_learned(log: pa.Table):
    labels = log["label"].to_numpy().astype(np.int64)
    dense = [np.nan_to_num(log[f"d{i}"].to_numpy().astype(np.float64)) for i in range(13)]
    features = np.stack(
        [np.log1p(d) if i % 2 == 0 else d for i, d in enumerate(dense)] + [np.ones(len(labels))], axis=1
    )
    half = len(labels) // 2
    score = logistic(features, labels)
    assert auc(score, labels) > 0.7
    items = log["item_id"].to_numpy()
    clicks = np.bincount(items[:half], labels[:half] - labels[:half].mean(), minlength=5000)
    effect = clicks / (np.bincount(items[:half], minlength=5000) + 10)
    assert auc((score + 4 * effect[items])[half:], labels[half:]) > auc(score[half:], labels[half:]) + 0.02


def test_bad_numbers(tmp_path: Path):
    with pytest.raises(PipelineError, match="rows=0"):
        write_clicks(tmp_path, rows=0)
    write_clicks(tmp_path / "a", rows=10)
    with pytest.raises(PipelineError, match="holds 1 data files already"):
        write_clicks(tmp_path / "a", rows=10)
