"""Surveys: what an operator has to know of all rows before it can work on the first, such as which of them repeat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from cedar.core.forks import Lock
from cedar.core.skip import Skip

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Survey(Generic[T]):
    """A pass over rows that is made once per policy, by the process that runs the pipeline; workers get its result.

    Args:
        make: makes the pass, under a policy for rows that fail.
        on_error: the policy of the run that asks.

    Examples:
        >>> Survey(lambda on_error: 3).under(None).value
        3
    """

    make: Callable[[Skip | None], T] = field(repr=False)
    on_error: Skip | None = None
    _results: dict[Skip | None, T] = field(default_factory=dict, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def under(self, on_error: Skip | None) -> Survey[T]:
        """The same survey, under the policy of one run."""
        return replace(self, on_error=on_error)

    @property
    def value(self) -> T:
        """What the pass found."""
        with self._lock:
            if self.on_error not in self._results:
                self._results[self.on_error] = self.make(self.on_error)
            return self._results[self.on_error]

    def __reduce__(self) -> tuple[Any, ...]:
        return known, (self.value,)


def known(value: T) -> Survey[T]:
    """A survey that needs no pass."""
    return Survey[T](lambda _: value)
