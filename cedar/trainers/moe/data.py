"""The batches of a run: the same global batch on any number of ranks, and where to go on after a stop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import torch

import cedar
from cedar.errors import CedarError
from cedar.trainers.common.group import Group
from cedar.trainers.common.text import token_rows
from cedar.trainers.moe.options import DataOptions


class Batches:
    """Global batches without end, epoch after epoch.

    Every rank reads them all and computes on its slice: where rows are packed from text, counts are unknown before a
    run, and each rank would read everything anyway. So a batch need not be a multiple of the ranks, and one state holds
    on any number of them.

    Args:
        options: which text, how it is cut.
        seed: of the order.
    """

    def __init__(self, options: DataOptions, seed: int) -> None:
        rows = token_rows(options.paths, options.length + 1)
        self.held_out = rows.take(options.held_out) if options.held_out else None
        if options.held_out:
            rows = rows.skip(options.held_out)
        if options.shuffle:
            rows = rows.shuffle(seed=seed)
        self.options = options
        self.loader = _loader(rows.batch(options.batch), seed)
        self._batches: Iterator[Any] | None = None

    def __next__(self) -> torch.Tensor:
        """The next global batch, int64 ``[batch, length + 1]``.

        Raises:
            CedarError: the text has not enough rows for one batch.
        """
        for _ in range(2):
            if self._batches is None:
                self._batches = iter(self.loader)
            for batch in self._batches:
                tokens: torch.Tensor = batch["tokens"]
                return tokens.long()
            self._batches = None  # the epoch is over; the loader has moved to the next
        raise CedarError(
            f"{self.options.paths} has no batch of {self.options.batch} rows of {self.options.length + 1} tokens",
            fix="give more text, shorter rows, a smaller batch, or fewer rows to data.held_out",
        )

    def evaluation(self) -> Iterator[torch.Tensor]:
        """The rows that are held out, in batches; the last may be short."""
        if self.held_out is not None:
            with _loader(self.held_out.batch(self.options.batch, last="keep"), 0) as loader:
                for batch in loader:
                    yield batch["tokens"].long()

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch is: JSON, a few hundred bytes."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._batches = None
        self.loader.load_state_dict(state)

    def close(self) -> None:
        self.loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _loader(pipeline: cedar.Pipeline, seed: int) -> cedar.Loader:
    return pipeline.loader(plan="off", executor="inline", seed=seed, rank=0, world=1, subgroup=True, format="torch")


def slice_of(rows: int, group: Group) -> range:
    """Which rows of so many are this rank's: runs whose lengths differ by one at most.

    Example:
        >>> slice_of(7, Group())
        range(0, 7)
    """
    return range(rows * group.rank // group.size, rows * (group.rank + 1) // group.size)


def micro_batches(rows: int, count: int) -> list[range]:
    """The rows of each micro-batch.

    Example:
        >>> micro_batches(5, 2)
        [range(0, 2), range(2, 5)]
    """
    return [range(rows * at // count, rows * (at + 1) // count) for at in range(count)]
