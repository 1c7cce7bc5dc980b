"""Messages by torch.distributed: gloo on the CPU, NCCL on GPUs, by the same calls, all with one tag.

A wait inside the network can neither be cut short nor given a limit without breaking the connection, so threads of
their own do the waiting: one for each worker that messages come from, one for each that they go to. When a generation
ends, they are left behind, and end with the patience of its group.
"""

from __future__ import annotations

import datetime as dt
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from cedar.trainers.resilient.executor.transport import Lost
from cedar.trainers.resilient.executor.waiting import Waiting
from cedar.trainers.resilient.schedule import Worker

_AHEAD = 2  # messages received before they are asked for, from each worker


class GroupTransport:
    """One worker's end of a generation's group.

    Args:
        store: of torch, a connection of its own: making a group blocks it.
        members: of the generation, in the same order everywhere.
        me: this one of them.
        waiting: ends waits.
        prefix: of the group's keys.
        device: ``cpu``, or that of this worker's GPU.
    """

    def __init__(
        self, store: Callable[[], Any], members: Sequence[Worker], me: Worker, waiting: Waiting, prefix: str,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        self.me, self.waiting, self.device = me, waiting, device
        self.rank = {worker: rank for rank, worker in enumerate(members)}
        self.group = waiting.run(
            lambda: _group(PrefixStore(prefix, store()), self.rank[me], len(members), waiting.patience, device),
            "connecting to the other workers",
        )
        self._out: dict[Worker, _Lane] = {}
        self._in: dict[Worker, _Lane] = {}

    def send(self, to: Worker, message: torch.Tensor) -> None:
        if to not in self._out:
            self._out[to] = _Lane(self._sending(self.rank[to]), f"to {to}")
        self._out[to].orders.put(message.detach())

    def expect(self, source: Worker, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        if source not in self._in:
            self._in[source] = _Lane(self._receiving(self.rank[source]), f"from {source}")
        self._in[source].orders.put((shape, dtype))

    def receive(self, source: Worker) -> torch.Tensor:
        lane = self._in[source]
        found: list[Any] = []

        def ready(seconds: float) -> bool:
            try:
                found.append(lane.results.get(timeout=seconds))
            except queue.Empty:
                return False
            return True

        self.waiting.until(ready, f"a message from {source}")
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
        """Leave the threads behind; they hold what they use."""
        for lane in (*self._out.values(), *self._in.values()):
            lane.close()

    def _sending(self, rank: int) -> Callable[[Any], Any]:
        return lambda message: self.group.send([message.to(self.device).contiguous()], rank, 0).wait()

    def _receiving(self, rank: int) -> Callable[[Any], Any]:
        def receive(announced: tuple[tuple[int, ...], torch.dtype]) -> torch.Tensor:
            message = torch.empty(announced[0], dtype=announced[1], device=self.device)
            self.group.recv([message], rank, 0).wait()
            return message

        return receive


class _Lane:
    """A thread that does its orders one after the other."""

    def __init__(self, work: Callable[[Any], Any], name: str) -> None:
        self.orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.results: queue.Queue[Any] = queue.Queue(_AHEAD)
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


def _group(store: Any, rank: int, size: int, patience: float, device: str) -> Any:
    """A process group that is not the default one, so any number of them can follow each other."""
    limit = dt.timedelta(seconds=patience)
    kinds = dist.ProcessGroup.BackendType
    group = dist.ProcessGroup(store, rank, size)
    backend: Any
    if device == "cpu":
        kind, backend = kinds.GLOO, dist.ProcessGroupGloo(store, rank, size, limit)
    else:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        kind, backend = kinds.NCCL, dist.ProcessGroupNCCL(store, rank, size, options)
    backend._set_sequence_number_for_group()
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, backend)
    return group
