"""What code written for a DataLoader asks of a loader, next to iterating it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

from cedar.core.errors import UsageError


class Epochs(Protocol):
    """A loader, as far as its epochs go."""

    epoch: int
    _passes: bool

    def set_epoch(self, epoch: int) -> None: ...


class EpochSampler:
    """Is where a DataLoader has its sampler: trainers tell that the epoch that begins.

    A loader that stands in this epoch stays where it is: it may have been resumed in the middle of it.

    Args:
        loader: whose epochs these are.
    """

    def __init__(self, loader: Epochs) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Epoch ``epoch`` begins, or continues."""
        self._loader._passes = False
        if epoch != self._loader.epoch:
            self._loader.set_epoch(epoch)


class ByRank:
    """The states of a loader's ranks under their own names, each one text: see ``Loader.stateful``.

    Args:
        loader: of this rank.
        world: the ranks of the run that saved; None for this loader's own number.
    """

    def __init__(self, loader: Any, world: int | None = None) -> None:
        self._loader = loader
        rank, ranks = loader.rank.rank, loader.rank.world
        self._ranks = [rank] if world in (None, ranks) else list(range(world or 0))
        self._world = world or ranks

    def state_dict(self) -> dict[str, Any]:
        """This rank's state; next to it, to be loaded over, names for those of the run that saved."""
        text = json.dumps(self._loader.state_dict())
        return {_name(rank, self._world): text for rank in self._ranks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there; raises as ``Loader.load_state_dict`` does."""
        states = [json.loads(state[_name(rank, self._world)]) for rank in self._ranks]
        self._loader.load_state_dict(states)


def _name(rank: int, world: int) -> str:
    return f"rank {rank} of {world}"


class DataLoaderLike:
    """The attributes of ``torch.utils.data.DataLoader`` that trainers look for, and what checkpoints need."""

    def __reduce_ex__(self, protocol: object) -> Any:
        raise UsageError(
            "a loader is an iteration that runs: it cannot be pickled or copied",
            fix="save loader.state_dict(); send the pipeline, and make the loader there. Where pickle does not take a "
            "pipeline for its lambdas or functions inside functions, cloudpickle takes it",
        )

    def __getitem__(self: Any, item: object) -> NoReturn:
        """What a DataLoader around the loader asks for.

        Raises:
            PipelineError: always; it is a TypeError too.
        """
        raise UsageError(
            "a loader is iterated: it has no items to be asked for",
            site=self._site,  # of the caller's lines the nearest would be torch's
            fix="iterate it in place of a DataLoader, which cannot be put around it: help(cedar.Loader). "
            "loader.read(step) gives one batch",
        )

    def stateful(self, world: int | None = None) -> ByRank:
        """The loader for ``torch.distributed.checkpoint``, which keeps one value of each name over all ranks.

        ``dcp.save({"loader": loader.stateful()}, ...)`` and ``dcp.load`` likewise. In other checkpoints the loader can
        stand itself.

        Args:
            world: when loading, the number of ranks of the run that saved, where it was another one.

        Examples:
            >>> import cedar
            >>> loader = cedar.from_items([{"x": 1}]).batch(1).loader()
            >>> list(loader.stateful().state_dict())
            ['rank 0 of 1']
        """
        return ByRank(self, world)

    @property
    def sampler(self: Any) -> EpochSampler:
        """Takes the epoch from trainers that set it on the sampler, as Lightning does; it samples nothing."""
        return EpochSampler(self)

    @property
    def batch_sampler(self) -> None:
        """None: batches are cut by the pipeline."""
        return None
