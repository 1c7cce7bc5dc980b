"""QuietWorker: a Dask worker that accepts connections only from its scheduler, other workers and clients."""

from __future__ import annotations

from typing import Any

from distributed import Worker


class QuietWorker(Worker):
    """A worker without Dask's HTTP server, which answers anyone who connects and is only needed for a dashboard."""

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Do not start the HTTP server."""
