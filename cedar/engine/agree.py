"""Ranks agree on the step at which an epoch ends, where none of them knows how many batches the others have.

The steps are cut into blocks. A rank says that it has all batches of a block, or after how many of them it is through,
as soon as they are made, a block ahead of the one being delivered. A block is begun when all ranks have spoken of it,
so the talk costs a rank little while it is ahead, and no rank enters a step that another one cannot.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from cedar.core.errors import Site, WorkerError
from cedar.executors.dask import names_cluster
from cedar.executors.dask.signals import job_of_ranks

T = TypeVar("T")
BLOCK = 4  # steps; a rank holds up to two blocks of batches
_PATIENCE = 600.0  # seconds for the slowest rank, where loader(timeout=) does not say
_LOOK = (0.0001, 0.02)  # seconds between two looks: the first, and the longest
_runs: Counter[tuple[str, int]] = Counter()  # of this process, by pipeline and rank: every rank counts alike
_ENDED = 1 << 32  # beside the number of ranks that spoke, that of those that are through


class Board(ABC):
    """Where the ranks of one epoch leave word for each other."""

    @abstractmethod
    def put(self, block: int, end: int | None) -> None:
        """This rank has all of a block, or is through after ``end`` of its steps."""

    @abstractmethod
    def ends(self, block: int) -> list[int] | None:
        """After how many steps of a block ranks are through, a number for each of them; None before all have spoken."""

    @abstractmethod
    def missing(self, block: int) -> list[int]:
        """The ranks that have not spoken of a block."""

    def done(self, block: int) -> None:
        """All have spoken of a block, which they do while they are in the one before: none asks for an earlier one."""

    def leave(self) -> None:
        """This rank is through the epoch, or goes out of it."""


class StoreBoard(Board):
    """In the store of torch.distributed."""

    def __init__(self, store: Any, run: str, rank: int, world: int) -> None:
        self._store, self._run, self._rank, self._world = store, run, rank, world

    def put(self, block: int, end: int | None) -> None:
        self._store.set(f"{self._run}/at/{self._rank}", str(block))
        if end is not None:
            self._store.add(f"{self._run}/{block}/{end}", 1)
        self._store.add(f"{self._run}/{block}", 1 if end is None else 1 + _ENDED)

    def ends(self, block: int) -> list[int] | None:
        ended, spoken = divmod(self._store.add(f"{self._run}/{block}", 0), _ENDED)
        if spoken < self._world:
            return None
        return [n for n in range(BLOCK) for _ in range(self._store.add(f"{self._run}/{block}/{n}", 0))] if ended else []

    def missing(self, block: int) -> list[int]:
        keys = [f"{self._run}/at/{rank}" for rank in range(self._world)]
        return [r for r, key in enumerate(keys) if not self._store.check([key]) or int(self._store.get(key)) < block]

    def done(self, block: int) -> None:
        if self._rank == 0 and block > 1:
            self._store.delete_key(f"{self._run}/{block - 2}")


class FolderBoard(Board):
    """In a folder that all ranks see: an empty file for each word, whose name says it.

    Words of an earlier job may lie there still. So each rank first says hello by a name of its own, and the words that
    count are those for just the ranks that said hello.
    """

    def __init__(self, folder: str, run: str, rank: int, world: int) -> None:
        name, self._number = run.rsplit("/", 1)
        self._folder = Path(folder, name.replace("/", "-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._rank, self._world = rank, world
        self._session, self._begun = "", False
        self._words: list[str] = []
        before = f"{int(self._number) - 1}."  # others may still be at the last words of the epoch before
        for name in os.listdir(self._folder):
            if f".r{rank}." in name and not name.startswith(before):
                (self._folder / name).unlink(missing_ok=True)
        (self._folder / f"{self._number}.hello.r{rank}.{uuid.uuid4().hex}").touch()

    def put(self, block: int, end: int | None) -> None:
        self._words.append(f"r{self._rank}.{block}.{end}")
        if self._session:
            self._say(self._words[-1])

    def _say(self, word: str) -> None:
        (self._folder / f"{self._number}.{self._session}.{word}").touch()

    def _hellos(self) -> list[str]:
        return sorted(name for name in os.listdir(self._folder) if name.startswith(f"{self._number}.hello."))

    def _meet(self) -> None:
        """Find out who is there, until all have spoken of the first block."""
        hello = self._hellos()
        session = hashlib.sha256(" ".join(hello).encode()).hexdigest()[:16] if len(hello) == self._world else ""
        if session != self._session:
            self._session = session
            for word in self._words if session else ():
                self._say(word)

    def _spoken(self, block: int) -> dict[int, str]:
        """What each rank said of a block."""
        heard = [name.split(".") for name in os.listdir(self._folder)]
        mine = [word[2:] for word in heard if word[:2] == [self._number, self._session] and word[3] == str(block)]
        return {int(rank[1:]): end for rank, _, end in mine}

    def ends(self, block: int) -> list[int] | None:
        if not self._begun:
            self._meet()
        spoken = self._spoken(block) if self._session else {}
        if len(spoken) < self._world:
            return None
        self._begun = True
        return [int(end) for end in spoken.values() if end != "None"]

    def missing(self, block: int) -> list[int]:
        came = {int(name.split(".")[2][1:]) for name in self._hellos()}
        return sorted({*range(self._world)} - (self._spoken(block).keys() if self._session else came))

    def done(self, block: int) -> None:
        for word in [word for word in self._words if int(word.split(".")[1]) < block - 1]:
            self._words.remove(word)
            (self._folder / f"{self._number}.{self._session}.{word}").unlink(missing_ok=True)


class ServiceBoard(Board):
    """At a service, which tells all ranks of a block as soon as the last one has spoken of it."""

    def __init__(self, service: Any, run: str, rank: int, world: int) -> None:
        from cedar.executors.service.line import Line

        self._line = Line(service)
        self._line.send({"join": [f"{job_of_ranks()}/{run}", rank, world]})
        self._session: int | None = None  # of those that are there
        self._words: list[tuple[int, int | None]] = []  # to be said again, if others come
        self._ends: dict[int, list[int]] = {}

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


def next_run(pipeline: str, rank: int) -> str:
    """A name for the next run of a pipeline, the same on all ranks."""
    _runs[pipeline, rank] += 1
    return f"cedar/{pipeline}/{_runs[pipeline, rank]}"


def default_store(rank: int, world: int) -> Any:
    """That of torch.distributed, if it is initialised for just these ranks; else None."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if (distributed.get_rank(), distributed.get_world_size()) != (rank, world):
        return None
    return distributed.distributed_c10d._get_default_store()


