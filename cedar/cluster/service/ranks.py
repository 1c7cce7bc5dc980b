"""The service's part in the coordination of ranks, which agree on the end of an epoch and exchange named values.

Each rank of a run has its own connection, on which each line is a message in JSON. The service deletes a rank's data
when its connection closes, and a run when its last rank leaves. Memory is bounded by limits on the number of
connections, on the size of unfinished lines, and on the size of stored values.
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

MEMBERS = 4096  # max number of ranks
_MAX_BLOCKS_AHEAD = 4  # how many blocks a rank may be ahead of the last block that all ranks have reported
_LINE = 1 << 20  # max bytes of a message
_UNREAD = 64 << 20  # max total bytes of incomplete messages on all connections
_WORDS = 64 << 20  # max total bytes of stored values and their names; the least recently used ones are evicted
_NAME = 1000  # max number of characters in a name
_SILENT = 30  # seconds after which an unresponsive machine counts as gone


class RefusedMessage(Exception):
    """A message is invalid or exceeds a limit."""


class Member:
    """A rank of a run, and its connection.

    Args:
        send: function that sends a message to the rank.
    """

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.send = send
        self.rank = -1
        self.run: Run | None = None


class Run:
    """An epoch of a job whose ranks agree on the epoch's end.

    Reports are valid for one session; a new session starts whenever a rank joins or leaves. Once all ranks have
    reported the first block, the run has begun, and no other ranks can join.
    """

    def __init__(self, name: str, world: int) -> None:
        self.name, self.world = name, world
        self.members: dict[int, Member] = {}
        self.session, self.begun = 0, False
        self.complete = -1  # number of the last block that all ranks have reported
        self.at: dict[int, int] = {}  # number of the last block that each rank has reported
        self._reports: dict[int, dict[int, int | None]] = {}

    def changed(self) -> None:
        """Start a new session after a rank joined or left. All ranks repeat their reports once all have joined."""
        if self.begun:
            return
        self.session += 1
        self.at.clear()
        self._reports.clear()

    def open(self) -> None:
        """Announce the session if all ranks have joined, so that they can report. Called after earlier runs' ends."""
        if not self.begun and len(self.members) == self.world:
            for member in self.members.values():
                member.send({"session": self.session})

    def say(self, member: Member, session: int, block: int, end: int | None) -> None:
        """Record that a rank has all batches of a block, or that its epoch ends after ``end`` steps of the block."""
        if session != self.session:
            return
        if block != self.at.get(member.rank, -1) + 1 or block > self.complete + _MAX_BLOCKS_AHEAD:
            raise RefusedMessage(f"rank {member.rank} reported block {block}, which is not its next")
        self.at[member.rank] = block
        reports = self._reports.setdefault(block, {})
        reports[member.rank] = end
        if len(reports) < self.world:
            return
        del self._reports[block]
        self.begun, self.complete = True, block
        ends = [each for each in reports.values() if each is not None]
        for other in self.members.values():
            other.send({"block": block, "ends": ends})

    def missing(self, block: int) -> list[int]:
        """Return the ranks that have not joined. Once all have joined, return those that have not reported a block."""
        ranks = range(self.world)
        if not self.begun and len(self.members) < self.world:
            return [rank for rank in ranks if rank not in self.members]
        return [rank for rank in ranks if self.at.get(rank, -1) < block]


class Hub:
    """All ranks of all jobs at one service.

    Args:
        words_bytes: max total bytes of stored values and their names.
    """

    def __init__(self, words_bytes: int = _WORDS) -> None:
        self.connections = self.unread = 0
        self.runs: dict[str, list[Run]] = {}  # by name; only the first run of a name is in progress
        self._words: OrderedDict[str, str] = OrderedDict()
        self._words_bytes, self._most_bytes = 0, words_bytes

    def hear(self, member: Member, message: Any) -> None:
        """Process a message from a rank.

        Raises:
            RefusedMessage: the message is invalid.
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
                raise RefusedMessage("the message is invalid")

    def leave(self, member: Member) -> None:
        """Remove a rank whose connection has closed."""
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
            raise RefusedMessage("this rank has already joined")
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
        raise RefusedMessage("this rank has not joined")
    return member.run


def _size(name: str, word: str) -> int:
    return sys.getsizeof(name) + sys.getsizeof(word) + 200  # including the dict's own overhead


class Connection(asyncio.Protocol):
    """One rank's connection to the hub."""

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
        if self._hub.connections > 2 * MEMBERS:  # a rank may also have one for positions
            self._end(f"{MEMBERS} ranks are connected, which is the limit")

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._hub.unread += len(rest) - len(self._rest)
        self._rest = rest
        try:
            for line in lines:
                self._hub.hear(self._member, json.loads(line))
            if len(rest) > _LINE or self._hub.unread > _UNREAD:
                raise RefusedMessage("the message is too long")
        except RefusedMessage as error:
            self._end(str(error))
        except (ValueError, RecursionError):
            self._end("the message is not valid JSON")

    def pause_writing(self) -> None:
        """See ``asyncio.Protocol``. Stop reading from a rank that does not read the messages sent to it."""
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
    """Accepts connections of ranks in the scheduler's process, with its TLS settings. Starts to listen on first use."""

    def __init__(self) -> None:
        self.hub = Hub()
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()

    async def where(self, scheduler: Any) -> tuple[str, int]:
        """Return host and port; start to listen if necessary."""
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
        """Stop accepting connections."""
        if self._server is not None:
            self._server.close()


def keep_alive(connection: socket.socket) -> None:
    """Send small messages without delay, and detect when the other machine is gone."""
    wanted = {"TCP_KEEPIDLE": _SILENT // 3, "TCP_KEEPINTVL": _SILENT // 3, "TCP_KEEPCNT": 2}
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in wanted.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def listening(dask_scheduler: Any) -> tuple[str, int] | None:
    """Return host and port for ranks, or None if the scheduler is not a service. Runs in the scheduler."""
    service = dask_scheduler.extensions.get("cedar")
    if service is None:
        return None
    return await service.listener.where(dask_scheduler)  # type: ignore[no-any-return]
