"""Loader methods that read a batch again, or look up its rows, by step number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cedar.core.errors import CedarError, PipelineError, user_site
from cedar.engine.delivery.device import make_mover
from cedar.engine.delivery.formats import in_form
from cedar.engine.delivery.locate import Located, Location, Locator, path
from cedar.engine.delivery.replay import Replay
from cedar.engine.delivery.reporting import Reporting
from cedar.engine.runner import Runner
from cedar.operators.take import whole


class ByStep(Reporting):
    """Reads batches of an epoch by their step, recomputing them if necessary."""

    def read(self, step: int, rank: int | None = None) -> Any:
        """Return batch ``step`` of this epoch again, of this rank or another rank. Not possible after ``commit(step)``.

        Raises:
            PipelineError: the step is committed, after the epoch's end, or negative.
        """
        replay = self._replay()
        replay.site = user_site()
        try:
            piece = replay.unit(step, self.rank.rank if rank is None else rank)
        except CedarError as error:
            error.done = error.done or "nothing was read"
            self._account.locate(error)
            raise
        block = piece.rows.gather()
        if not self._batched:
            return next(block.rows(), None)
        mover = make_mover(self._options.device)
        if mover is None:
            return self._units.value(block, replay.runner)
        return in_form(mover.end(mover.begin(self._units.columns(block, replay.runner))), self._options.format)

    def locate(self, step: int, i: int = 0) -> Located:
        """Return the origin of row ``i`` of batch ``step`` in this epoch; without batches, of row ``step``.

        Files are read and functions run again only if they determine which rows exist (filters, rows that may be
        skipped, batches by length); then ``Located.ran`` is True. For a saved state, call ``load_state_dict`` first.

        Raises:
            PipelineError: the step does not exist, or has no such row.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": i} for i in range(10)]).map(str, "x").batch(4)
            >>> print(p.loader().locate(1, 2).row)
            from_items(list of 10), row 6, epoch 0
        """
        site = user_site()
        step, i = whole(step, "locate(step)"), whole(i, "locate(i)")
        locator = self._get_locator("locate()")
        try:
            keys = locator.keys(self.epoch, self._begun, step, self.rank.rank)
        except CedarError as error:
            self._account.locate(error)
            raise
        if i >= len(keys):
            raise PipelineError(f"locate({step}, {i}): the batch has {len(keys)} row(s)", site=site)
        binding = self._binding
        source, *above = path(binding.root, keys.ref(i).source)
        labels = tuple(binding.labels[id(node)] for node in above)
        reported = f"{binding.labels[id(source)]}, {source.site}"
        epoch = self.epoch if self._options.steps is None else None  # with steps=, it may span data epochs
        of, parts = keys.each()
        row, *rows = (
            replace(self._account.named(ref), epoch=epoch)
            for ref in (keys.ref(i), *map(parts.ref, np.flatnonzero(of == i).tolist()))
        )
        return Located(step, i, row, reported, labels, self._plans.current.method, locator.ran, tuple(rows))

    def where(self, file: str, row: int) -> list[Location]:
        """Return the ranks and steps at which row ``row`` of ``file`` is delivered in this epoch; inverts ``locate``.

        If row counts are known, all ranks are searched. Otherwise only this rank is searched, so call this method on
        each rank. Files and functions run again as in ``locate``. An empty list means that the row is in no batch: it
        is filtered out, left out at the end of the epoch, or in a file that the pipeline does not read.

        Args:
            file: the URL of the file, or the last part of the URL: ``"clicks/part-3.parquet"``.
            row: the row's number in the file, from 0; for text, the byte offset of the line.

        Raises:
            PipelineError: the epoch is endless.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": i} for i in range(10)]).shuffle().batch(5)
            >>> [place] = p.loader(seed=1).where("from_items(list of 10)", 6)
            >>> p.loader(seed=1).locate(place.step, place.index).row.row
            6
        """
        file, row = str(file), whole(row, "where(file, row)")
        locator = self._get_locator("where()")
        epoch, world = self.epoch, self.rank.world
        alone = world > 1 and any(entry["lanes"] is not None for entry in self._begun["open"].values())
        alone = alone or (world > 1 and self.units() is None)
        places: list[Location] = []
        try:
            for rank in [self.rank.rank] if alone else range(world):
                for step, i, ref in locator.places(epoch, self._begun, rank, row):
                    named = replace(self._account.named(ref), epoch=epoch if self._options.steps is None else None)
                    if named.url == file or str(named.url).endswith(f"/{file.lstrip('./')}"):
                        places.append(Location(epoch, rank, step, i, named))
        except CedarError as error:
            self._account.locate(error)
            raise
        return places

    def _get_locator(self, method: str) -> Locator:
        """Return the locator, created on first use."""
        self._check_steps(method)
        if self._locator is None:
            self._locator = Locator(self._job, self._options, self._account.skips, self._replays)
        return self._locator

    def commit(self, step: int) -> None:
        """Declare that batches up to and including ``step`` of this epoch will not be read again."""
        self._replay().commit(whole(step, "commit(step)"))

    def _replay(self) -> Replay:
        self._check_steps("read() and commit()")
        return self._replays.open(self.epoch, self._begun)

    def _check_steps(self, method: str) -> None:
        """Raise PipelineError if the rows of a step are not known before the step is run."""
        self._check_exact(method, user_site())
        if not self._batched and self._account.skips:
            raise PipelineError(f"{method} needs batches if rows may be skipped", site=user_site(), fix="use batch()")
        self._place(Runner("inline", 1))
