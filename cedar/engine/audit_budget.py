"""The time for audits, which compute delivered rows again as written."""

from __future__ import annotations

import math
import time
from functools import cached_property

from cedar.core.columns import OBJECT
from cedar.engine.binding import Binding
from cedar.plan.graph import source_of

_SHARE = 0.03  # of the time


class AuditBudget:
    """Decides when an audit is due.

    Args:
        binding: the bound operators of the pipeline as written.
    """

    def __init__(self, binding: Binding) -> None:
        self.share = _SHARE  # fraction of the time for audits; 1 or more audits every piece
        self._binding = binding
        self._opened = self._spent = self._next = 0.0
        self.restart()

    def restart(self) -> None:
        """Begin again, as the streams of a plan are opened."""
        self._opened = time.perf_counter()
        self._spent = 0.0  # seconds
        self._next = 0.0  # estimated seconds of the next audit

    def due(self, opening: float) -> bool:
        """Whether to audit the next piece.

        Args:
            opening: seconds until the first rows arrived, a lower bound for the duration of an audit.
        """
        if self.share >= 1:
            return self._possible
        enough = self.seconds >= max(self._next, opening)
        return enough and self._possible and not self._has_streams  # streaming splits seek slowly

    @property
    def seconds(self) -> float:
        """Seconds that the next audit may take at most."""
        return math.inf if self.share >= 1 else (time.perf_counter() - self._opened) * self.share - self._spent

    def record(self, seconds: float, *, done: bool) -> None:
        """Record an audit. If it was stopped for taking too long, the next one is expected to take twice as long."""
        self._spent += seconds
        self._next = seconds if done else 2 * seconds

    @cached_property
    def _has_streams(self) -> bool:
        return any(self._binding.splits(source).streams for source in self._binding.sources)

    @cached_property
    def _possible(self) -> bool:
        """Whether rows can be read again unchanged. One-pass iterators and objects that functions may modify cannot."""
        sources = [(node, source_of(node)) for node in self._binding.sources]
        if any(source.one_pass for _, source in sources):
            return False
        return not any(
            source.holds_objects and OBJECT in self._binding.types(node).values() for node, source in sources
        )
