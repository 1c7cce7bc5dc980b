"""Directories and URLs that a run writes to."""

from __future__ import annotations

from typing import Any

from cedar.core.errors import PipelineError


def find_place(where: str, argument: str) -> tuple[Any, str]:
    """Return the filesystem and path of a directory or URL; ``argument`` names the argument in errors.

    Raises:
        PipelineError: there is no filesystem for the URL.
    """
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(where)
    except (ValueError, ImportError) as error:
        raise PipelineError(
            f"{argument}={where!r}: {error}", fix="give a directory, or a URL of a filesystem that fsspec has installed"
        ) from error
    return fs, path.rstrip("/")
