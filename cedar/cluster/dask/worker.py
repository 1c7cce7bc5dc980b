"""QuietWorker: a Dask worker that listens for its scheduler, its peers and its clients, and for nobody else."""

from __future__ import annotations

from typing import Any

from distributed import Worker


class QuietWorker(Worker):
    """Without the HTTP server, which would answer whoever connects."""

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Starts none."""
