"""Sample rows that functions are called with before a run are not the run's: they may be changed in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cedar


def brighten(image: Any) -> Any:
    image += 1
    return image


class Box:
    def __init__(self, value: int) -> None:
        self.value = value


def bump(box: Box) -> int:
    box.value += 1
    return box.value


@pytest.mark.parametrize("plan", ["auto", "off"])
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_arrays_of_differing_sizes_are_changed_once(plan: Any, executor: str) -> None:
    rows = [{"image": np.zeros((2, 2 + i % 3, 1), np.uint8)} for i in range(100)]
    loader = cedar.from_items(rows).map(brighten, "image").batch(50).loader(plan=plan, executor=executor)
    assert [set(image.ravel()) for batch in loader for image in batch["image"]] == [{1}] * 100


@pytest.mark.parametrize("plan", ["auto", "off"])
def test_objects_are_changed_once(plan: Any) -> None:
    rows = [{"box": Box(i)} for i in range(4)]
    loader = cedar.from_items(rows).map(bump, "box", into="count").batch(2).loader(plan=plan, executor="inline")
    assert [batch["count"].tolist() for batch in loader] == [[1, 2], [3, 4]]
