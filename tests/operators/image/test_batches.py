"""Blocks of equal images that are resampled in one call: bit for bit what is made image by image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.operators import image
from cedar.operators.draws import Draws
from cedar.operators.image import engine
from cedar.operators.transform import Link, Transform

SIDES = st.tuples(st.integers(1, 20), st.integers(1, 20))
BEFORE = st.one_of(
    st.builds(image.center_crop, SIDES, st.just(None)),
    st.builds(image.crop, st.integers(0, 4), st.integers(0, 4), SIDES.map(min), SIDES.map(max), st.just(None)),
    st.just(image.horizontal_flip(0.0)),
)
RESAMPLED = st.one_of(
    st.builds(image.resize, SIDES, antialias=st.booleans()),
    st.builds(image.random_resized_crop, SIDES, antialias=st.booleans()),
)
BEHIND = st.sampled_from([image.horizontal_flip(), image.horizontal_flip(1.0)])


def run(operators: Sequence[Transform], images: Any) -> Any:
    links = [Link(operator, ("image",), ("image",)) for operator in operators]
    draws = [Draws(np.arange(len(images), dtype=np.uint64) + i) if operator.random else None
             for i, operator in enumerate(operators)]  # fmt: skip
    return engine.run(links, {"image": images}, draws)


@given(
    st.lists(BEFORE, max_size=2), RESAMPLED, st.lists(BEHIND, max_size=2), SIDES, st.integers(1, 4),
    st.integers(0, 5), st.sampled_from([1, 2]), st.randoms(use_true_random=False),
)  # fmt: skip
def test_all_at_once_is_one_by_one(
    before: list[Transform], resampled: Transform, behind: list[Transform], size: tuple[int, int], channels: int,
    rows: int, step: int, chance: Any,
) -> None:  # fmt: skip
    values = np.random.default_rng(chance.randrange(1 << 30)).integers(
        0, 256, (rows, size[0], size[1] * step, channels)
    )
    images = values.astype(np.uint8)[:, :, ::step]  # with a step, pixels do not lie side by side
    operators = [*before, resampled, *behind]
    done, faults = run(operators, images)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine, "resample_all", lambda *_: False)
        wanted, others = run(operators, images)
    assert faults == others
    assert done["image"].dtype == wanted["image"].dtype
    assert (done["image"] == wanted["image"]).all()


@pytest.mark.parametrize(
    ("operators", "at_once"),
    [
        ([image.random_resized_crop(6, antialias=False), image.horizontal_flip()], True),
        ([image.center_crop(8), image.resize((5, 5)), image.horizontal_flip()], True),
        ([image.horizontal_flip(), image.resize((5, 5))], False),  # a mirrored image is resampled
        ([image.pad(2), image.resize((5, 5))], False),
        ([image.resize((5, 5)), image.center_crop(3)], False),
        ([image.resize((5, 5), "nearest")], False),
    ],
)
def test_what_is_made_at_once(monkeypatch: pytest.MonkeyPatch, operators: list[Transform], at_once: bool) -> None:
    answers = []
    original = engine.resample_all
    monkeypatch.setattr(engine, "resample_all", lambda *given: answers.append(original(*given)) or answers[-1])
    done, faults = run(operators, np.random.default_rng(0).integers(0, 256, (4, 12, 12, 3)).astype(np.uint8))
    assert not faults
    assert len(done["image"]) == 4
    assert answers == [at_once]
