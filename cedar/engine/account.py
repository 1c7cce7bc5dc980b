"""Count delivered rows, check the limits on skipped rows, and add the file and epoch to rows in error messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from cedar.core.block import Block
from cedar.core.errors import CedarError, RowRef, Site, shortened
from cedar.core.inverse import InverseKeyedJaggedTensor
from cedar.core.skip import Skip
from cedar.datasets.base import url_of_row
from cedar.engine.binding import Binding
from cedar.engine.metrics import Metrics, SkippedFile
from cedar.engine.quarantine import Budgets
from cedar.executors.recovery.deaths import Death
from cedar.operators.concurrent_calls import left_behind
from cedar.plan.graph import source_of

ROWS_PER_TIMING = 61  # if single rows are delivered, time one row in this many, since timing costs as much as a row


class OwnTime:
    """Adds up the CPU seconds that the loader's thread spends inside calls for the next delivery.

    Args:
        metrics: the counters of the loader.
        every: time one delivery in ``every``, and multiply its time by ``every``.
    """

    def __init__(self, metrics: Metrics, every: int) -> None:
        self._metrics, self._every, self._until_timed = metrics, every, every
        self._since: float | None = None

    def enter(self) -> None:
        """Start timing: the caller asked for the next delivery."""
        self._until_timed -= 1
        if not self._until_timed:
            self._until_timed, self._since = self._every, time.thread_time()

    def leave(self) -> None:
        """Stop timing: the delivery is ready."""
        if self._since is not None:
            self._metrics.time.own += (time.thread_time() - self._since) * self._every
            self._since = None


class DeliveryCounter:
    """Counts what one loader delivers; ``epoch`` is the current data epoch."""

    def __init__(
        self,
        binding: Binding,
        metrics: Metrics,
        rank: int,
        observe: Callable[[Metrics], None] | None,
        site: Site | None,
    ) -> None:
        self._site = site
        self._binding = binding
        self._metrics = metrics
        self._observe = observe
        self.budgets = Budgets(rank)
        self.epoch = 0
        self.policies: dict[str, tuple[Skip | None, str, Site | None]] = {
            str(binding.index[id(n)]): (binding.policy(n), binding.labels[id(n)], n.site) for n in binding.nodes
        }

    @property
    def skips(self) -> bool:
        """Whether some operator may drop rows that fail."""
        return any(policy is not None for policy, _, _ in self.policies.values())

    def add(self, block: Block, slots: range, rows: int, total: float | None) -> None:
        """Count block slots about to be delivered, ``rows`` of them with a row; raise if too many rows were skipped."""
        metrics = self._metrics
        metrics.batches += 1
        metrics.rows += rows
        self.budgets.seen += len(slots)
        if block.dead:
            for slot in sorted(set(slots).intersection(block.dead)):
                why = block.dead[slot]
                policy, _, site = self.policies[str(why.operator)]
                metrics.skipped[why.label] = metrics.skipped.get(why.label, 0) + 1
                row, most = self.named(block.keys.ref(slot)), self._binding.root.batched
                if why.lost:
                    known = metrics.skipped_files.get(str(row.url), SkippedFile(why.error, 0)).rows
                    rows_lost = None if known is None or why.lost[1] < 0 else known + 1
                    metrics.skipped_files[str(row.url)] = SkippedFile(why.error, rows_lost)
                self.budgets.add(policy, row, why, site, total, most)
        if (recording := metrics.time.recording) is not None and len(slots) > 1:
            recording.handed = block.keys.ends
        if self._observe is not None:
            self._observe(metrics)

    def grouped(self, columns: dict[str, Any]) -> None:
        """Count the rows of each feature group in a batch that is about to be delivered."""
        if self._binding.marks:
            for group in {id(v): v for v in columns.values() if isinstance(v, InverseKeyedJaggedTensor)}.values():
                self._metrics.grouped(group.keys, len(group), group.unique)

    def end(self) -> None:
        """Check the final skip rates, now that all rows of the epoch are counted."""
        self.budgets.end(self.policies)

    def named(self, row: RowRef) -> RowRef:
        """Return the reference to a row with the URL of its file and its epoch filled in."""
        url = url_of_row(source_of(self._binding.sources[row.source]), row.file, row.row)
        return replace(row, url=url, epoch=self.epoch if row.epoch is None else row.epoch)

    def left_behind(self) -> list[str]:
        """Return a list with one note about calls that timed out but are still running; empty if there are none."""
        left = left_behind()
        return [f"{left} call(s) beyond their timeout= still run, in threads of this process"] if left else []

    def describe(self, death: Death) -> str:
        """Describe a worker's death, with the file and epoch of the row it worked on."""
        return death.describe(None if death.row is None else self.named(death.row))

    def locate(self, error: CedarError) -> CedarError:
        """Complete a task's error for the user: add the code line, the row's file and epoch, and the rows delivered."""
        error.restore_cause()
        error.site = error.site or self._site
        if error.row is not None and error.row.url is None:
            error.row = self.named(error.row)
        elif error.row is not None and error.row.epoch is None:
            error.row = replace(error.row, epoch=self.epoch)
        if error.done is None:
            error.done = f"the epoch was stopped after {self._metrics.rows:,} rows"
        return shortened(error)

    @contextmanager
    def located(self, done: str | None = None) -> Iterator[None]:
        """Complete the errors of the statements in ``with``; see ``locate``. ``done`` is what was done before them."""
        try:
            yield
        except CedarError as error:
            error.done = error.done or done
            self.locate(error)
            raise
