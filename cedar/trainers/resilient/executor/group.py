"""Messages by torch.distributed: NCCL between GPUs; gloo by the same code, which tests run.

Each ordered pair of workers has a process group of two, so a queue and a stream of its own. Gloo listens to whoever
knocks, so it is for tests; what ranks of NCCL listen at is NCCL's.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroup, Store

from cedar.trainers.resilient.executor.lanes import LaneTransport
from cedar.trainers.resilient.executor.waiting import Waiting
from cedar.trainers.resilient.schedule import Worker


class GroupTransport(LaneTransport):
    """One worker's end of a generation's groups.

    Args:
        store: where pairs meet; another one, or another prefix, for each generation.
        me: this worker.
        waiting: ends waits.
        device: of messages: NCCL on a GPU, gloo on the CPU.
    """

    def __init__(self, store: Store, me: Worker, waiting: Waiting, device: torch.device | str = "cpu") -> None:
        super().__init__(me, waiting)
        self.store, self.device = store, torch.device(device)
        self._groups: list[ProcessGroup] = []

    def _group(self, source: Worker, to: Worker) -> tuple[Any, Any]:
        """The group of a pair, made by its first use, and what its calls run in."""
        store, rank = PrefixStore(f"{source}>{to}", self.store), int(self.me == to)
        limit = dt.timedelta(seconds=self.waiting.patience)
        if self.device.type == "cuda":
            from torch._C._distributed_c10d import ProcessGroupNCCL

            options = ProcessGroupNCCL.Options()
            options._timeout = limit
            group: Any = ProcessGroupNCCL(store, rank, 2, options)
            stream: Any = torch.cuda.stream(torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]
        else:
            from torch._C._distributed_c10d import ProcessGroupGloo

            group, stream = ProcessGroupGloo(store, rank, 2, limit), nullcontext()
        self._groups.append(group)
        return group, stream

    def _sending(self, to: Worker) -> Callable[[Any], Any]:
        made: list[Any] = []

        def send(message: torch.Tensor) -> None:
            made[:] = made or self._group(self.me, to)
            self._do(made, "send", message.to(self.device).contiguous(), 1)

        return send

    def _receiving(self, source: Worker) -> Callable[[Any], Any]:
        made: list[Any] = []

        def receive(announced: tuple[tuple[int, ...], torch.dtype]) -> torch.Tensor:
            made[:] = made or self._group(source, self.me)
            message = torch.empty(announced[0], dtype=announced[1], device=self.device)
            self._do(made, "recv", message, 0)
            return message

        return receive

    def _do(self, made: list[Any], what: str, message: torch.Tensor, other: int) -> None:
        group, stream = made
        if self._closed:
            raise ConnectionError("the generation has ended")
        with stream:
            getattr(group, what)([message], other, 0).wait()
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()

    def close(self) -> None:
        """Abort what is under way where the backend can; threads that still wait are left behind, and touch nothing."""
        super().close()
        for group in self._groups:
            with suppress(RuntimeError, AttributeError):
                group.abort()
