"""Ranks at a service: its own hub, of which the CPU is measured, at the end of modeled lines, in simulated seconds."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from benchmarks.scale_clock import Clock
from cedar.cluster.service.ranks import Hub, Member


@dataclass(frozen=True)
class Service:
    """The service and the lines to it, as they are modeled.

    Args:
        latency: seconds of a message there and of its answer back.
        message: seconds of the one thread of its scheduler that a message takes, heard or sent.
    """

    latency: float = 0.0005
    message: float = 20e-6


class Lines:
    """What ranks connect to: the hub hears one message after the other, and its answers arrive in order."""

    def __init__(self, clock: Clock, model: Service) -> None:
        self._clock, self._model = clock, model
        self._hub = Hub()
        self._free = 0.0  # when it is done with what it heard
        self.requests = 0
        self.cpu = 0.0  # seconds of the hub, with what it makes of bytes and back

    def heard(self, line: SimulatedLine, data: bytes | None) -> None:
        """A message of a rank arrives; None is the end of the connection."""
        self._free = max(self._free, self._clock.monotonic() + self._model.latency / 2) + self._model.message
        began = time.thread_time()
        if data is None:
            self._hub.leave(line.member)
        else:
            self.requests += 1
            self._hub.hear(line.member, json.loads(data))
        self.cpu += time.thread_time() - began

    def sends(self, line: SimulatedLine, message: Any) -> None:
        """The hub's answer, or what it says of its own."""
        data = json.dumps(message).encode()
        self._free += self._model.message
        line.coming.append((self._free + self._model.latency / 2, data))

    def line(self, _: Any) -> SimulatedLine:
        """A new connection."""
        return SimulatedLine(self, self._clock)


class SimulatedLine:
    """What boards and words ask of a ``Line``."""

    def __init__(self, lines: Lines, clock: Clock) -> None:
        self._lines, self._clock = lines, clock
        self.member = Member(lambda message: lines.sends(self, message))
        self.coming: deque[tuple[float, bytes]] = deque()  # when they arrive
        self._heard: deque[Any] = deque()

    def send(self, message: Any) -> None:
        self._lines.heard(self, json.dumps(message).encode())

    def heard(self) -> deque[Any]:
        while self.coming and self.coming[0][0] <= self._clock.monotonic():
            self._heard.append(json.loads(self.coming.popleft()[1]))
        return self._heard

    def ask(self, message: Any, answer: str) -> Any:
        self.send(message)
        while True:
            for each in self.heard():
                if answer in each:
                    self._heard.remove(each)
                    return each[answer]
            self._clock.sleep(max(0.0, self.coming[0][0] - self._clock.monotonic()))

    def close(self) -> None:
        self._lines.heard(self, None)
