"""Scores: as by counting pairs and summing logarithms."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.trainers.dlrm.metrics import Window, score


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
