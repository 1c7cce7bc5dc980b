"""The batches of a run: the same global batch on any number of ranks, and where to continue after a stop."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import cedar
from cedar.core.errors import CedarError
from cedar.trainers.common.data import Endless, token_rows
from cedar.trainers.moe.options import DataOptions


class Batches(Endless):
    """Global batches, int64 ``[batch, length + 1]``, without end.

    Every rank reads them all and computes on its slice: where rows are packed from text, counts are unknown before a
    run, and each rank would read everything anyway. So a batch need not be a multiple of the ranks, and one state holds
    on any number of them.

    Args:
        options: which text, how it is cut.
        seed: of the run.
        device: where batches are; to a GPU the loader copies them ahead.
        serve: where to serve what the loader does; "" does not.
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
        """The rows that are held out, in batches; the last may be short."""
        if self.held_out is not None:
            with _loader(self.held_out.batch(self.options.batch, last="keep"), 0, self.device) as loader:
                for batch in loader:
                    yield batch["tokens"].long()


def _loader(pipeline: cedar.Pipeline, seed: int, device: torch.device | None, serve: str = "") -> cedar.Loader:
    return pipeline.loader(
        plan="off", executor="inline", seed=seed, rank=0, world=1, subgroup=True, format="torch", device=device,
        serve=serve or None,
    )  # fmt: skip
