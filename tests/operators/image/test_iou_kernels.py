"""Whether a part fits, compiled: centers inside, and enough of a box."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.operators.image.iou_kernels import overlaps_enough


def of(boxes, least, part=(10, 20, 40, 30)):
    """Whether a part (top, left, height, width) fits, and which boxes are inside."""
    inside = np.zeros(len(boxes), dtype=bool)
    return overlaps_enough(*part, np.array(boxes, dtype=np.float32), np.float32(least), inside), inside.tolist()


def test_a_box_is_inside_with_its_center():
    boxes = [[20, 10, 50, 50], [0, 0, 41, 21], [0, 0, 40, 20], [49, 10, 51, 50]]  # the last two: upon a border
    assert of(boxes, 0.0) == (True, [True, True, False, False])
    assert of(boxes[2:], 0.0) == (False, [False, False])


def test_intersection_over_union_is_enough_from_the_least_on():
    half = [[20, 10, 50, 30]]  # of the part, and nothing else
    assert of(half, 0.5) == (True, [True])
    assert of(half, 0.51) == (False, [True])
    wide = [[5, 10, 65, 50]]  # the part is half of it
    assert of(wide, 0.5) == (True, [True])
    assert of(half + wide, 0.6) == (False, [True, True])
