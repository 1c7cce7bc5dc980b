"""Micro-batches by (step, replica, micro-batch), from what reads a step again until it is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch.utils import _pytree as pytree

import cedar
from cedar.core.errors import CedarError

_ENDLESS = 1 << 40  # steps of the loader's one epoch: it goes round the data
_RECENT = 4
Pair: TypeAlias = tuple[Any, Any]
Split: TypeAlias = Callable[[Mapping[str, Any]], Pair]


class WrongRows(CedarError):
    """Data that are not what the pipeline was told, and would be no other if they were read again: the run ends."""


class Source:
    """Global batches by step: the same for every worker that asks, also twice. ``read``: of a step, what the first
    stage takes, and what the loss takes: tensors, or structures of them, a row for each.
    """

    def __init__(self, read: Callable[[int], Pair]) -> None:
        self.read = read

    def commit(self, step: int) -> None:
        """Steps up to this one are never read again."""

    def state_dict(self) -> dict[str, Any]:
        """What batches follow from: JSON; a checkpoint refuses to go on with other data."""
        return {}

    def close(self) -> None:
        """Let go of what is open."""


class LoaderSource(Source):
    """Batches of a cedar pipeline, which goes round its rows without end. ``split``: of a batch, what the first stage
    takes and what the loss takes.
    """

    def __init__(self, rows: cedar.Pipeline, batch: int, split: Split, seed: int) -> None:
        super().__init__(self._read)
        self.split = split
        self.loader = rows.batch(batch, last="drop").loader(
            plan="off", executor="inline", seed=seed, rank=0, world=1, subgroup=True, format="torch", steps=_ENDLESS
        )

    def _read(self, step: int) -> Pair:
        return self.split(self.loader.read(step))

    def commit(self, step: int) -> None:
        self.loader.commit(step)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def close(self) -> None:
        self.loader.close()


class MicroBatches:
    """A source, cut. ``micro_batches``: of each pipeline in a step; ``rows``: of each; ``batch``: of the whole step."""

    def __init__(self, source: Source, micro_batches: int, rows: int, batch: int) -> None:
        self.source, self.micro_batches, self.rows, self.batch = source, micro_batches, rows, batch
        self._recent: dict[int, Pair] = {}

    def inputs(self, step: int, key: tuple[int, int]) -> Any:
        """What the first stage takes of a micro-batch."""
        return self._of(step, key, 0)

    def targets(self, step: int, key: tuple[int, int]) -> Any:
        """What the loss takes of it."""
        return self._of(step, key, 1)

    def commit(self, step: int) -> None:
        """Steps up to this one are never read again."""
        self._recent = {at: batch for at, batch in self._recent.items() if at > step}
        self.source.commit(step)

    def close(self) -> None:
        """Let go of what is open."""
        self.source.close()

    def _of(self, step: int, key: tuple[int, int], side: int) -> Any:
        if step not in self._recent:
            while len(self._recent) >= _RECENT:
                self._recent.pop(min(self._recent))
            self._recent[step] = self._whole(step)
        first = (key[0] * self.micro_batches + key[1]) * self.rows
        return pytree.tree_map(lambda values: values[first : first + self.rows], self._recent[step][side])

    def _whole(self, step: int) -> Pair:
        pair = self.source.read(step)
        for name, side in zip(("inputs", "targets"), pair, strict=False):
            for values in pytree.tree_leaves(side):
                if len(values) != self.batch:
                    raise WrongRows(
                        f"data gave {len(values)} rows of {name} at step {step}, and the batch is {self.batch}",
                        fix=f"give {self.batch} at every step, or set batch to what data gives",
                    )
        return pair
