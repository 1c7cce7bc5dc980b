"""Where a trainer computes."""

from __future__ import annotations

import torch

from cedar.errors import CedarError


def device_of(name: str) -> torch.device:
    """The device that ``run.device`` names: ``auto`` is a GPU where torch sees one, else the CPU.

    Raises:
        CedarError: there is no such device here.

    Example:
        >>> device_of("cpu")
        device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise CedarError(f"run.device is {name!r}: {error}", fix="give cpu, cuda or auto") from error
    if device.type not in ("cpu", "cuda"):
        raise CedarError(f"run.device is {name!r}, on which nothing here was tried", fix="give cpu, cuda or auto")
    if device.type == "cuda" and not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        raise CedarError(
            f"run.device is {name!r}, and torch sees {torch.cuda.device_count()} GPUs",
            fix="give run.device=cpu, or install a torch that is built for the GPUs of this machine",
        )
    return device
