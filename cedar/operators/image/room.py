"""Where the pixels of images on their way are written: memory of their own, or the same memory again and again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from cedar.operators.image.layout import Image

Room: TypeAlias = Callable[[tuple[int, ...]], Image]  # a shape to a uint8 image, to be written to


def new_image(shape: tuple[int, ...]) -> Image:
    """Memory of its own."""
    return np.empty(shape, dtype=np.uint8)


class Reused:
    """Memory for one image at a time: the next one takes it over.

    An operating system clears each page that it hands out, which can take as long as decoding what is written there.
    """

    def __init__(self) -> None:
        self._held = np.empty(0, dtype=np.uint8)

    def __call__(self, shape: tuple[int, ...]) -> Image:
        size = math.prod(shape)
        if len(self._held) < size:
            self._held = np.empty(size * 5 // 4, dtype=np.uint8)
        return self._held[:size].reshape(shape)
