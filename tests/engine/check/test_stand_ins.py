"""Stand-ins for functions: what they give for values that would be large."""

from __future__ import annotations

import numpy as np
import pytest

import cedar
from cedar.engine.binding import Binding
from cedar.engine.check import stand_ins
from cedar.engine.check.check import check_effects
from cedar.operators import image
from cedar.operators.base import Env
from cedar.pipeline.planning import plan_of


def test_no_pixel_of_images_is_made_up_before_a_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    value = stand_ins._value
    monkeypatch.setattr(stand_ins, "_value", lambda kind, draw: made.append(value(kind, draw)) or made[-1])
    rows = [{"bytes": b"", "n": i} for i in range(8)]
    pipeline = (
        cedar.from_items(rows)
        .map(image.decode(), "bytes", into="image")
        .map(image.random_resized_crop(224), "image")
        .map(image.horizontal_flip(), "image")
        .map(image.to_float(), "image")
        .map(image.normalize(0.5, 0.2), "image")
        .select("n", "image")
        .batch(4)
    )
    plan = plan_of(pipeline.node)
    assert any(decision.rule == "late" and decision.applied for decision in plan.decisions)
    monkeypatch.setattr(Binding, "proof", lambda *_: None)  # as if it did not follow from what operators declare
    assert check_effects(Binding(pipeline.node, None, Env()), plan) is None
    assert made
    assert all(np.size(each) < 100 for each in made)
