"""Scores: as by counting pairs and summing logarithms."""

import math
from dataclasses import asdict

import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.trainers.common.files import finite
from cedar.trainers.dlrm.metrics import Window, score, summary


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30))
def test_scores_are_those_of_plain_loops(rows):
    logits = torch.tensor([float(value) for value, _ in rows])
    labels = torch.tensor([float(label) for _, label in rows])
    found = score(logits, labels)
    pairs = [(a, b) for a, one in rows for b, other in rows if one and not other]
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs)
    loss = sum(math.log1p(math.exp(-value if label else value)) for value, label in rows) / len(rows)
    assert math.isclose(found.loss, loss, rel_tol=1e-9)
    if not pairs:
        assert math.isnan(found.auc)
        assert math.isnan(found.entropy)
        return
    rate = sum(label for _, label in rows) / len(rows)
    base = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    assert math.isclose(found.auc, wins / len(pairs), rel_tol=1e-12)
    assert math.isclose(found.entropy, loss / base, rel_tol=1e-9)


def test_a_window_holds_the_last_rows_in_whole_batches():
    window = Window(5)
    for at in range(4):
        window.add(torch.full((3,), float(at)), torch.zeros(3))
    assert window.parts()[0].tolist() == [2.0, 2, 2, 3, 3, 3]
    assert score(*Window(5).parts()).rows == 0


def test_a_summary_has_nan_where_the_file_has_null():
    """Held-out rows of one class ended a good run with a TypeError."""
    line = {"step": 0, "rows": 2, "loss": math.nan, "seconds": 2.0, "waited": 1.0, "looked_up": 4, "sent": {}}
    found = dict(summary([finite(line | {"held_out": asdict(score(torch.zeros(2), torch.zeros(2)))})]))
    assert found["loss over the last 1 steps"] == found["held out: AUC"] == "nan"
    assert found["held out: loss"] == "0.6931"