def meeting_place(agree: Any, executor: Any, rank: int, world: int) -> Any:
    """Where ranks can talk: what is given, else the store of torch.distributed, else the service they read through.

    Returns:
        A folder, a store, or a service, by its address or a Dask client; None where there is nothing.

    Raises:
        WorkerError: the scheduler that the executor names does not answer.
    """
    if agree is not None:
        return agree
    store = default_store(rank, world)
    if store is not None or not names_cluster(executor):
        return store
    from cedar.executors.service.line import is_service

    return executor if is_service(executor) else None


def board(place: Any, run: str, rank: int, world: int) -> Board:
    """For the ranks of a run, at a place where they can talk."""
    if names_cluster(place):
        return ServiceBoard(place, run, rank, world)
    kind = FolderBoard if isinstance(place, str) else StoreBoard
    return kind(place, run, rank, world)


class Agreement:
    """The end of one epoch.

    Args:
        board: where ranks talk.
        world: how many they are.
        pads: the epoch ends when all ranks are through, and not when the first one is.
        timeout: seconds for the slowest rank.
        site: for errors.
    """

    def __init__(self, board: Board, world: int, pads: bool, timeout: float | None, site: Site | None) -> None:
        self._board, self._world, self._pads, self._site = board, world, pads, site
        self._timeout = timeout or _PATIENCE
        self.left = 0  # units made and not delivered, as others had no more
        self._stopped = False

    def stop(self) -> None:
        """Nobody waits for the others any more; for another thread than that which waits."""
        self._stopped = True

    def through(self, units: Iterator[T], padding: Callable[[], T]) -> Iterator[T]:
        """The units up to the agreed end.

        Raises:
            WorkerError: a rank was not heard of in time, or there is no way to hear of any.
        """
        try:
            yield from self._through(units, padding)
        finally:
            self._board.leave()

    def _through(self, units: Iterator[T], padding: Callable[[], T]) -> Iterator[T]:
        waiting: deque[T] = deque()
        have = step = spoken = 0
        ended, end = False, None
        while end is None or step < end:
            while end is None and not ended and have < step + BLOCK + min(step, BLOCK):
                unit = next(units, None)
                if unit is None:
                    ended = True
                else:
                    waiting.append(unit)
                    have += 1
                if ended or have % BLOCK == 0:
                    self._tell(spoken, have % BLOCK if ended else None)
                    spoken += 1
            if step % BLOCK == 0:
                if spoken <= step // BLOCK:  # through before, and others are not
                    self._tell(spoken, 0)
                    spoken += 1
                if (end := self._end(step // BLOCK)) is not None and step >= end:
                    break
            yield waiting.popleft() if waiting else padding()
            step += 1
        self.left = len(waiting)

    def _tell(self, block: int, end: int | None) -> None:
        with self._talk():
            self._board.put(block, end)

    @contextmanager
    def _talk(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, OSError) as error:  # torch's errors of stores are RuntimeErrors
            raise WorkerError(
                f"this rank cannot talk to the others about the end of the epoch: {error}",
                site=self._site,
                done="the epoch was stopped here",
                fix="look at the log of rank 0, which holds the store of torch.distributed, or at the folder or the "
                "service of agree=",
            ) from error

    def _end(self, block: int) -> int | None:
        """The step at which the epoch ends, if that lies in a block."""
        waited, pause = time.monotonic(), _LOOK[0]
        with self._talk():
            while (ends := self._board.ends(block)) is None:
                if self._stopped or time.monotonic() - waited > self._timeout:
                    raise self._late(block)
                time.sleep(pause)
                pause = min(2 * pause, _LOOK[1])
            self._board.done(block)
        if self._pads:
            return block * BLOCK + max(ends) if len(ends) == self._world else None
        return block * BLOCK + min(ends) if ends else None

    def _late(self, block: int) -> WorkerError:
        missing = self._board.missing(block)
        return WorkerError(
            f"rank(s) {', '.join(map(str, missing)) or 'unknown'} did not come to step {block * BLOCK} within "
            f"{self._timeout:g} s, and all ranks end an epoch at the same step",
            site=self._site,
            done="the epoch was stopped here",
            fix="look at the logs of those ranks: they ended, hang, left their loop earlier, or said another rank or "
            f"world than {self._world}. If they are only slow, raise loader(timeout=)",
        )
