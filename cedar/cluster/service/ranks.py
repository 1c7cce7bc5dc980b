"""Ranks that meet at a service: they find the end of an epoch together, and leave each other words.

Each rank of a run has its own connection, on which each line is a message in JSON. What the service knows of a
rank goes with its connection, and a run goes with its last rank. So what a stranger with a key can make it hold is
bounded by the number of connections, by what they may send before a line ends, and by the words that are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

MEMBERS = 4096  # connections at a time
_AHEAD = 4  # blocks that a rank may speak of before all others have
_LINE = 1 << 20  # bytes of a message
_UNREAD = 64 << 20  # bytes of messages whose end has not come yet, of all connections
_WORDS = 64 << 20  # bytes of words and their names; those used longest ago are forgotten first
_NAME = 1000  # characters
_SILENT = 30  # seconds after which a machine that does not answer is gone


class RefusedMessage(Exception):
    """A message that no rank of ours sends, or more than there is room for."""


class Member:
    """One rank of a run, at its connection.

    Args:
        send: a message to it.
    """

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.send = send
        self.rank = -1
        self.run: Run | None = None


class Run:
    """One epoch of ranks that end it together.

    Words count for a session, which is another one whenever a rank comes or goes. Once all have spoken of the first
    block the run has begun, and takes no other rank any more.
    """

    def __init__(self, name: str, world: int) -> None:
        self.name, self.world = name, world
        self.members: dict[int, Member] = {}
        self.session, self.begun = 0, False
        self.complete = -1  # the last block of which all have spoken
        self.at: dict[int, int] = {}  # the last block of which each rank has spoken
        self._said: dict[int, dict[int, int | None]] = {}

    def changed(self) -> None:
        """A rank came or went: what was said before does not count, and all say it again when all are there."""
        if self.begun:
            return
        self.session += 1
        self.at.clear()
        self._said.clear()

    def open(self) -> None:
        """It is this run's turn: if all are there, they may speak."""
        if not self.begun and len(self.members) == self.world:
            for member in self.members.values():
                member.send({"session": self.session})

    def say(self, member: Member, session: int, block: int, end: int | None) -> None:
        """A rank has all of a block, or is through after ``end`` of its steps."""
        if session != self.session:
            return
        if block != self.at.get(member.rank, -1) + 1 or block > self.complete + _AHEAD:
            raise RefusedMessage(f"rank {member.rank} spoke of block {block}, which is not its next")
        self.at[member.rank] = block
        spoken = self._said.setdefault(block, {})
        spoken[member.rank] = end
        if len(spoken) < self.world:
            return
        del self._said[block]
        self.begun, self.complete = True, block
        ends = [each for each in spoken.values() if each is not None]
        for other in self.members.values():
            other.send({"block": block, "ends": ends})

    def missing(self, block: int) -> list[int]:
        """The ranks that did not come, else those that have not spoken of a block."""
        ranks = range(self.world)
        if not self.begun and len(self.members) < self.world:
            return [rank for rank in ranks if rank not in self.members]
        return [rank for rank in ranks if self.at.get(rank, -1) < block]


