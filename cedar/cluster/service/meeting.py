"""Coordinates ranks through a service: they agree on the end of an epoch, and exchange named values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cedar.cluster.dask.signals import job_of_ranks
from cedar.cluster.service.line import ServiceLine
from cedar.core.errors import Site
from cedar.engine.agree import Board
from cedar.engine.rendezvous import KeyValueStore


class ServiceKeyValues(KeyValueStore):
    """A key-value store on a service. When it is full, the service evicts the least recently used values."""

    def __init__(self, service: Any) -> None:
        self._line, self._job = ServiceLine(service), job_of_ranks()

    def set(self, name: str, word: str) -> None:
        self._line.ask({"set": [f"{self._job}/{name}", word]}, "got")

    def get(self, name: str) -> str | None:
        return self._line.ask({"get": f"{self._job}/{name}"}, "got")  # type: ignore[no-any-return]

    def drop(self, name: str) -> None:
        self._line.ask({"drop": f"{self._job}/{name}"}, "got")


class ServiceBoard(Board):
    """Exchanges reports of ranks through a service, which sends a block's reports to all ranks once it has all."""

    def __init__(self, service: Any, run: str, rank: int, world: int) -> None:
        self._line = ServiceLine(service)
        self._line.send({"join": [f"{job_of_ranks()}/{run}", rank, world]})
        self._session: int | None = None  # the current session, or None before all ranks have joined
        self._words: list[tuple[int, int | None]] = []  # reports that must be sent again in a new session
        self._ends: dict[int, list[int]] = {}

    def meet(self, timeout: float | None, stopped: Callable[[], bool], site: Site | None) -> None:
        """Do nothing, since the service announces when all ranks have joined."""

    def put(self, block: int, end: int | None) -> None:
        self._words.append((block, end))
        if self._session is not None:
            self._line.send({"say": [self._session, block, end]})

    def ends(self, block: int) -> list[int] | None:
        heard = self._line.heard()
        while heard:
            message = heard.popleft()
            if "session" in message:
                self._session = message["session"]
                for word in self._words:
                    self._line.send({"say": [self._session, *word]})
            else:
                self._ends[message["block"]] = message["ends"]
        return self._ends.get(block)

    def missing(self, block: int) -> list[int]:
        answer = self._line.ask({"missing": block}, "missing")
        if isinstance(answer, str):
            raise ConnectionError(answer)
        return answer  # type: ignore[no-any-return]

    def done(self, block: int) -> None:
        self._words = [word for word in self._words if word[0] > block]
        self._ends.pop(block - 1, None)

    def leave(self) -> None:
        self._line.close()
