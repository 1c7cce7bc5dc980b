"""The model that clicks, and how good the best guess of it is."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest


def test_the_bayes_auc_is_that_of_the_planted_probabilities(written):
    from cedar.datasets.clicklog.drawing import draw_file
    from cedar.datasets.clicklog.model import world_of

    log, made, folder = written
    drawn = [draw_file(log, world_of(log, 5), 5, file, rows) for file, rows in enumerate((12_000, 8_000))]
    p, label = (np.concatenate([getattr(d, name) for d in drawn]) for name in ("probability", "label"))
    assert pq.read_table(folder)["label"].to_pylist() == label.tolist()
    ranks = np.argsort(np.argsort(p)) + 1
    clicks = int(label.sum())
    auc = (ranks[label == 1].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(label) - clicks))
    assert made.bayes_auc == pytest.approx(auc, abs=1e-4)
    assert made.clicks == pytest.approx(label.mean())
    assert 0.7 < auc < 0.95


def test_labels_depend_on_items_and_histories(written):
    """Without either, the probabilities tell clicks apart less well: both are worth learning."""
    from cedar.datasets.clicklog.drawing import draw_file
    from cedar.datasets.clicklog.model import BayesAuc, world_of

    log, made, _ = written
    world = world_of(log, 5)
    drawn = draw_file(log, world, 5, 0, 12_000)
    dense = np.stack([drawn.columns[f"d{i}"].to_numpy() for i in range(3)])
    item = drawn.columns["item_id"].to_numpy()

    def auc(logit):
        found = BayesAuc()
        found.add(1 / (1 + np.exp(-logit)), drawn.label)
        return found.value

    without_history = auc(world.logit(dense, item, np.zeros(len(item))))
    only_dense = auc(world.weights @ dense)
    assert made.bayes_auc > without_history + 0.01 > only_dense + 0.02
