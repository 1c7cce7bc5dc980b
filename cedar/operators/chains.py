"""Chains: consecutive transforms fused into one kernel, which does not compute intermediate results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from cedar.core.columns import Column, ColumnType
from cedar.operators.draws import Draws

if TYPE_CHECKING:
    from cedar.operators.transform import Transform


@dataclass(frozen=True)
class Link:
    """A transform in a chain, with the columns that it reads and writes.

    Attributes:
        exact: False if the result may differ within ``Transform.tolerance``.
        like: the type that ``Transform.like`` found in a sample of the first column read; None if it found none.
    """

    transform: Transform
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    exact: bool = True
    like: ColumnType | None = None


class Chainable(ABC):
    """An operator that may be a whole-column transform, which can be fused with others in a chain."""

    @property
    @abstractmethod
    def link(self) -> Link | None:
        """The transform; None if the operator is not one."""

    @abstractmethod
    def loosened(self) -> Self:
        """Return a copy of the operator that may give inexact results within the tolerance of its transform."""


@dataclass(frozen=True)
class ChainFault:
    """The reason why a transform has no result for a row: its index in the chain, the problem, and the fix."""

    link: int
    why: str
    fix: str


class Chain(Protocol):
    """Runs several transforms of a family in one kernel. The result equals running them one after the other. It is
    bit-identical if all links are exact.
    """

    def joins(self, below: Sequence[Link], above: Link) -> bool:
        """Return whether the transform ``above`` can be appended to the chain of transforms ``below``."""

    def run(
        self, links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None]
    ) -> tuple[dict[str, Column], dict[int, ChainFault]]:
        """Return the output columns and the faults by row; entries of a failed row may have any value of the type.

        Args:
            links: the transforms, in order.
            columns: the plain input columns of the links, except those that other links produce.
            draws: for each link, the rows' random draws; None if the link is not random.

        Raises:
            PipelineError: a column has a type that a link does not accept.
        """
