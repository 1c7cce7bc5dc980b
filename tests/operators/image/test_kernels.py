"""How many threads do without them at a time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.operators.image import pixels, pixels_plain, resample, resample_plain
from cedar.operators.image.pixel_transform import Grayscale
from cedar.operators.image.pixels import compile_pixels
from cedar.operators.image.resample import resize_into


@pytest.mark.parametrize("module", [resample, pixels])
def test_one_thread_at_a_time_does_without_kernels(monkeypatch, module):
    """The compiler has the other cores."""
    lock, inside = threading.Lock(), [0, 0]

    def slowly(*_):
        with lock:
            inside[0] += 1
            inside[1] = max(inside)
        time.sleep(0.01)
        with lock:
            inside[0] -= 1

    monkeypatch.setattr(module, "compiled", lambda _: None)
    monkeypatch.setattr(resample_plain, "resize", slowly)
    monkeypatch.setattr(pixels_plain, "apply", slowly)
    image, out = np.zeros((8, 8, 3), np.uint8), np.zeros((4, 4, 3), np.uint8)
    program = compile_pixels((Grayscale(),), channels_first=False)

    def work(_):
        if module is resample:
            resize_into(image, None, out)
        else:
            program.run(image[None], [None])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert inside == [0, 1]
