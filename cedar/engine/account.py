"""Count delivered rows, check the limits on skipped rows, and add the file and epoch to rows in error messages."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from cedar.core.block import Block, Skipped
from cedar.core.errors import CedarError, PipelineError, RowError, RowRef, Site, Skip, shortened
from cedar.core.inverse import InverseKeyedJaggedTensor
from cedar.core.remote import find_place
from cedar.engine.binding import Binding
from cedar.engine.metrics import Metrics, SkippedFile
from cedar.executors.recovery.task import Death
from cedar.operators.concurrent_calls import left_behind


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
        self.counts_groups = binding.marks  # whether batches may contain feature groups
        self.budgets = Budgets(rank)
        self.epoch = 0
        self.policies: dict[str, tuple[Skip | None, str, Site | None]] = {
            str(binding.index[id(n)]): (binding.policy(n), binding.labels[id(n)], n.site) for n in binding.nodes
        }

    @property
    def skips(self) -> bool:
        """Whether some operator may drop rows that fail."""
        return any(policy is not None for policy, _, _ in self.policies.values())

    def add(self, block: Block, total: float | None, slots: range | None = None) -> None:
        """Count a block, or some of its slots, that is about to be delivered; raise if too many rows were skipped.

        Args:
            total: the epoch's number of rows on this rank; None if unknown.
        """
        metrics, slots = self._metrics, range(len(block.keys.row)) if slots is None else slots
        metrics.batches += 1
        metrics.rows += len(slots)
        self.budgets.seen += len(slots)
        if block.dead:
            skipped = sorted(set(slots).intersection(block.dead))
            metrics.rows -= len(skipped)
            for slot in skipped:
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
        for group in {id(v): v for v in columns.values() if isinstance(v, InverseKeyedJaggedTensor)}.values():
            self._metrics.grouped(group.keys, len(group), group.unique)

    def named(self, row: RowRef) -> RowRef:
        """Return the reference to a row with the URL of its file and its epoch filled in."""
        return replace(self._binding.located(row), epoch=self.epoch if row.epoch is None else row.epoch)

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


# ---- skipped rows ----------------------------------------------------------------------------------------------------

_MIN_SEEN = 1000  # if the epoch's number of rows is unknown, rates are checked as if at least this many had been seen


class Quarantine:
    """One rank's JSONL file under a directory or URL, with a line for each skipped (epoch, row, operator)."""

    def __init__(self, where: str, rank: int) -> None:
        self._fs, root = find_place(where, "quarantine")
        self._path = f"{root}/rank-{rank}.jsonl"
        self._where = where
        self._lines: dict[tuple[Any, ...], str] = {}
        self._torn = False
        with self._written():
            self._fs.makedirs(root, exist_ok=True)
            text = self._fs.cat_file(self._path).decode(errors="replace") if self._fs.exists(self._path) else ""
        for line in text.splitlines(keepends=True):
            self._torn = not line.endswith("\n")  # a run that was killed may leave an incomplete line
            with suppress(ValueError, TypeError, AttributeError):  # or it may hold something else
                self._lines[_key(json.loads(line))] = line.strip()
        self._append = "file" in (self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,))

    def add(self, row: RowRef, why: Skipped) -> None:
        """Record a skipped row, unless it is already recorded."""
        record = {
            "source": row.url, "row": row.row, "item": row.sub, "repeat": row.repeat, "epoch": row.epoch,
            "operator": why.label, "error": why.error,
        }  # fmt: skip
        if why.lost:  # write one record for all rows that were lost together
            record |= {"row": why.lost[0], "rows": why.lost[1] if why.lost[1] >= 0 else None}
        if _key(record) in self._lines:
            return
        line = json.dumps(record)
        self._lines[_key(record)] = line
        with self._written():
            if self._append:
                known = [line] if os.path.exists(self._path) else self._lines.values()  # rewrite a deleted file
                with open(self._path, "a", encoding="utf-8") as file:
                    file.write("\n" * self._torn + "".join(f"{each}\n" for each in known))
                self._torn = False
            else:  # object stores cannot append
                self._fs.pipe_file(self._path, "".join(f"{text}\n" for text in self._lines.values()).encode())

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PipelineError(
                f"quarantine={self._where!r} cannot be written: {error}",
                done="the epoch was stopped: a row would have been dropped without a record",
                fix="free space, or give a directory that can be written",
            ) from error


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in ("epoch", "source", "row", "item", "repeat", "operator"))


class Budgets:
    """Counts skipped rows in order of delivery, and stops the run when a limit of ``Skip`` is exceeded."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._files: dict[str, Quarantine] = {}
        self.counts: dict[str, int] = {}  # by operator ordinal, a string because states are saved as JSON
        self.seen = 0
        self._last: dict[str, tuple[RowRef, str]] = {}  # the last skipped row and its error, by operator ordinal

    def start(self, counts: dict[str, int], seen: int) -> None:
        """Begin an epoch, or resume one with the counts from a state."""
        self.counts = dict(counts)
        self.seen = seen
        self._last = {key: last for key, last in self._last.items() if key in counts}

    def add(
        self, policy: Skip | None, row: RowRef, why: Skipped, site: Site | None, total: float | None, most: bool = False
    ) -> None:
        """Count one skipped row, and raise if that exceeds a limit of ``policy``.

        Args:
            total: the epoch's number of rows on this rank; None if unknown.
            most: whether ``total`` is only an upper bound, since the last batch may be short.
        """
        key = str(why.operator)
        self.counts[key] = self.counts.get(key, 0) + 1
        self._last[key] = row, why.error
        if policy is None:
            return
        if policy.quarantine is not None:
            file = self._files.get(policy.quarantine)
            if file is None:
                file = self._files[policy.quarantine] = Quarantine(policy.quarantine, self._rank)
            file.add(row, why)
        rows = total if total is not None else max(self.seen, _MIN_SEEN)
        kind = "the first " if total is None else "at most " if most else ""
        over = self._over(policy, key, rows, kind)
        if over:
            raise self._error(why.label, key, over, site, "the epoch was stopped before the batch with this row")

    def end(self, policies: dict[str, tuple[Skip | None, str, Site | None]]) -> None:
        """Check the final rates, now that all rows of the epoch are counted."""
        for key, (policy, label, site) in policies.items():
            over = self._over(policy, key, self.seen) if policy is not None and key in self.counts else ""
            if over:
                raise self._error(label, key, over, site, "all batches of the epoch were delivered")

    def _over(self, policy: Skip, key: str, rows: float, kind: str = "") -> str:
        """Return the exceeded limit as text; "" if no limit is exceeded."""
        count = self.counts[key]
        if policy.max_count is not None and count > policy.max_count:
            return f"max_count={policy.max_count}"
        if policy.max_rate is not None and count > policy.max_rate * rows:
            return f"max_rate={policy.max_rate} of {kind}{int(rows):,} rows"
        return ""

    def _error(self, label: str, key: str, over: str, site: Site | None, done: str) -> RowError:
        row, cause = self._last.get(key, (None, ""))  # missing if all skips were counted before a state was saved
        last = f"; the last: {cause}" if row is not None else ""
        return RowError(
            f"{label} skipped {self.counts[key]:,} row(s), more than {over}{last}",
            site=site,
            row=row,
            done=done,
            fix="fix the data or the function, or raise the budget",
        )
