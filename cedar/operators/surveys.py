"""Surveys: passes over all rows that an operator needs before its first row, for example to find duplicates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from cedar.core.forks import Lock
from cedar.core.skip import Skip

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Survey(Generic[T]):
    """A pass over all rows, which the coordinator runs once per policy; workers receive only its result.

    Args:
        make: a function of the policy for rows that fail, which runs the pass and returns its result.
        on_error: the policy of the current run.

    Examples:
        >>> Survey(lambda on_error: 3).under(None).value
        3
    """

    make: Callable[[Skip | None], T] = field(repr=False)
    on_error: Skip | None = None
    _results: dict[Skip | None, T] = field(default_factory=dict, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def under(self, on_error: Skip | None) -> Survey[T]:
        """Return the survey with the policy of one run."""
        return replace(self, on_error=on_error)

    @property
    def value(self) -> T:
        """The result of the pass."""
        with self._lock:
            if self.on_error not in self._results:
                self._results[self.on_error] = self.make(self.on_error)
            return self._results[self.on_error]

    def __reduce__(self) -> tuple[Any, ...]:
        return known, (self.value,)


class Surveyed:
    """An operator whose kernel needs to know something about all rows, which a survey collects when a run begins."""

    survey: Survey[Any]


def known(value: T) -> Survey[T]:
    """Return a survey with a known result, for which no pass runs."""
    return Survey[T](lambda _: value)
