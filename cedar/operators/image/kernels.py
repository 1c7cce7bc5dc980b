"""The compiled kernels of images, each module where it is needed; see ``cedar.operators.beside``."""

from __future__ import annotations

from typing import Any

from cedar.operators.beside import kernels

_NAMES = {"resample": ("resize", "resize_all"), "pixels": ("apply",), "iou": ("try_parts",)}


def compiled(name: str) -> Any:
    """The kernels of ``resample``, ``pixels`` or ``iou``; None while they are compiled: the plain ones do until then.

    Raises:
        PipelineError: numba is not installed.
    """
    return kernels(f"cedar.operators.image.{name}_kernels", *_NAMES[name])
