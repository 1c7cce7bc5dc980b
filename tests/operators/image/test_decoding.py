"""Decoding one file: rows that are not needed, and smaller than the file says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from benchmarks.mutated_images import LIMIT, encoded, mutated, outcome, picture
from cedar.operators.image.decoding import decode_image, first_rows
from cedar.operators.image.headers import read_header
from tests.operators.image.image_files import photo, saved


@given(
    st.integers(1, 70), st.integers(1, 70), st.integers(1, 70), st.sampled_from([0, 1, 2]),
    st.sampled_from([{}, {"progressive": True}, {"restart_marker_blocks": 3}]), st.booleans(),
)  # fmt: skip
def test_first_rows_of_a_jpeg_file_are_the_same(height, width, rows, subsampling, options, gray):
    pillow = Image.fromarray(picture(height, width)).convert("L" if gray else "RGB")
    data = saved(pillow, "JPEG", quality=80, **({} if gray else {"subsampling": subsampling}), **options)
    header = read_header(data, LIMIT)
    part = decode_image(data, header, "RGB", rows=min(rows, height))
    assert np.array_equal(part[:rows], decode_image(data, header, "RGB")[:rows])


@pytest.mark.parametrize("kind", ["jpeg", "jpeg-progressive", "jpeg-restarts", "jpeg-gray"])
def test_first_rows_of_a_damaged_jpeg_file_are_the_same(kind):
    data = encoded(kind)
    for seed in range(120):
        damaged = mutated(data, seed)
        whole = outcome(damaged)
        for rows in (1, 20):
            part = outcome(damaged, rows)
            assert part == whole if isinstance(whole, str) else np.array_equal(part, whole[:rows])


def test_rows_below_are_not_decoded():
    data = encoded("jpeg", picture(200, 40))
    header = read_header(data, LIMIT)
    assert decode_image(data, header, "RGB", rows=10).shape[0] == 32
    assert first_rows(data, header, 199) == (data, 200)


def test_decodes_at_a_half_a_quarter_an_eighth():
    data = encoded("jpeg", photo(301, 203))
    header = read_header(data, 1 << 30)
    for by in (1, 2, 4, 8):
        assert decode_image(data, header, "RGB", shrink=by).shape == (-(-301 // by), -(-203 // by), 3)
        top = decode_image(data, header, "RGB", shrink=by, rows=100)
        assert 100 / by <= len(top) < 150 / by
        assert np.array_equal(top[: 100 // by], decode_image(data, header, "RGB", shrink=by)[: 100 // by])
