"""Account: counts what is handed over, judges the budgets of skipped rows, and names rows for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cedar.block import Block
from cedar.errors import CedarError, RowRef, Site
from cedar.execution.binding import Binding
from cedar.execution.metrics import Metrics
from cedar.execution.quarantine import Budgets
from cedar.skip import Skip


class Account:
    """One for each loader; ``epoch`` is the data epoch at hand."""

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
        """Some operator may drop rows that fail."""
        return any(policy is not None for policy, _, _ in self.policies.values())

    def add(self, block: Block, slots: range, rows: int, total: float | None) -> None:
        """Slots of a block, with so many live rows, are about to be handed over; raises beyond a budget."""
        metrics = self._metrics
        metrics.batches += 1
        metrics.rows += rows
        self.budgets.seen += len(slots)
        if block.dead:
            for slot in sorted(set(slots).intersection(block.dead)):
                why = block.dead[slot]
                policy, _, site = self.policies[str(why.operator)]
                metrics.skipped[why.label] = metrics.skipped.get(why.label, 0) + 1
                self.budgets.add(policy, self.named(block.keys.ref(slot)), why, site, total)
        if self._observe is not None:
            self._observe(metrics)

    def end(self) -> None:
        """The epoch's rows are counted."""
        self.budgets.end(self.policies)

    def named(self, row: RowRef) -> RowRef:
        """A row with the URL of its file and its epoch."""
        source: Any = self._binding.sources[row.source].operator.source  # type: ignore[attr-defined]
        find = getattr(source, "url_of", None)
        url = find(row.file, row.row) if find is not None else source.url(row.file)
        return replace(row, url=url, epoch=self.epoch if row.epoch is None else row.epoch)

    def locate(self, error: CedarError) -> None:
        """Give an error from a task what only the coordinator knows."""
        error.restore_cause()
        error.site = error.site or self._site
        if error.row is not None and error.row.url is None:
            error.row = self.named(error.row)
        elif error.row is not None and error.row.epoch is None:
            error.row = replace(error.row, epoch=self.epoch)
        if error.done is None:
            error.done = f"the epoch was stopped after {self._metrics.rows:,} rows"
