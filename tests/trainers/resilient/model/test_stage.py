"""A GPT-style model in stages: the same however it is cut."""

from __future__ import annotations

import torch

from cedar.trainers.resilient.model import Stage
from tests.trainers.resilient.toy_grid import MODEL


def test_a_model_is_the_same_however_it_is_cut() -> None:
    whole = dict(Stage(MODEL, 0, 1).named_parameters())
    for number in range(2):
        for name, parameter in Stage(MODEL, number, 2).named_parameters():
            assert torch.equal(parameter, whole[name])
