"""Ranks agree on the step at which an epoch ends when no rank knows how many batches the others have.

Steps are grouped into blocks. Before a block begins, each rank reports either that it has batches for all its steps, or
the step at which it ran out. A block begins once all ranks have reported, so no rank begins a step that another rank
cannot. Ranks report one block ahead of delivery, so they rarely wait for each other.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from cedar.core.errors import Site, WorkerError
from cedar.core.packages import extension, loaded
from cedar.engine.rendezvous import PATIENCE, FolderKeyValues, KeyValueStore, Polling, Rendezvous, TorchKeyValues, talk
from cedar.executors.choose import names_cluster

T = TypeVar("T")
BLOCK = 4  # steps per block; a rank computes up to two blocks of batches ahead
_STOPPED = "the epoch was stopped here"
_runs: Counter[tuple[str, int]] = Counter()  # number of runs in this process, by pipeline and rank; equal on all ranks
_ENDED = 1 << 32  # a counter's value is: ranks that reported + _ENDED * ranks that ran out of batches


class Board(ABC):
    """Channel through which the ranks of one epoch report to each other how many batches they have."""

    @abstractmethod
    def meet(self, timeout: float | None, stopped: Callable[[], bool], site: Site | None) -> None:
        """Wait until all ranks have joined this run. Later calls ignore reports from earlier runs.

        Raises:
            WorkerError: a rank did not join in time, or ``stopped`` returned True.
        """

    @abstractmethod
    def put(self, block: int, end: int | None) -> None:
        """Report that this rank has all batches of a block, or that it ran out after ``end`` steps of it."""

    @abstractmethod
    def ends(self, block: int) -> list[int] | None:
        """Return the steps at which ranks run out within a block, one per rank; None until all ranks have reported."""

    @abstractmethod
    def missing(self, block: int) -> list[int]:
        """Return the ranks that have not reported for a block."""

    def done(self, block: int) -> None:
        """Called once all ranks have reported for a block, so that reports of earlier blocks can be deleted."""

    def leave(self) -> None:
        """Called when this rank has finished the epoch or stopped early."""


class _RendezvousBoard(Board):
    """Board whose ranks first meet in a rendezvous. The rendezvous's unique session name is part of all keys.

    A rank deletes its last keys once all ranks have joined a later run of the same loader, because no rank reads them
    after that.
    """

    def __init__(self, words: KeyValueStore, run: str, rank: int, world: int) -> None:
        self._words, self._run, self._rank, self._world = words, run, rank, world
        self._session = ""
        self._boards_to_clean = _boards_to_clean.setdefault((run.rsplit("/", 1)[0], rank), [])

    def meet(self, timeout: float | None, stopped: Callable[[], bool], site: Site | None) -> None:
        def late(missing: list[int], seconds: float) -> WorkerError:
            return _closed(site) if stopped() else _late(missing, self._world, 0, seconds, site)

        meeting = Rendezvous(self._words, self._run, self._rank, self._world, timeout, site, late, stopped)
        self._session, _ = meeting.outcome(None, lambda _messages, _keep_alive: None)
        while self._boards_to_clean:
            self._boards_to_clean.pop().forget()

    def done(self, block: int) -> None:
        if block == 0 and self._rank == 0:
            self._words.drop(f"{self._run}/{self._session}/outcome")

    def leave(self) -> None:
        if self._session:
            self._boards_to_clean.append(self)

    @abstractmethod
    def forget(self) -> None:
        """Delete this rank's reports; no rank reads them any more."""


_boards_to_clean: dict[tuple[str, int], list[_RendezvousBoard]] = {}  # by loader name and rank, in this process


