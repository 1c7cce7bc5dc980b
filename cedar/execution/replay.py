"""Replay: any batch of an epoch again, for trainers that retry a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cedar.errors import PipelineError, Site
from cedar.execution.epoch import DataEpoch, Job
from cedar.execution.runner import Runner
from cedar.stream import Piece

_OPEN = 4  # flows kept open, so that steps read one after the other are not looked up again


class Replay:
    """Random access to the units of one epoch; reading forward continues an open flow."""

    def __init__(self, job: Job, epoch: int, options: Any, site: Site | None) -> None:
        self.epoch = epoch
        self.runner = Runner("inline", 1)
        self._job = job
        self._steps = options.steps
        self._site = site
        self._committed = -1
        self._flows: dict[int, tuple[int, Iterator[Piece]]] = {}  # rank to (next step, pieces)

    def commit(self, step: int) -> None:
        """Forget the steps up to this one."""
        self._committed = max(self._committed, step)

    def unit(self, step: int, rank: int) -> Piece:
        """The unit that ``rank`` gets at ``step``."""
        if not 0 <= rank < self._job.rank.world:
            raise PipelineError(f"read(rank={rank}): ranks are 0 to {self._job.rank.world - 1}", site=self._site)
        if step <= self._committed:
            raise PipelineError(
                f"read({step}): steps up to {self._committed} are committed",
                site=self._site,
                fix="commit a step only when nobody will ask for it again",
            )
        place, pieces = self._flows.pop(rank, (0, None))
        if pieces is None or place > step:
            place, pieces = self._open(step, rank)
        for piece in pieces:
            last = place + piece.units
            if step < last:
                rest = piece.slice(step - place + 1, piece.units) if not piece.batch and step + 1 < last else None
                self._keep(rank, step + 1, _chain(rest, pieces))
                return piece.slice(step - place, step - place + 1)
            place = last
        raise PipelineError(f"read({step}): the epoch of rank {rank} has {place} steps", site=self._site)

    def _open(self, step: int, rank: int) -> tuple[int, Iterator[Piece]]:
        entry = None
        if self._steps is not None:
            raise PipelineError(
                "read() with steps= is not there", site=self._site, fix="leave steps out, or keep the batch yourself"
            )
        known = DataEpoch(_as_rank(self._job, rank), self.runner, self.epoch, None)
        start = 0
        if known.units() is not None:
            entry = {"history": [], "deal": [[step, None, None], 0], "lanes": None}
            start = step
        return start, DataEpoch(_as_rank(self._job, rank), self.runner, self.epoch, entry).pieces()

    def _keep(self, rank: int, place: int, pieces: Iterator[Piece]) -> None:
        self._flows[rank] = (place, pieces)
        while len(self._flows) > _OPEN:
            self._flows.pop(next(iter(self._flows)))

    def close(self) -> None:
        """Let go of the open flows."""
        self._flows.clear()
        self.runner.close()


def _chain(first: Piece | None, rest: Iterator[Piece]) -> Iterator[Piece]:
    if first is not None:
        yield first
    yield from rest


def _as_rank(job: Job, rank: int) -> Job:
    from dataclasses import replace

    return replace(job, rank=replace(job.rank, rank=rank))
