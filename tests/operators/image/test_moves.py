"""Moves: applied to pixels and to boxes, and which part of an image they need."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cedar.operators.image.moves import RowMoves, Steps, move_boxes
from tests.operators.image.toy_image_values import BOXES, EXPECTED, RESIZED_CROP, picture

SIDES = st.integers(1, 40)
EDGES = st.sampled_from(["constant", "edge"])
MOVES = st.lists(
    st.one_of(
        st.builds(lambda *shares: ("cut", shares), *[st.floats(0, 1)] * 4),
        st.builds(lambda f: ("flip", f), st.booleans()),
        st.builds(lambda f: ("upend", f), st.booleans()),
        st.builds(lambda *shares: ("erase", shares), *[st.floats(0, 1)] * 4),
        st.builds(lambda *pad: ("pad", pad), st.tuples(*[st.integers(0, 3)] * 4), EDGES),
        st.builds(lambda s: ("size", s), st.tuples(st.integers(1, 9), st.integers(1, 9))),
    ),
    max_size=6,
)  # fmt: skip


def test_resized_crop_is_what_torchvision_makes():
    first, total, boxes = EXPECTED["resized_crop"]
    moves = RowMoves(cut=np.array([RESIZED_CROP]), size=np.array([[3, 4]]))
    made = Steps([moves], 0).apply(picture())
    assert made[:, :, 0].tolist() == first
    assert int(made.astype(int).sum()) == total
    (moved,) = move_boxes([np.array(BOXES, dtype=np.float32)], moves, np.array([[6, 9]]))
    np.testing.assert_allclose(moved, np.array(boxes), atol=1e-6)


@given(SIDES, SIDES, MOVES)
def test_no_pixel_outside_the_part_that_is_needed_is_looked_at(height, width, drawn):
    plan, tall, wide = [], height, width
    for kind, value in drawn:
        if kind in ("cut", "erase"):
            h, w = 1 + int(value[2] * (tall - 1)), 1 + int(value[3] * (wide - 1))
            part = np.array([[int(value[0] * (tall - h)), int(value[1] * (wide - w)), h, w]])
            plan.append(RowMoves(cut=part) if kind == "cut" else RowMoves(erase=part))
        elif kind in ("flip", "upend"):
            plan.append(
                RowMoves(flip=np.array([value])) if kind == "flip" else RowMoves(flip_vertical=np.array([value]))
            )
        elif kind == "pad":
            plan.append(RowMoves(pad=np.array([value[0]]), mode=value[1]))
        else:
            plan.append(RowMoves(size=np.array([value])))
        tall, wide = plan[-1].sizes(np.array([[tall, wide]]))[0].tolist()
    steps = Steps(plan, 0)
    top, left, part_tall, part_wide = steps.part_needed(height, width)
    whole = picture(height, width)
    odd = 255 - whole
    odd[top : top + part_tall, left : left + part_wide] = whole[top : top + part_tall, left : left + part_wide]
    assert np.array_equal(steps.apply(odd), steps.apply(whole))
