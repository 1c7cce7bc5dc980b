"""DevicePrefetch: create the batches of a data epoch, and copy them to a device, ahead of the caller."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, cast

from cedar.core.block import Block
from cedar.core.cursor import no_keys
from cedar.core.errors import CedarError, WorkerError
from cedar.core.stream import Piece, Rows
from cedar.engine.delivery.formats import Mover, in_form
from cedar.engine.delivery.parts import Run, Units, replaced
from cedar.engine.epoch import DataEpoch, Origin

AHEAD = 2  # batches on the device in addition to the caller's: one already copied, and one being copied
_CHECK_SECONDS = 60  # seconds between checks whether the copying thread is still alive
_PATIENCE = 1  # seconds to wait for the thread to end; it may end later if it is in a user's function


@dataclass(frozen=True, slots=True)
class _Copied:
    """A batch that is being copied to the device.

    Args:
        block: the batch's block, with its keys and skipped rows.
        columns: the converted columns; None if all rows were skipped and replaced, so nothing is delivered.
        begun: the result of ``Mover.begin``.
        origin, piece: what ``DataEpoch.delivered`` needs; the piece has no rows.
        cpu: CPU seconds that the copying thread spent on it.
    """

    block: Block
    columns: dict[str, Any] | None
    begun: Any
    origin: Origin
    piece: Piece
    cpu: float


@dataclass(frozen=True, slots=True)
class _FailedBatch:
    error: BaseException


class DevicePrefetch:
    """Pulls the batches of ``data`` and begins their copies in a thread, up to ``AHEAD`` batches ahead of the caller.

    Only that thread uses the flows. Counters, skip limits and the position are updated in the caller's thread, batch by
    batch.

    Args:
        data: the data epoch.
        run: the iteration, whose runner is closed if the caller stops early.
        units: creates batches.
        mover: copies batches.
    """

    def __init__(self, data: DataEpoch, run: Run, units: Units, mover: Mover) -> None:
        self._data, self._run, self._units, self._mover = data, run, units, mover
        self._pid, self._getpid = os.getpid(), os.getpid
        self._free = threading.Semaphore(AHEAD)
        self._ready: queue.SimpleQueue[_Copied | _FailedBatch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="cedar-device", daemon=True)

    # ---- the caller's thread -----------------------------------------------------------------------------------------

    def values(self, total: float | None) -> Generator[Any]:
        """Yield the batches of the epoch in order, on the device; see ``Units.values``.

        Raises:
            CedarError: the copying thread failed; raised once all earlier batches are delivered.
        """
        self._thread.start()
        try:
            while (batch := self._next()) is not None:
                self._units.account.add(batch.block, total)
                self._run.job.metrics.time.own += batch.cpu
                columns = None
                if batch.columns is not None:
                    if self._units.account.counts_groups:
                        self._units.account.grouped(batch.columns)
                    columns = self._mover.end(batch.begun)
                    self._units.leave()
                self._data.delivered(batch.origin, batch.piece, 0)
                if columns is not None:
                    del batch  # frees the copy in host memory while the caller uses the batch
                    yield in_form(columns, self._units.options.format)
                    del columns
        except BaseException:
            self.stop()
            raise
        self._thread.join(_PATIENCE)

    def _next(self) -> _Copied | None:
        while True:
            try:
                outcome = self._ready.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                if not self._thread.is_alive() and self._ready.empty():
                    raise WorkerError("the thread that copies batches to the device has died") from None
                continue
            self._free.release()
            if isinstance(outcome, _FailedBatch):
                raise outcome.error
            return outcome

    def stop(self, close_runner: bool = True) -> None:
        """Stop the thread, and release batches that were copied ahead.

        Args:
            close_runner: False if another data epoch uses the runner next.
        """
        # In a forked child, the thread is missing, and locks may be held forever.
        if self._data.cancelled or self._getpid() != self._pid:
            return
        self._data.cancelled = True
        self._free.release()
        if self._run.agreement is not None:
            self._run.agreement.stop()
        if close_runner:
            self._run.runner.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)
        with suppress(queue.Empty):
            while True:
                self._ready.get_nowait()
        self._ready.put(_FailedBatch(WorkerError("the loader was closed while it was waiting for a batch")))

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            with closing(cast("Any", self._data.pieces())) as pieces:
                while True:
                    while not self._free.acquire(timeout=_CHECK_SECONDS):
                        pass
                    if self._data.cancelled:
                        return
                    began = time.thread_time()
                    pulled = next(pieces, None)
                    copy = None if pulled is None else self._start_copy(pulled, began)
                    del pulled
                    self._ready.put(copy)
                    if copy is None:
                        return
                    del copy
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._ready.put(_FailedBatch(error))

    def _start_copy(self, pulled: tuple[Origin, Piece], began: float) -> _Copied:
        origin, piece = pulled
        block = piece.rows.gather()
        columns = begun = None
        if not replaced(block):
            columns = self._units.columns(block, self._run.runner)
            try:
                begun = self._mover.begin(columns)
            except CedarError as error:
                live = block.live_slots()
                error.row = error.row or (block.keys.ref(int(live[0])) if len(live) else None)
                raise
        place = Piece(_NO_ROWS, piece.at, piece.skip, batch=True, keeps=piece.keeps, end=piece.end)
        return _Copied(block, columns, begun, origin, place, time.thread_time() - began)


_NO_ROWS = Rows.of(Block({}, no_keys()))
