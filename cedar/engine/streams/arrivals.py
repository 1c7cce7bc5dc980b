"""Arrivals: the order in which rows came that were taken as they were done, in a file, so that another run can follow.

A line is a run of row numbers, as they are in order in this rank's part of the epoch. Lines are only ever appended:
what a run that was resumed delivers again counts where it came last.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cedar.core.errors import PipelineError, Site
from cedar.core.stream import is_count, is_list
from cedar.engine.streams.lanes import Lane

Run: TypeAlias = tuple[int, int]  # numbers from the first up to the second
Runs: TypeAlias = npt.NDArray[np.int64]  # [n, 2]
_NONE: Runs = np.empty((0, 2), dtype=np.int64)
_VERSION = 2


@dataclass(frozen=True)
class Arrivals:
    """Of one rank's part of an epoch, or of one lane of it.

    Args:
        recorded: the runs to follow, in their order.
        add: called with the first number of a run that is handed over, and the one after its last.
    """

    recorded: Runs = field(default_factory=lambda: _NONE)
    add: Callable[[int, int], object] = lambda _first, _last: None

    def after(self, base: int, taken: Sequence[Run]) -> list[Run]:
        """What was recorded of the numbers from ``base`` on, without those that were taken."""
        runs = np.maximum(self.recorded, base)
        for first, last in taken:
            before, behind = np.minimum(runs, first), np.maximum(runs, last)
            runs = np.stack([before, behind], axis=1).reshape(-1, 2)
        return [(a, b) for a, b in runs.tolist() if a < b]


@dataclass
class Orders:
    """What a loader records and follows: a file for each epoch and rank.

    Args:
        record: the folder that the order is written to, or None.
        follow: the folder with the order to follow, or None.
        made: what tells the pipeline, its data and seed; asked once rows come.
        rank, world: of the loader.
    """

    record: Path | None
    follow: Path | None
    made: Callable[[], str]
    rank: int
    world: int
    site: Site | None = None
    _file: tuple[int, IO[str]] | None = None  # the epoch that is recorded
    _run: object = field(default_factory=object)  # the iteration under way
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _read: tuple[int, dict[str, Runs]] | None = None  # the epoch that is followed

    @property
    def free(self) -> bool:
        """Any order will do."""
        return self.follow is None

    def of(self, epoch: int, lane: Lane | None) -> Arrivals:
        """Of an epoch's part.

        Raises:
            PipelineError: it was not recorded, or of something else.
        """
        part = "" if lane is None else f"{lane.number}/{lane.of}/{len(lane.past)}"
        recorded = _NONE
        if self.follow is not None:
            if self._read is None or self._read[0] != epoch:
                self._read = epoch, self._followed(self.follow, epoch)
            recorded = self._read[1].get(part, _NONE)
        if self.record is None:
            return Arrivals(recorded)
        with self._lock:
            self._open(epoch)  # an epoch without a row has its file, too
            run = self._run
        return Arrivals(recorded, lambda first, last: self._add(run, epoch, first, last, part))

    def close(self) -> None:
        """The iteration is over, and all that came is in the file; a thread of it that goes on adds nothing."""
        with self._lock:
            self._run = object()
            self._end()

    def _end(self) -> None:
        if self._file is not None:
            self._file[1].close()
            self._file = None

    def _path(self, folder: Path, epoch: int) -> Path:
        return folder / f"epoch-{epoch}.rank-{self.rank}-of-{self.world}.jsonl"

    @cached_property
    def _head(self) -> dict[str, Any]:
        return {"cedar order": _VERSION, "of": self.made()}

    # ---- writing -----------------------------------------------------------------------------------------------------

    def _add(self, run: object, epoch: int, first: int, last: int, part: str) -> None:
        with self._lock:
            if run is self._run:
                self._open(epoch).write(json.dumps([first, last, part] if part else [first, last]) + "\n")

    def _open(self, epoch: int) -> IO[str]:
        if self._file is None or self._file[0] != epoch:
            self._end()
            assert self.record is not None
            self._file = epoch, self._opened(self._path(self.record, epoch))
        return self._file[1]

    def _opened(self, path: Path) -> IO[str]:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size:
                self._check(path, path.read_bytes().splitlines()[0])
                with path.open("r+b") as whole:  # a line that a crash cut short
                    text = whole.read()
                    whole.truncate(text.rfind(b"\n") + 1)
                return path.open("a", encoding="utf-8", buffering=1)
            file = path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise PipelineError(
                f"record={str(self.record)!r}: the order cannot be written: {error}",
                site=self.site,
                fix="give a folder of this machine that can be written to",
            ) from error
        file.write(json.dumps(self._head) + "\n")
        return file

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _followed(self, folder: Path, epoch: int) -> dict[str, Runs]:
        path = self._path(folder, epoch)
        try:
            head, *lines = path.read_bytes().split(b"\n")
        except OSError as error:
            raise PipelineError(
                f"order={str(folder)!r}: the order of epoch {epoch}, rank {self.rank} of {self.world}, is not recorded "
                f"there: {error}",
                site=self.site,
                fix='record it: loader(order="any", record=...), with as many ranks',
            ) from error
        self._check(path, head)
        by_part: dict[str, list[Run]] = {}
        for number, line in enumerate(lines[:-1], 2):  # what a crash cut short has no end
            first, last, part = self._line(path, number, line)
            by_part.setdefault(part, []).append((first, last))
        return {part: _once(np.array(runs, dtype=np.int64)) for part, runs in by_part.items()}

    def _check(self, path: Path, head: bytes) -> None:
        try:
            saved = json.loads(head)
        except ValueError:
            saved = None
        if not isinstance(saved, dict) or saved.get("cedar order") != _VERSION:
            raise PipelineError(f"{path} is no order that this version records", site=self.site)
        if saved != self._head:
            raise PipelineError(
                f"{path} is the order of another pipeline, of other data or of another seed",
                site=self.site,
                fix="give another folder, or the pipeline, data and seed that it was recorded with",
            )

    def _line(self, path: Path, number: int, line: bytes) -> tuple[int, int, str]:
        try:
            first, last, *part = json.loads(line)
        except (ValueError, TypeError):
            first = last = part = None
        if not (is_list([first, last, part], 3) and is_count(first) and is_count(last) and first < last):
            raise PipelineError(f"{path}, line {number}: the recorded order is damaged", site=self.site)
        return first, last, str(part[0]) if part else ""


def _once(runs: Runs) -> Runs:
    """Each number once, where it comes last.

    Example:
        >>> _once(np.array([[0, 4], [6, 8], [4, 6], [6, 7], [4, 5]])).tolist()
        [[0, 4], [7, 8], [5, 7], [4, 5]]
    """
    order = np.argsort(runs[:, 0], kind="stable")
    if np.any(runs[order[1:], 0] < runs[order[:-1], 1]):
        numbers = np.concatenate([np.arange(first, last) for first, last in runs.tolist()])
        _, latest = np.unique(numbers[::-1], return_index=True)
        numbers = numbers[np.sort(len(numbers) - 1 - latest)]
        runs = np.stack([numbers, numbers + 1], axis=1)
    if not len(runs):
        return runs
    ends = np.flatnonzero(runs[1:, 0] != runs[:-1, 1])
    return np.stack([runs[np.r_[0, ends + 1], 0], runs[np.r_[ends, len(runs) - 1], 1]], axis=1)
