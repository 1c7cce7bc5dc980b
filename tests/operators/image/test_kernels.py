"""Kernels by their names, and how many threads do without them at a time."""

from __future__ import annotations

import ast
import importlib.util
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.operators.image import kernels, pixels, pixels_plain, resample, resample_plain
from cedar.operators.image.color import Grayscale
from cedar.operators.image.pixels import compile_pixels
from cedar.operators.image.resample import resize_into


@pytest.mark.parametrize("name", ["resample", "pixels", "iou"])
def test_kernels_are_there_once_the_last_one_of_their_module_is(monkeypatch, name):
    asked = []
    monkeypatch.setattr(kernels, "kernels", lambda module, last: asked.append((module, last)))
    assert kernels.compiled(name) is None
    ((module, last),) = asked
    with open(importlib.util.find_spec(module).origin, encoding="utf-8") as file:
        functions = [node for node in ast.parse(file.read()).body if isinstance(node, ast.FunctionDef)]
    (mark,) = functions[-1].decorator_list
    assert functions[-1].name == last
    assert ast.unparse(mark).startswith("kernel('")  # with a signature: compiled when the module is imported


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
