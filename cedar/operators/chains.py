"""Chains: consecutive transforms fused into one kernel, which skips their intermediate results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

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


@dataclass(frozen=True)
class ChainFault:
    """Why a link has no result for a row: the link's index in the chain, the problem, and the fix."""

    link: int
    why: str
    fix: str


class Chain(Protocol):
    """Runs several transforms of a family at once. The result equals running them one after the other, bit for bit if
    all links are exact.
    """

    def joins(self, below: Sequence[Link], above: Link) -> bool:
        """Whether the transform ``above`` can be added to the chain ``below``."""

    def run(
        self, links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None]
    ) -> tuple[dict[str, Column], dict[int, ChainFault]]:
        """Return the output columns and the faults by row; a failed row's entries may be any value of the type.

        Args:
            links: the transforms, in order.
            columns: the plain input columns of the links, except those that other links produce.
            draws: the rows' random draws for each random link; None for the others.

        Raises:
            PipelineError: a column has a type that a link does not accept.
        """