class StoreBoard(_RendezvousBoard):
    """Board that keeps reports in the store of torch.distributed."""

    def __init__(self, store: Any, run: str, rank: int, world: int) -> None:
        super().__init__(TorchKeyValues(store), run, rank, world)
        self._store, self._last = store, -1

    @property
    def _name(self) -> str:
        return f"{self._run}/{self._session}"

    def put(self, block: int, end: int | None) -> None:
        self._last = block
        self._store.set(f"{self._name}/at/{self._rank}", str(block))
        if end is not None:
            self._store.add(f"{self._name}/{block}/{end}", 1)
        self._store.add(f"{self._name}/{block}", 1 if end is None else 1 + _ENDED)

    def ends(self, block: int) -> list[int] | None:
        ended, reported = divmod(self._store.add(f"{self._name}/{block}", 0), _ENDED)
        if reported < self._world:
            return None
        return (
            [n for n in range(BLOCK) for _ in range(self._store.add(f"{self._name}/{block}/{n}", 0))] if ended else []
        )

    def missing(self, block: int) -> list[int]:
        at = [self._words.get(f"{self._name}/at/{rank}") for rank in range(self._world)]
        return [rank for rank, last in enumerate(at) if last is None or int(last) < block]

    def done(self, block: int) -> None:
        super().done(block)
        if self._rank == 0 and block > 1:
            self._store.delete_key(f"{self._name}/{block - 2}")

    def forget(self) -> None:
        names = [f"at/{self._rank}"]
        if self._rank == 0:
            blocks = range(max(0, self._last - 2), self._last + 3)  # other ranks are up to two blocks ahead
            names += [f"{block}{end}" for block in blocks for end in ("", *(f"/{n}" for n in range(BLOCK)))]
        for name in names:
            self._store.delete_key(f"{self._name}/{name}")


