"""AheadEpoch: an epoch of the data whose batches are created and copied to a device ahead of the caller."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from cedar.core.block import Block
from cedar.core.errors import CedarError, WorkerError
from cedar.core.stream import Count, Piece
from cedar.engine.agree import Agreement
from cedar.engine.delivery.device import Mover
from cedar.engine.delivery.formats import in_form
from cedar.engine.delivery.state import copied
from cedar.engine.delivery.units import Units, replaced
from cedar.engine.epoch import DataEpoch, Job
from cedar.engine.plan_control import Plans
from cedar.engine.runner import Runner, Runners

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
        entry: the state of the data epoch after this batch.
        cpu: CPU seconds that the copying thread spent on it.
    """

    block: Block
    columns: dict[str, Any] | None
    begun: Any
    entry: dict[str, Any]
    cpu: float


@dataclass(frozen=True, slots=True)
class _FailedBatch:
    error: BaseException


class AheadEpoch:
    """A ``DataEpoch`` that runs ahead of the caller. Its position is the one after the last batch that the caller got.

    One thread pulls batches and begins their copies, up to ``AHEAD`` batches ahead of the caller. Only that thread uses
    the flows. Counters, skip limits and the state are updated in the caller's thread, batch by batch.

    Args:
        job, runner, epoch, entry, agreement: see ``DataEpoch``; the runner is closed if the caller stops early.
        units: creates batches.
        mover: copies batches.
    """

    def __init__(
        self, job: Job, runner: Runner, epoch: int, entry: dict[str, Any] | None, units: Units, mover: Mover,
        agreement: Agreement | None = None,
    ) -> None:  # fmt: skip
        self.epoch = epoch
        self.moved = False  # whether any batch was delivered
        self._pid, self._getpid = os.getpid(), os.getpid
        self._stopped = threading.Event()
        plans = cast("Plans", _CancellablePlans(job.plans, self._stopped))
        self._data = DataEpoch(replace(job, plans=plans), runner, epoch, copied(entry), agreement)
        self._entry: dict[str, Any] = {}
        self._left = False  # if True, another epoch uses the runner now
        self._agreement = agreement
        self._metrics = job.metrics
        self._runner, self._units, self._mover = runner, units, mover
        self._free = threading.Semaphore(AHEAD)
        self._ready: queue.SimpleQueue[_Copied | _FailedBatch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="cedar-device", daemon=True)

    def begin(self) -> Count:
        """See ``DataEpoch.begin``; must be called before ``values``."""
        return self._data.begin()

    def entry(self) -> dict[str, Any]:
        """Return this epoch's part of a state, with the position after the last delivered batch."""
        return self._entry

    def closed(self) -> dict[str, Any]:
        """Return this epoch's part of a state after all its batches were delivered."""
        return self._data.closed()

    @property
    def left_out(self) -> Counter[str]:
        """See ``DataEpoch.left_out``."""
        return self._data.left_out

    # ---- the caller's thread -----------------------------------------------------------------------------------------

    def values(self, total: float | None) -> Iterator[Any]:
        """Yield the batches of the epoch in order, on the device.

        Raises:
            CedarError: the copying thread failed; raised once all earlier batches are delivered.
        """
        self._thread.start()
        try:
            while (batch := self._next()) is not None:
                self._units.count(batch.block, total)
                self._metrics.time.own += batch.cpu
                columns = None
                if batch.columns is not None:
                    self._units.account.grouped(batch.columns)
                    columns = self._mover.end(batch.begun)
                    self._units.leave()
                self._entry, self.moved = batch.entry, True
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

    def leave(self) -> None:
        """Stop this epoch, but do not close the runner, which another epoch uses next."""
        self._left = True
        self._end()

    def stop(self) -> None:
        """Stop this epoch, close its runner, and release batches that were copied ahead."""
        if not self._left:
            self._end(self._runner.others or self._runner)

    def _end(self, runner: Runner | Runners | None = None) -> None:
        if self._getpid() != self._pid:  # in a forked child, the thread is missing, and locks may be held forever
            return
        self._stopped.set()
        self._free.release()
        if self._agreement is not None:
            self._agreement.stop()
        if runner is not None:
            runner.close()
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
                while self._wait_for_slot():
                    began = time.thread_time()
                    piece = next(pieces, None)
                    copy = None if piece is None else self._start_copy(piece, began)
                    del piece
                    self._ready.put(copy)
                    if copy is None:
                        return
                    del copy
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._ready.put(_FailedBatch(error))

    def _wait_for_slot(self) -> bool:
        while not self._free.acquire(timeout=_CHECK_SECONDS):
            pass
        return not self._stopped.is_set()

    def _start_copy(self, piece: Piece, began: float) -> _Copied:
        block = piece.rows.gather()
        columns = begun = None
        if not replaced(block):
            columns = self._units.columns(block, self._runner)
            try:
                begun = self._mover.begin(columns)
            except CedarError as error:
                live = block.live_slots()
                error.row = error.row or (block.keys.ref(int(live[0])) if len(live) else None)
                raise
        self._data.delivered(piece, piece.units - 1)
        return _Copied(block, columns, begun, copied(self._data.entry()), time.thread_time() - began)


class _CancellablePlans:
    """Wraps a loader's plans for the copying thread, which can no longer change them once the run has stopped."""

    def __init__(self, plans: Plans, stopped: threading.Event) -> None:
        self._plans, self._stopped = plans, stopped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plans, name)

    def poll(self) -> None:
        if not self._stopped.is_set():
            self._plans.poll()

    def failed(self, error: Exception) -> bool:
        return not self._stopped.is_set() and self._plans.failed(error)
