"""Read batches of an epoch again by step number, and find the origin of their rows."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError, RowRef, Site
from cedar.core.stream import Piece
from cedar.engine.binding import Binding
from cedar.engine.delivery.locate import Located, Location, path, without_columns, without_kernels
from cedar.engine.delivery.position import Position
from cedar.engine.delivery.replay import Replays
from cedar.engine.delivery.units import Units
from cedar.engine.epoch import Job
from cedar.engine.metrics import Metrics
from cedar.engine.plan_control import Plans
from cedar.plan.data import Plan
from cedar.plan.graph import Node


class ByStep:
    """Computes batches of an epoch again, or only the keys of their rows.

    Args:
        job: the loader's job. It is replaced, and this object with it, when the ranks or the weights change.
        units: converts batches for the caller.
        site: the line that created the loader, for errors.
    """

    def __init__(self, job: Job, units: Units, site: Site | None) -> None:
        self._job, self._units, self._account = job, units, units.account
        self.replays = Replays(job, units.options, site)
        self._last: tuple[Any, Keys] | None = None  # cached, since callers often look up several rows of one step

    @cached_property
    def _bare(self) -> Node | None:
        """The pipeline without operators that only change values; None if values determine which rows exist."""
        whole = self._account.skips or self._job.split_batches
        return None if whole else without_kernels(self._job.binding.root)

    @cached_property
    def _replays_of_keys(self) -> Replays:
        """Replays of the row keys, which run kernels only if values determine which rows exist."""
        bare, job, options = self._bare, self._job, self._units.options
        if bare is not None:
            binding = Binding(bare, None, job.binding.check_env, job.binding.call_in_subprocess)
            plans = Plans(None, Plan(bare, without_columns(bare)), binding, Metrics())
            return Replays(replace(job, binding=binding, finish=()), options, None, plans)
        if any(n.row_use.rows == "joined" for n in job.binding.nodes):
            binding = copy.copy(job.binding)
            binding.parts = True
            return Replays(replace(job, binding=binding), options, None)
        return self.replays

    def _keys_of(self, piece: Piece) -> Keys:
        return piece.rows.keys() if self._bare is not None else piece.rows.gather().live_keys()

    def _named(self, position: Position, ref: RowRef) -> RowRef:
        """Return the reference to a row with its file, and its epoch unless ``steps=`` lets one span data epochs."""
        return replace(self._account.named(ref), epoch=position.epoch if self._job.steps is None else None)

    def read(self, position: Position, step: int, rank: int | None, site: Site | None) -> Any:
        """See ``Loader.read``."""
        replay = self.replays.open(position)
        replay.site = site
        with self._account.located("nothing was read"):
            piece = replay.unit(step, self._job.rank.rank if rank is None else rank)
        return self._units.again(piece.rows.gather(), replay.runner)

    def locate(self, position: Position, step: int, i: int, site: Site | None) -> Located:
        """See ``Loader.locate``."""
        asked = position.epoch, copy.deepcopy(position.begun), step
        with self._account.located():
            if self._last is None or self._last[0] != asked:
                replay = self._replays_of_keys.open(position)
                self._last = asked, self._keys_of(replay.unit(step, self._job.rank.rank))
        keys, binding = self._last[1], self._job.binding
        if i >= len(keys):
            raise PipelineError(f"locate({step}, {i}): the batch has {len(keys)} row(s)", site=site)
        source, *above = path(binding.root, keys.ref(i).source)
        of, parts = keys.each()
        refs = [keys.ref(i), *map(parts.ref, np.flatnonzero(of == i).tolist())]
        row, *rows = (self._named(position, ref) for ref in refs)
        return Located(
            step, i, row, f"{binding.labels[id(source)]}, {source.site}", tuple(binding.labels[id(n)] for n in above),
            self._job.plans.current.method, self._bare is None, tuple(rows),
        )  # fmt: skip

    def where(self, position: Position, file: str, row: int, *, alone: bool) -> list[Location]:
        """See ``Loader.where``; ``alone``: search only this rank, because the positions of others are unknown."""
        places = []
        with self._account.located():
            for rank in [self._job.rank.rank] if alone else range(self._job.rank.world):
                for step, piece in self._replays_of_keys.open(position).all(rank):
                    slots, keys = self._keys_of(piece).each()
                    for found in np.flatnonzero(keys.row == row).tolist():
                        named, i = self._named(position, keys.ref(found)), int(slots[found])
                        if named.url == file or str(named.url).endswith(f"/{file.lstrip('./')}"):
                            at = (step, i) if piece.batch else (step + i, 0)
                            places.append(Location(position.epoch, rank, *at, named))
        return places

    def close(self) -> None:
        """Close the open replays."""
        for each in {self.replays, self.__dict__.get("_replays_of_keys", self.replays)}:
            each.close()
