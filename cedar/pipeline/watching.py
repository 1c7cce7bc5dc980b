"""Observers of a run. Loads the extension ``watch`` if it is installed and the caller requests an observer."""

from __future__ import annotations

import os
from typing import Any

from cedar.core.errors import Site
from cedar.core.extensions import extension, installed
from cedar.engine.delivery.options import Observer


def observers(progress: bool, trace: Any, serve: str | None, on_metrics: Any, site: Site | None) -> Any:
    """Return the observers that arguments of ``Pipeline.loader`` or the environment request, or None.

    Raises:
        PipelineError: invalid arguments.
    """
    asked = progress or any(each is not None for each in (trace, serve, on_metrics))
    if not asked and not (any(name.startswith("OTEL_") for name in os.environ) and installed("watch")):
        return None
    return extension("watch.observers").Observers(progress, trace, serve, on_metrics, site) or None


def progress_line(title: str, plain: bool = False) -> Observer:
    """Return a progress line for terminals and notebooks; with ``plain``, print it also if there is neither."""
    return extension("watch.progress").Progress(title, plain=plain) if installed("watch") else Observer()
