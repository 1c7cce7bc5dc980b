"""Trainers, and the parts of them that take any model; ``cedar.nn`` has the modules."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["AdamWOptions", "PipelineOptions", "ResilientPipeline", "RunOptions", "TorchOptimizer", "Workers"]

_HOMES = {
    "AdamWOptions": "common.config", "PipelineOptions": "resilient.options", "RunOptions": "resilient.options",
    "ResilientPipeline": "resilient.pipeline", "TorchOptimizer": "resilient.model.torch_optimizer",
    "Workers": "resilient.pipeline",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
