"""Chains: transforms that run one after the other as one kernel, and so leave out what is between them."""

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
        exact: False: its result may differ as far as ``Transform.tolerance`` says.
        like: what ``Transform.like`` found in a sample of the column that it reads first; None: nothing.
    """

    transform: Transform
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    exact: bool = True
    like: ColumnType | None = None


@dataclass(frozen=True)
class ChainFault:
    """A row that a link has no result for: the link's place in the chain, what is wrong, and what to do."""

    link: int
    why: str
    fix: str


class Chain(Protocol):
    """Runs several transforms of a family at once. The result is that of one after the other, bit for bit where all
    links are exact.
    """

    def joins(self, below: Sequence[Link], above: Link) -> bool:
        """Whether a transform of the family may join a run of them."""

    def run(
        self, links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None]
    ) -> tuple[dict[str, Column], dict[int, ChainFault]]:
        """The columns that the links leave, and the rows that have none, whose entries may be anything of the type.

        Args:
            links: in order.
            columns: what the links read and do not make themselves; plain columns.
            draws: for each random link those of the rows; None for the others.

        Raises:
            PipelineError: columns of types that a link does not take.
        """
