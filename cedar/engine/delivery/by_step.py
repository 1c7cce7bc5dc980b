"""Loader methods that read batches again, and look up rows, by step."""

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
        """Return batch ``step`` of this epoch again, of this rank or another, until ``commit``.

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
        """Return where row ``i`` of batch ``step`` of this epoch came from; without batches, row ``step``.

        Files and functions run again only if they determine which rows exist (filters, rows that may be skipped,
        batches by length); the result says so. For a saved state, call ``load_state_dict`` first.

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
        epoch = self.epoch if self._options.steps is None else None  # with steps=, an epoch spans parts of several
        of, parts = keys.each()
        row, *rows = (
            replace(self._account.named(ref), epoch=epoch)
            for ref in (keys.ref(i), *map(parts.ref, np.flatnonzero(of == i).tolist()))
        )
        return Located(step, i, row, reported, labels, self._plans.current.method, locator.ran, tuple(rows))

    def where(self, file: str, row: int) -> list[Location]:
        """Return where row ``row`` of ``file`` is delivered in this epoch, by rank and step; the inverse of locate.

        If row counts are known, all ranks are searched; otherwise only this one, so call it on each. Files and
        functions run again as in ``locate``. An empty list means that the row is in no batch: filtered out, left out
        at the end of the epoch, or in no file that is read.

        Args:
            file: the URL of a source, or its last part: ``"clicks/part-3.parquet"``.
            row: its number in the file, from 0; for text, the byte offset of the line.

        Raises:
            PipelineError: the epoch has no end.

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
        """Mark batches up to and including ``step`` of this epoch as consumed: they need not be read again."""
        self._replay().commit(whole(step, "commit(step)"))

    def _replay(self) -> Replay:
        self._check_steps("read() and commit()")
        return self._replays.open(self.epoch, self._begun)

    def _check_steps(self, method: str) -> None:
        """Raise PipelineError if steps cannot be known before they are run."""
        self._check_exact(method, user_site())
        if not self._batched and self._account.skips:
            raise PipelineError(f"{method} needs batches if rows may be skipped", site=user_site(), fix="use batch()")
        self._place(Runner("inline", 1))
