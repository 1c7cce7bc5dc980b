"""Training batches of a MoE run: the same global batches on any number of ranks, resumable after a stop."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import cedar
from cedar.core.errors import CedarError
from cedar.trainers.common.data import Endless, token_rows
from cedar.trainers.moe.options import DataOptions


class Batches(Endless):
    """Endless global batches, int64 ``[batch, length + 1]``.

    Every rank reads all batches and trains on its slice of each. Row counts are unknown until the text is packed, so
    each rank would have to read everything anyway. The batch size need not be a multiple of the number of ranks, and a
    saved state is valid for any number of ranks.

    Args:
        options: the text and how to cut it into rows.
        seed: seed of the run.
        device: device of the batches; the loader copies them to a GPU ahead of time.
        serve: address at which to serve the loader's status; "" for none.
    """

    def __init__(self, options: DataOptions, seed: int, device: torch.device | None = None, serve: str = "") -> None:
        rows = token_rows(options.paths, options.length + 1)
        self.options, self.held_out = options, rows.take(options.held_out) if options.held_out else None
        self.device = None if device is None or device.type == "cpu" else device
        if options.held_out:
            rows = rows.skip(options.held_out)
        if options.shuffle:
            rows = rows.shuffle(seed=seed)
        none = CedarError(
            f"{options.paths} has no batch of {options.batch} rows of {options.length + 1} tokens",
            fix="give more text, shorter rows, a smaller batch, or fewer rows to data.held_out",
        )
        super().__init__(_loader(rows.batch(options.batch, last="drop"), seed, self.device, serve), none)

    def __next__(self) -> torch.Tensor:
        tokens: torch.Tensor = super().__next__()["tokens"]
        return tokens.long()

    def evaluation(self) -> Iterator[torch.Tensor]:
        """Yield the held-out rows in batches; the last one may be smaller."""
        if self.held_out is not None:
            with _loader(self.held_out.batch(self.options.batch, last="keep"), 0, self.device) as loader:
                for batch in loader:
                    yield batch["tokens"].long()


def _loader(pipeline: cedar.Pipeline, seed: int, device: torch.device | None, serve: str = "") -> cedar.Loader:
    return pipeline.loader(
        plan="off", executor="inline", seed=seed, rank=0, world=1, subgroup=True, format="torch", device=device,
        serve=serve or None,
    )  # fmt: skip
