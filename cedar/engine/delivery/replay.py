"""Replay: recompute any batch of an epoch, for trainers that retry a step."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from cedar.core.errors import PipelineError, Site
from cedar.core.stream import Piece
from cedar.engine.delivery.options import Options
from cedar.engine.delivery.position import Position
from cedar.engine.delivery.state import copied
from cedar.engine.epoch import DataEpoch, Job
from cedar.engine.metrics import Metrics
from cedar.engine.nodes import last_mode
from cedar.engine.plan_control import Plans
from cedar.engine.runner import Runner
from cedar.executors.choose import executor_after_fork
from cedar.plan.data import Plan

_OPEN = 4  # number of flows to keep open, so that consecutive steps can be read without seeking


class Replay:
    """Random access to the units of one epoch; reading the next step continues an open flow.

    Args:
        job: the job whose units are recomputed.
        epoch: the loader's epoch.
        begun: the position from which the epoch's steps count: {"step", "data", "open"}.
        site: the user's line, for errors.
        runner: runs the tasks; the replay closes it.
    """

    def __init__(self, job: Job, epoch: int, begun: dict[str, Any], site: Site | None, runner: Runner) -> None:
        self.epoch = epoch
        self.begun = begun
        self.runner = runner
        self._job = job
        self._steps = job.steps
        self.site = site
        self._committed = -1
        # By rank: (next step, the piece that contains it, later pieces).
        self._flows: dict[int, tuple[int, Piece | None, Iterator[Piece]]] = {}

    def commit(self, step: int) -> None:
        """Declare steps up to ``step`` as final, so that they cannot be read again."""
        self._committed = max(self._committed, step)

    def unit(self, step: int, rank: int) -> Piece:
        """Return the unit that ``rank`` receives at ``step``.

        Raises:
            PipelineError: the step is committed, before the epoch's start or after its end.
        """
        self._check(step, rank)
        place, rest, pieces = self._flows.pop(rank, (0, None, None))
        if pieces is None or place > step:
            place, pieces = self._open(step, rank)
            rest = None
        for piece in pieces if rest is None else itertools.chain([rest], pieces):
            after = place + piece.units
            if step < after:
                rest = piece.slice(step - place + 1, piece.units) if step + 1 < after else None
                self._keep_flow(rank, step + 1, rest, pieces)
                return piece.slice(step - place, step - place + 1)
            place = after
        raise PipelineError(f"step {step}: the epoch of rank {rank} has {place} steps", site=self.site)

    def all(self, rank: int) -> Iterator[tuple[int, Piece]]:
        """Yield all units that ``rank`` receives in the epoch, as pairs of a step and the piece that begins at it.

        Raises:
            PipelineError: only that rank knows its position, or the epoch is endless.
        """
        self._check_rank(rank)
        place, pieces = self._open(self.begun["step"], rank)
        if self._steps is None and self._job.endless:
            raise PipelineError("the epoch has no end", site=self.site, fix="give loader(steps=...)")
        for piece in pieces:
            if self._steps is not None and place >= self._steps:
                return
            yield place, piece
            place += piece.units

    def _check(self, step: int, rank: int) -> None:
        self._check_rank(rank)
        world = self._job.rank.world
        if step <= self._committed:
            raise PipelineError(
                f"step {step}: steps up to {self._committed} are committed",
                site=self.site,
                fix="commit a step only when it will not be read again",
            )
        if step < self.begun["step"]:
            raise PipelineError(
                f"step {step}: the epoch was redistributed to {world} rank(s) at step {self.begun['step']}",
                site=self.site,
            )
        if self._steps is not None and step >= self._steps:
            raise PipelineError(f"step {step}: the epoch has {self._steps} steps", site=self.site)

    def _check_rank(self, rank: int) -> None:
        """Raise PipelineError if this rank cannot derive what ``rank`` receives."""
        world = self._job.rank.world
        if not 0 <= rank < world:
            raise PipelineError(f"rank {rank}: ranks are 0 to {world - 1}", site=self.site)
        if rank != self._job.rank.rank and any(entry["lanes"] is not None for entry in self.begun["open"].values()):
            raise PipelineError(
                f"row counts are unknown, so only rank {rank} knows its position",
                site=self.site,
                fix="read it on that rank",
            )
        drifted = last_mode(self._job.binding.root) == "keep" and self.begun["open"]
        if rank != self._job.rank.rank and self._steps is not None and drifted:
            raise PipelineError(
                f'with steps= and last="keep", only rank {rank} knows its position',
                site=self.site,
                fix='read it on that rank, or use last="drop" or "pad"',
            )

    def _open(self, step: int, rank: int) -> tuple[int, Iterator[Piece]]:
        """Return the pieces from a step on, and that step: the wanted one if counts are known, else an earlier one."""
        job = replace(self._job, rank=replace(self._job.rank, rank=rank))
        place = self.begun["step"]
        data = self.begun["data"]
        opened = self.begun["open"]
        while True:
            entry = _entry_of_rank(opened.get(str(data)), rank == self._job.rank.rank)
            units = DataEpoch(job, self.runner, data, entry).units()
            if units is None or units == 0 or place + units > step or self._steps is None:
                break
            place += int(units)
            data += 1
        if units is not None and units != math.inf and step > place:
            entry = entry or {"history": [], "deal": None, "lanes": None}
            taken = 0 if entry["deal"] is None else entry["deal"][0][0] + entry["deal"][1]
            jump = min(step - place, int(units))
            entry = entry | {"deal": [[taken + jump, None, None], 0]}
            place += jump
        return place, self._pieces(job, data, entry, opened)

    def _pieces(self, job: Job, data: int, entry: dict[str, Any] | None, opened: dict[str, Any]) -> Iterator[Piece]:
        while True:
            some = False
            for piece in DataEpoch(job, self.runner, data, entry).pieces():
                some = some or piece.units > 0
                yield piece
            if self._steps is None or not some:
                return
            data += 1
            entry = _entry_of_rank(opened.get(str(data)), job.rank.rank == self._job.rank.rank)

    def _keep_flow(self, rank: int, place: int, rest: Piece | None, pieces: Iterator[Piece]) -> None:
        self._flows[rank] = (place, rest, pieces)
        while len(self._flows) > _OPEN:
            self._flows.pop(next(iter(self._flows)))

    def close(self) -> None:
        """Close the open flows and the runner."""
        self._flows.clear()
        self.runner.close()


def _entry_of_rank(entry: dict[str, Any] | None, own: bool) -> dict[str, Any] | None:
    """Return an epoch's state entry for another rank, without the position that is valid only for this rank."""
    if entry is None or own or entry["deal"] is None:
        return entry
    (taken, _, _), skip = entry["deal"]
    return entry | {"deal": [[taken, None, None], skip]}


