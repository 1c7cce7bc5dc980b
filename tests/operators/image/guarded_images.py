"""Images that end, or begin, where a page may not be touched, through every kernel that takes addresses: a process of
its own, which reading or writing one byte beyond an image ends."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from cedar.operators import image
from cedar.operators.draws import Draws

PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_kept: list[Any] = []


def guarded(values: npt.NDArray[Any], *, at_end: bool) -> npt.NDArray[Any]:
    """A copy between two pages that nothing may touch, against the second or the first of them."""
    pages = -(-values.nbytes // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    whole = np.frombuffer(memory, np.uint8)
    _kept.append((memory, whole))
    first = PAGE + (pages * PAGE - values.nbytes if at_end else 0)
    made = whole[first : first + values.nbytes].view(values.dtype).reshape(values.shape)
    made[...] = values
    for page in (0, pages + 1):
        if _LIBC.mprotect(whole.ctypes.data + page * PAGE, PAGE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return made


def transforms() -> list[Any]:
    """One or more of each kernel."""
    return [
        image.resize(size) for size in ((7, 5), (40, 61), (1, 1), (64, 3))
    ] + [
        image.random_resized_crop(9), image.color_jitter(0.4, 0.4, 0.4, 0.1), image.grayscale(), image.gaussian_blur(5),
        image.horizontal_flip(), image.to_float(), image.normalize([0.5] * 3, [0.2] * 3), image.solarize(100),
        image.pad(3),
    ]  # fmt: skip


def beyond() -> None:
    """What is looked for: it ends the process."""
    image_ = guarded(np.zeros((4, 4, 3), np.uint8), at_end=True)
    longer = np.lib.stride_tricks.as_strided(image_, (5, 4, 3), image_.strides)
    image.solarize(100)(longer, draws=Draws(np.array([7], dtype=np.uint64)))


def main() -> None:
    if sys.argv[1:] == ["beyond"]:
        beyond()
        return
    rng = np.random.default_rng(0)
    draws = Draws(np.array([7], dtype=np.uint64))
    tried = 0
    for transform in transforms():
        for height, width in ((1, 1), (3, 2), (8, 33), (31, 17), (64, 64)):
            values: Any = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            if getattr(transform, "dtypes", ()) == ("float32",):
                values = values.astype(np.float32)
            for at_end in (True, False):
                found = transform(guarded(values, at_end=at_end), draws=draws)
                wanted = transform(values, draws=draws)
                np.testing.assert_array_equal(found, wanted)
                tried += 1
    print(tried)


if __name__ == "__main__":
    main()
