"""Limits on the number of skipped rows, and the quarantine file that records these rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from cedar.core.block import Skipped
from cedar.core.errors import PipelineError, RowError, RowRef, Site
from cedar.core.output_urls import find_place
from cedar.core.skip import Skip

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
            with suppress(ValueError):
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
