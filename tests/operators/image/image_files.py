"""Image files, and why they are refused."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest

from cedar.operators import image
from cedar.operators.transform import BadValues


def photo(height, width):
    """Smooth, with an edge and a little noise."""
    y, x = np.mgrid[:height, :width] / 40
    planes = [128 + 90 * np.sin(x + c) * np.cos(y - c) for c in range(3)]
    made = np.stack(planes, axis=2) + np.random.default_rng(0).normal(0, 3, (height, width, 3))
    made[height // 3 : height // 2, width // 4 : width // 2] = (250, 60, 90)
    return np.clip(made, 0, 255).astype(np.uint8)


def saved(pillow, format_, **options):
    file = io.BytesIO()
    pillow.save(file, format_, **options)
    return file.getvalue()


def why_not(data, **options):
    with pytest.raises(BadValues) as caught:
        image.decode(**options).columns(pa.array([data], pa.large_binary()))
    return caught.value.rows[0]
