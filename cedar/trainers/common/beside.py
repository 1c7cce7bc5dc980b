"""Work beside the training: one piece at a time, in a thread, whose failure is told where it is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cedar.errors import CedarError


class Beside:
    """Writes checkpoints.

    Args:
        folder: that they are in.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def begin(self, work: Callable[[], object], *, here: bool = False) -> None:
        """Begin it, once what was begun before is done.

        Args:
            work: to be done.
            here: do it at once, in this thread.

        Raises:
            CedarError: that has failed.
        """
        self.wait()

        def guarded() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - told by wait()
                self._error = error

        if here:
            guarded()
            self.wait()
            return
        self._thread = threading.Thread(target=guarded, name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until what was begun is done.

        Raises:
            CedarError: it has failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise CedarError(
                f"a checkpoint could not be written into {self.folder}: {error}",
                done="older checkpoints are as they were", fix="look for space and rights there",
            ) from error  # fmt: skip
