"""Types for editors and type checkers: loader options, and what loaders deliver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict

from cedar.core.errors import Skip

if TYPE_CHECKING:
    from cedar.optimizer.rewrite import Rule
    from cedar.plan.data import Budget, Plan

    class Batch(dict[Any, Any]):
        """Columns by name, or a value of unknown type that ``collate`` or a final ``map(fn)`` returned."""

        def __getattr__(self, name: str) -> Any: ...


class Submits(Protocol):
    """A Dask client, a ``concurrent.futures.Executor``, or another object with a ``submit`` method."""

    def submit(self, *args: Any, **options: Any) -> Any: ...


ExecutorLike: TypeAlias = Literal["auto", "inline", "threads", "processes", "dask"] | Submits
"""Strings are closed for type checkers, which so find misspelled ones; the address of a scheduler is one as well."""


class LoaderOptions(TypedDict, total=False):
    """The options of ``Pipeline.loader`` that do not affect the type of a batch."""

    plan: Literal["auto", "off"] | Plan
    executor: ExecutorLike
    workers: int | None
    seed: int
    epoch: int
    rank: int | None
    world: int | None
    subgroup: bool
    split_batches: bool
    steps: int | None
    deal: Literal["auto", "global"]
    counts: Literal["auto", "exact"]
    agree: str | os.PathLike[str] | Any
    device: Any
    exact: bool
    on_error: Skip | None
    timeout: float | None
    order: Literal["exact", "any"]
    progress: bool
    trace: str | os.PathLike[str] | None
    serve: str | None
    on_metrics: Callable[[dict[str, Any]], object] | None
    rules: Iterable[Rule]
    without: Iterable[str]
    budget: Budget | None
