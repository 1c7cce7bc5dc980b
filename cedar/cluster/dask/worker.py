"""QuietWorker: a Dask worker that listens for its scheduler, its peers and its clients, and for no other process."""

from __future__ import annotations

from typing import Any

from distributed import Worker


class QuietWorker(Worker):
    """Without the HTTP server, which would answer anyone who connects."""

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Starts none."""