class Replays:
    """Creates the replay of a loader's current epoch.

    Args:
        job: the loader's job. Batches are recomputed by the pipeline as written, not by the current plan.
        options: the loader's options. If its tasks run in other processes, so do the replay's, so that a row that
            crashes workers does not crash this process. Otherwise they run in the caller's thread.
        site: the user's line, for errors.
        plans: plans to use instead of the pipeline as written.
    """

    def __init__(self, job: Job, options: Options, site: Site | None, plans: Plans | None = None) -> None:
        self._current: Replay | None = None
        self._pid, self._getpid = os.getpid(), os.getpid  # ``os`` may be gone at interpreter exit
        written = plans or Plans(None, Plan.as_written(job.binding.root), job.binding, Metrics())
        self._job = replace(job, plans=written)
        self._options = options
        self._site = site

    def open(self, position: Position) -> Replay:
        """Return the replay of the epoch of a position."""
        if self._pid != os.getpid():  # in a forked child, open flows belong to the parent and must not be closed
            _replays_of_parent.append(self._current)
            self._current, self._pid = None, os.getpid()
        current = self._current
        if current is None or current.epoch != position.epoch or current.begun != position.begun:
            self.close()
            begun = copied(position.begun)
            current = self._current = Replay(self._job, position.epoch, begun, self._site, self._runner())
        return current

    def _runner(self) -> Runner:
        executor, _ = executor_after_fork(self._options.executor, None)
        here = executor in ("auto", "inline", "threads") or isinstance(executor, ThreadPoolExecutor)
        return Runner("inline", 1) if here else self._options.runner(self._job.metrics.deaths)

    def close(self) -> None:
        """Close the current replay."""
        if self._current is not None and self._pid == self._getpid():
            self._current.close()
            self._current = None

    def __del__(self) -> None:
        self.close()  # ends its threads when a loader is garbage-collected


_replays_of_parent: list[Replay | None] = []  # referenced here so that a forked child does not close them
