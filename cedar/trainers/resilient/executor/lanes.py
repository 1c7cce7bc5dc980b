"""Transports whose threads wait in the network: one for each worker that messages come from, or go to."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from cedar.trainers.resilient.executor.transport import Lost
from cedar.trainers.resilient.executor.waiting import Waiting
from cedar.trainers.resilient.schedule import Worker

AHEAD = 2  # messages received before they are asked for, from each worker


class LaneTransport:
    """One worker's end of a generation's connections; see ``transport`` for the rules.

    Args:
        me: this worker.
        waiting: ends waits.
    """

    def __init__(self, me: Worker, waiting: Waiting) -> None:
        self.me, self.waiting = me, waiting
        self._out: dict[Worker, _Lane] = {}
        self._in: dict[Worker, _Lane] = {}
        self._closed = False

    def _sending(self, to: Worker) -> Callable[[Any], Any]:
        """What sends a message there; it is called by one thread."""
        raise NotImplementedError

    def _receiving(self, source: Worker) -> Callable[[Any], Any]:
        """What receives a message of an announced shape and dtype from there; it is called by one thread."""
        raise NotImplementedError

    def send(self, to: Worker, message: torch.Tensor) -> None:
        if to not in self._out:
            self._out[to] = _Lane(self._sending(to), f"to {to}")
        self._out[to].orders.put(message.detach())

    def expect(self, source: Worker, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        if source not in self._in:
            self._in[source] = _Lane(self._receiving(source), f"from {source}")
        self._in[source].orders.put((shape, dtype))

    def receive(self, source: Worker) -> torch.Tensor:
        lane = self._in[source]
        found: list[Any] = []

        def ready(seconds: float) -> bool:
            try:
                found.append(lane.results.get(timeout=seconds))
            except queue.Empty:
                return self._closed
            return True

        self.waiting.until(ready, f"a message from {source}")
        if not found:
            raise Lost(f"{self.me} has closed its connections")
        if isinstance(found[0], BaseException):
            self.waiting.check()
            raise Lost(f"{self.me} lost the connection to {source}: {found[0]}") from found[0]
        message: torch.Tensor = found[0]
        return message

    def warm_up(self, others: Sequence[Worker]) -> None:
        """Send a first message to each of them, and wait for theirs: connections are made by their first use."""
        for other in others:
            self.expect(other, (1,), torch.float32)
            self.send(other, torch.zeros(1))
        for other in others:
            self.receive(other)

    def close(self) -> None:
        """Let go of everything, which ends the threads."""
        self._closed = True
        for lane in (*self._out.values(), *self._in.values()):
            lane.close()


class _Lane:
    """A thread that does its orders one after the other."""

    def __init__(self, work: Callable[[Any], Any], name: str) -> None:
        self.orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.results: queue.Queue[Any] = queue.Queue(AHEAD)
        self._work, self._keeps = work, name.startswith("from")
        self._closed = False
        threading.Thread(target=self._run, name=f"messages {name}", daemon=True).start()

    def close(self) -> None:
        """Let the thread end: at once where it waits for an order, or to be rid of a result."""
        self._closed = True
        self.orders.put(None)
        with suppress(queue.Empty):
            while True:
                self.results.get_nowait()

    def _run(self) -> None:
        while (order := self.orders.get()) is not None and not self._closed:
            try:
                result = self._work(order)
            except Exception as error:  # noqa: BLE001 - told to the one who receives; a sender's peer is seen to be gone
                result = error
            if self._keeps and not self._closed:
                self.results.put(result)
            if isinstance(result, BaseException):
                return
