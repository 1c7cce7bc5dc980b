"""Surveys: what an operator has to know of all rows before it can work on the first, such as which of them repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from cedar.core.forks import Lock
from cedar.core.skip import Skip

T = TypeVar("T")


class Survey(Generic[T]):
    """A pass over rows that is made once, by the process that runs the pipeline; workers get what it found.

    Args:
        make: makes the pass, under a policy for rows that fail.

    Examples:
        >>> survey = Survey(lambda on_error: 3)
        >>> survey.prepare(None)
        >>> survey.value
        3
    """

    def __init__(self, make: Callable[[Skip | None], T]) -> None:
        self._make = make
        self._made: dict[Skip | None, T] = {}
        self._policy: Skip | None = None
        self._lock = Lock()

    def prepare(self, on_error: Skip | None) -> None:
        """Make the pass, unless it was made under this policy."""
        with self._lock:
            self._policy = on_error
            if on_error not in self._made:
                self._made[on_error] = self._make(on_error)

    @property
    def value(self) -> T:
        """What the pass found."""
        if self._policy not in self._made:
            self.prepare(self._policy)
        return self._made[self._policy]

    def __reduce__(self) -> tuple[Any, ...]:
        return known, (self.value,)

    def __repr__(self) -> str:
        return "Survey()"


def known(value: T) -> Survey[T]:
    """A survey that needs no pass."""
    survey = Survey[T](lambda _: value)
    survey.prepare(None)
    return survey
