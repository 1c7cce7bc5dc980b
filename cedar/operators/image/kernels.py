"""Load the modules of compiled image kernels at first use; see ``cedar.operators.native``."""

from __future__ import annotations

from typing import Any

from cedar.operators.native import kernels

_NAMES = {"resample": ("resize", "resize_all"), "pixels": ("apply",), "iou": ("try_parts",)}


def compiled(name: str) -> Any:
    """Return the kernels of ``resample``, ``pixels`` or ``iou``; None while they are being compiled (then use NumPy).

    Raises:
        PipelineError: numba is not installed.
    """
    return kernels(f"cedar.operators.image.{name}_kernels", *_NAMES[name])