class Hub:
    """All ranks of all jobs at one service.

    Args:
        words_bytes: of the words that are kept.
    """

    def __init__(self, words_bytes: int = _WORDS) -> None:
        self.connections = self.unread = 0
        self.runs: dict[str, list[Run]] = {}  # the first of a name is in progress; others wait for it to be over
        self._words: OrderedDict[str, str] = OrderedDict()
        self._words_bytes, self._most_bytes = 0, words_bytes

    def hear(self, member: Member, message: Any) -> None:
        """A message of a rank.

        Raises:
            RefusedMessage: it is invalid.
        """
        match message:
            case {"join": [str(name), int(rank), int(world)]} if 0 <= rank < world <= MEMBERS and len(name) <= _NAME:
                self._join(member, f"{name}/{world}", rank, world)
            case {"say": [int(session), int(block), None | int() as end]} if end is None or 0 <= end < 1 << 16:
                _run_of(member).say(member, session, block, end)
            case {"missing": int(block)}:
                member.send({"missing": self._missing(member, block)})
            case {"set": [str(name), str(word)]} if len(name) <= _NAME:
                self._set(name, word)
                member.send({"got": None})
            case {"get": str(name)}:
                if name in self._words:
                    self._words.move_to_end(name)
                member.send({"got": self._words.get(name)})
            case {"drop": str(name)}:
                self._drop(name)
                member.send({"got": None})
            case _:
                raise RefusedMessage("an invalid message")

    def leave(self, member: Member) -> None:
        """Its connection is closed."""
        run = member.run
        if run is None:
            return
        del run.members[member.rank]
        member.run = None
        run.changed()
        if run.members:
            return
        waiting = self.runs[run.name]
        waiting.remove(run)
        if waiting:
            waiting[0].open()
        else:
            del self.runs[run.name]

    def _join(self, member: Member, name: str, rank: int, world: int) -> None:
        if member.run is not None:
            raise RefusedMessage("a rank that joined before")
        waiting = self.runs.setdefault(name, [Run(name, world)])
        if waiting[-1].begun:
            waiting.append(Run(name, world))
        run = waiting[-1]
        before = run.members.get(rank)
        if before is not None:
            before.run = None
            before.send(
                {
                    "error": f"another process came as rank {rank} of {world}. Where two jobs run the same script and "
                    "pipeline, give each its own name: cedar.job in Dask's configuration"
                }
            )
        member.rank, member.run = rank, run
        run.members[rank] = member
        run.changed()
        if run is waiting[0]:
            run.open()

    def _missing(self, member: Member, block: int) -> list[int] | str:
        run = _run_of(member)
        first = self.runs[run.name][0]
        if first is run:
            return run.missing(block)
        ranks = ", ".join(map(str, sorted(first.members)))
        return (
            f"other processes are in this epoch as rank(s) {ranks} of {run.world}: an earlier start of this job that "
            "did not end, or another job of the same script and pipeline, which needs its own name: cedar.job in "
            "Dask's configuration"
        )

    def _set(self, name: str, word: str) -> None:
        self._drop(name)
        self._words[name] = word
        self._words_bytes += _size(name, word)
        while self._words_bytes > self._most_bytes:
            self._drop(next(iter(self._words)))

    def _drop(self, name: str) -> None:
        word = self._words.pop(name, None)
        if word is not None:
            self._words_bytes -= _size(name, word)


def _run_of(member: Member) -> Run:
    if member.run is None:
        raise RefusedMessage("a rank that has not joined")
    return member.run


def _size(name: str, word: str) -> int:
    return sys.getsizeof(name) + sys.getsizeof(word) + 200  # with what a dict needs next to them


class Connection(asyncio.Protocol):
    """One connection to a hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._rest = hub, b""
        self._member = Member(self._send)
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = transport
        connected = transport.get_extra_info("socket")
        if connected is not None:
            keep_alive(connected)
        self._hub.connections += 1
        if self._hub.connections > MEMBERS:
            self._end(f"{MEMBERS} ranks are connected, and more are not taken")

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._hub.unread += len(rest) - len(self._rest)
        self._rest = rest
        try:
            for line in lines:
                self._hub.hear(self._member, json.loads(line))
            if len(rest) > _LINE or self._hub.unread > _UNREAD:
                raise RefusedMessage("a message that is too long")
        except RefusedMessage as error:
            self._end(str(error))
        except (ValueError, RecursionError):
            self._end("a message that is not JSON")

    def pause_writing(self) -> None:
        """See ``asyncio.Protocol``: who does not read is not heard."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._hub.connections -= 1
        self._hub.unread -= len(self._rest)
        self._hub.leave(self._member)

    def _send(self, message: Any) -> None:
        self._transport.write(json.dumps(message).encode() + b"\n")

    def _end(self, why: str) -> None:
        self._send({"error": why})
        self._transport.close()


class Listener:
    """Listens for ranks, next to a scheduler and as it does, once it is asked where."""

    def __init__(self) -> None:
        self.hub = Hub()
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()

    async def where(self, scheduler: Any) -> tuple[str, int]:
        """Host and port."""
        from distributed.comm.addressing import get_address_host

        host = get_address_host(scheduler.address)
        async with self._opening:
            if self._server is None:
                self._server = await asyncio.get_running_loop().create_server(
                    lambda: Connection(self.hub), host, 0,
                    ssl=scheduler.security.get_listen_args("scheduler").get("ssl_context")
                    if scheduler.address.startswith("tls://")
                    else None,
                )  # fmt: skip
        return host, self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """No new ones."""
        if self._server is not None:
            self._server.close()


def keep_alive(connection: socket.socket) -> None:
    """Answer at once, and find out when the other machine is gone."""
    wanted = {"TCP_KEEPIDLE": _SILENT // 3, "TCP_KEEPINTVL": _SILENT // 3, "TCP_KEEPCNT": 2}
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in wanted.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def listening(dask_scheduler: Any) -> tuple[str, int] | None:
    """Runs in the scheduler: where ranks connect; None if it is not a service."""
    service = dask_scheduler.extensions.get("cedar")
    if service is None:
        return None
    return await service.listener.where(dask_scheduler)  # type: ignore[no-any-return]
