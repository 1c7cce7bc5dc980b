"""Observers of a run: loads the extension ``watch`` if it is installed and the caller asks for it."""

from __future__ import annotations

import os
from typing import Any

from cedar.core.errors import Site
from cedar.core.extensions import extension, installed
from cedar.engine.delivery.options import Observer


def observers(progress: bool, trace: Any, serve: str | None, on_metrics: Any, site: Site | None) -> Any:
    """Return the observers that arguments of ``Pipeline.loader`` or the environment request; None for none.

    Raises:
        PipelineError: invalid arguments.
    """
    asked = progress or any(each is not None for each in (trace, serve, on_metrics))
    if not asked and not (any(name.startswith("OTEL_") for name in os.environ) and installed("watch")):
        return None
    return extension("watch.observers").Observers(progress, trace, serve, on_metrics, site) or None


def progress_line(title: str, plain: bool = False) -> Observer:
    """Return a progress line for terminals and notebooks; ``plain`` prints it elsewhere too."""
    return extension("watch.progress").Progress(title, plain=plain) if installed("watch") else Observer()
