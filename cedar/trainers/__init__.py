"""Fault-tolerant trainers and their model-independent parts. The ``nn.Module`` classes are in ``cedar.nn``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["AdamWOptions", "PipelineOptions", "ResilientPipeline", "RunOptions", "TorchOptimizer", "Workers"]

_MODULES = {
    "AdamWOptions": "common.config", "PipelineOptions": "resilient.options", "RunOptions": "resilient.options",
    "ResilientPipeline": "resilient.pipeline", "TorchOptimizer": "resilient.model.torch_optimizer",
    "Workers": "resilient.pipeline",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the module that defines ``name`` on first access, because these modules need torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
