"""The compiled resizing: its weights without antialias against plain sums, and its memory next to other threads'."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from cedar.operators.image.resample import resize_into

SIDE = st.integers(1, 40)


def plain(line, outputs):
    """Without antialias: two neighbors at most, centers at halves, weights of 22 bits, rounded."""
    found = []
    for i in range(outputs):
        center = (i + 0.5) * (len(line) / outputs)
        near = [k for k in range(len(line)) if abs(k + 0.5 - center) < 1]
        weights = [1 - abs(k + 0.5 - center) for k in near]
        whole = [int(0.5 + w / sum(weights) * (1 << 22)) for w in weights]
        found.append((sum(int(line[k]) * w for k, w in zip(near, whole, strict=True)) + (1 << 21)) >> 22)
    return np.array(found)


@given(SIDE, SIDE, SIDE, SIDE, st.integers(0, 99))
def test_without_antialias_each_output_is_of_its_neighbors(height, width, rows, columns, seed):
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 1), dtype=np.uint8)
    out = np.empty((rows, columns, 1), dtype=np.uint8)
    resize_into(image, None, out, antialias=False)
    across = np.array([plain(line, columns) for line in image[:, :, 0]])
    down = np.array([plain(line, rows) for line in across.T]).T
    assert np.array_equal(out[:, :, 0], down)


_MANY_THREADS = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from cedar.operators.image.resample import resize_into

image = np.random.default_rng(0).integers(0, 256, (250, 330, 3), dtype=np.uint8)

def resized(i):
    out = np.empty((200 + i % 7, 220, 3), dtype=np.uint8)
    resize_into(image, (i % 20, i % 30, 210 - i % 11, 280), out)
    return out.tobytes()

wanted = [resized(i) for i in range(77)]
with ThreadPoolExecutor(16) as pool:
    found = list(pool.map(resized, [i % 77 for i in range(1540)]))
print(found == wanted * 20)
"""


def test_threads_that_share_an_allocator_do_not_write_over_each_others_work():
    done = subprocess.run(
        [sys.executable, "-c", _MANY_THREADS], env={**os.environ, "MALLOC_ARENA_MAX": "1"}, capture_output=True,
        text=True, timeout=180, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr[-2000:]