class FolderBoard(_RendezvousBoard):
    """Board that keeps reports in a folder shared by all ranks. Each report is an empty file whose name states it."""

    def __init__(self, folder: str, run: str, rank: int, world: int) -> None:
        super().__init__(FolderKeyValues(folder), run, rank, world)
        self._folder = Path(folder, run.rsplit("/", 1)[0].replace("/", "-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._reported_blocks: list[int] = []  # blocks whose report files exist

    def put(self, block: int, end: int | None) -> None:
        self._reported_blocks.append(block)
        (self._folder / f"{self._session}.r{self._rank}.{block}.{end}").touch()

    def _reports(self, block: int) -> dict[int, str]:
        """Return what each rank reported for a block."""
        names = [name.split(".") for name in os.listdir(self._folder)]
        mine = [word[1:] for word in names if word[0] == self._session and word[2] == str(block)]
        return {int(rank[1:]): end for rank, _, end in mine}

    def ends(self, block: int) -> list[int] | None:
        reported = self._reports(block)
        return None if len(reported) < self._world else [int(end) for end in reported.values() if end != "None"]

    def missing(self, block: int) -> list[int]:
        return sorted({*range(self._world)} - self._reports(block).keys())

    def done(self, block: int) -> None:
        super().done(block)
        self._delete_reports(block - 1)

    def _delete_reports(self, before: int) -> None:
        while self._reported_blocks and self._reported_blocks[0] < before:
            for path in self._folder.glob(f"{self._session}.r{self._rank}.{self._reported_blocks.pop(0)}.*"):
                path.unlink(missing_ok=True)

    def forget(self) -> None:
        self._delete_reports(sys.maxsize)


def next_run(pipeline: str, rank: int) -> str:
    """Return a name for the next run of a pipeline. All ranks get the same name."""
    _runs[pipeline, rank] += 1
    return f"cedar/{pipeline}/{_runs[pipeline, rank]}"


def default_store(rank: int, world: int) -> Any:
    """Return the store of torch.distributed if it is initialized with this rank and world; else None."""
    distributed = loaded("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if (distributed.get_rank(), distributed.get_world_size()) != (rank, world):
        return None
    return distributed.distributed_c10d._get_default_store()


def meeting_place(agree: Any, executor: Any, rank: int, world: int) -> Any:
    """Return how ranks can communicate: ``agree`` if given, else torch.distributed's store, else the data service.

    Returns:
        A folder, a store, or the address or Dask client of a service; None if none is available.

    Raises:
        WorkerError: the scheduler that the executor names does not answer.
    """
    if agree is not None:
        return agree
    store = default_store(rank, world)
    if store is not None or not names_cluster(executor):
        return store
    return executor if extension("cluster.service.line").is_service(executor) else None


def board(place: Any, run: str, rank: int, world: int) -> Board:
    """Return a board for the ranks of a run; ``place`` is a folder, a store, or a data service."""
    if names_cluster(place):
        service = extension("cluster.service.meeting")
        return service.ServiceBoard(place, run, rank, world)  # type: ignore[no-any-return]
    kind = FolderBoard if isinstance(place, str) else StoreBoard
    return kind(place, run, rank, world)


class Agreement:
    """Makes all ranks end one epoch at the same step.

    Args:
        board: the channel through which ranks report.
        world: number of ranks.
        pads: end the epoch when the last rank has run out of batches instead of when the first one has.
        timeout: seconds to wait for the slowest rank.
        site: the user's line, for errors.
    """

    def __init__(self, board: Board, world: int, pads: bool, timeout: float | None, site: Site | None) -> None:
        self._board, self._world, self._pads, self._site = board, world, pads, site
        self._timeout = timeout or PATIENCE
        self.undelivered = 0  # units that were computed but not delivered, because another rank had run out
        self._stopped = False

    def stop(self) -> None:
        """Stop waiting for other ranks. Called from another thread than the one that waits."""
        self._stopped = True

    def through(
        self, units: Iterator[T], padding: Callable[[], T], counts: Callable[[T], bool] = lambda _: True
    ) -> Iterator[T]:
        """Yield the units up to the step at which all ranks end, followed by padding if this rank ran out earlier.

        Args:
            units: of this rank.
            padding: makes a unit of padding.
            counts: returns whether a unit is a step; others are not delivered, such as batches of skipped rows.

        Raises:
            WorkerError: a rank did not report in time, or the ranks cannot communicate.
        """
        try:
            yield from self._through(units, padding, counts)
        finally:
            self._board.leave()

    def _through(self, units: Iterator[T], padding: Callable[[], T], counts: Callable[[T], bool]) -> Iterator[T]:
        with talk(self._site, _STOPPED):
            self._board.meet(self._timeout, lambda: self._stopped, self._site)
        waiting: deque[tuple[T, bool]] = deque()  # units to deliver, and whether each is a step
        have = step = reported = 0
        ended, end = False, None
        while True:
            while end is None and not ended and have < step + BLOCK + min(step, BLOCK):
                unit = next(units, None)
                if unit is None:
                    ended = True
                else:
                    waiting.append((unit, counts(unit)))
                    if not waiting[-1][1]:
                        continue
                    have += 1
                if ended or have % BLOCK == 0:
                    self._report(reported, have % BLOCK if ended else None)
                    reported += 1
            while waiting and not waiting[0][1]:  # also after the last step, so that their skipped rows are counted
                yield waiting.popleft()[0]
            if step % BLOCK == 0:
                if reported <= step // BLOCK:  # this rank ran out in an earlier block, but other ranks did not
                    self._report(reported, 0)
                    reported += 1
                end = self._end(step // BLOCK)
            if step == end:
                break
            yield waiting.popleft()[0] if waiting else padding()
            step += 1
        self.undelivered = sum(is_step for _, is_step in waiting)

    def _report(self, block: int, end: int | None) -> None:
        with talk(self._site, _STOPPED):
            self._board.put(block, end)

    def _end(self, block: int) -> int | None:
        """Wait for all reports of a block; return the step at which the epoch ends, or None if it ends later."""
        polling = Polling(self._timeout, self._world, lambda: self._stopped)
        with talk(self._site, _STOPPED):
            while (ends := self._board.ends(block)) is None:
                if not polling.again():
                    raise _closed(self._site) if self._stopped else self._late(block)
            self._board.done(block)
        if self._pads:
            return block * BLOCK + max(ends) if len(ends) == self._world else None
        return block * BLOCK + min(ends) if ends else None

    def _late(self, block: int) -> WorkerError:
        return _late(self._board.missing(block), self._world, block, self._timeout, self._site)


def _closed(site: Site | None) -> WorkerError:
    return WorkerError("the loader was closed while it was waiting for other ranks", site=site)


def _late(missing: list[int], world: int, block: int, timeout: float, site: Site | None) -> WorkerError:
    return WorkerError(
        f"rank(s) {', '.join(map(str, missing)) or 'unknown'} did not reach step {block * BLOCK} within "
        f"{timeout:g} s, and all ranks end an epoch at the same step",
        site=site,
        done="the epoch was stopped here",
        fix="check the logs of those ranks: they ended, hang, left their loop earlier, or run with a different rank or "
        f"a world other than {world}. If they are only slow, raise loader(timeout=)",
    )
