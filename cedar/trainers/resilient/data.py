"""Micro-batches by (step, replica, micro-batch), from a cedar loader that reads a step again until it is committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cedar.errors import CedarError
from cedar.trainers.common.text import token_rows

_ENDLESS = 1 << 40  # steps of the loader's one epoch: it goes round the text
_RECENT = 4


class TextBatches:
    """The same global batches for every worker that asks.

    Args:
        paths: text files.
        length: tokens that a row trains on.
        replicas: pipelines.
        micro_batches: of each pipeline.
        rows: of a micro-batch.
        seed: of the order; rows are shuffled within windows.
    """

    def __init__(
        self, paths: str | Sequence[str], length: int, replicas: int, micro_batches: int, rows: int, seed: int
    ) -> None:
        self.micro_batches, self.rows = micro_batches, rows
        pipeline = token_rows(paths, length + 1).shuffle(seed=seed).batch(replicas * micro_batches * rows)
        self.loader = pipeline.loader(
            plan="off", executor="inline", seed=seed, rank=0, world=1, subgroup=True, format="torch", steps=_ENDLESS
        )
        self._recent: dict[int, torch.Tensor] = {}

    def tokens(self, step: int, key: tuple[int, int]) -> torch.Tensor:
        """int64 ``[rows, length]``: what a micro-batch reads."""
        return self._rows(step, key)[:, :-1]

    def targets(self, step: int, key: tuple[int, int]) -> torch.Tensor:
        """int64 ``[rows, length]``: what comes next."""
        return self._rows(step, key)[:, 1:]

    def commit(self, step: int) -> None:
        """Steps up to this one are never read again."""
        self._recent = {at: batch for at, batch in self._recent.items() if at > step}
        self.loader.commit(step)

    def state_dict(self) -> dict[str, Any]:
        """What the batches of a step follow from: loader, seed, files."""
        return self.loader.state_dict()

    def close(self) -> None:
        """Let go of the files."""
        self.loader.close()

    def _rows(self, step: int, key: tuple[int, int]) -> torch.Tensor:
        if step not in self._recent:
            while len(self._recent) >= _RECENT:
                self._recent.pop(min(self._recent))
            batch = self.loader.read(step)
            if batch is None:
                raise CedarError("the text has too few rows for one step", fix="give more text or smaller batches")
            self._recent[step] = batch["tokens"].long()
        first = (key[0] * self.micro_batches + key[1]) * self.rows
        return self._recent[step][first : first + self.rows]
