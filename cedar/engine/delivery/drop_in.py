"""Attributes and methods of torch's ``DataLoader`` that existing trainers use, apart from iteration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from cedar.core.errors import UsageError
from cedar.engine.delivery.epochs import Epochs


class EpochSampler:
    """Replaces a DataLoader's sampler: when a trainer sets the epoch on it, the loader moves to that epoch.

    A loader that is already in that epoch keeps its position, since it may have been resumed in the middle of it.

    Args:
        epochs: moves the loader.
    """

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs

    def set_epoch(self, epoch: int) -> None:
        """Begin or continue epoch ``epoch``."""
        self._epochs.position.continue_if_over = False
        if epoch != self._epochs.position.epoch:
            self._epochs.set_epoch(epoch)


class ByRank:
    """Saves the state of each rank under a separate name, as a JSON string; see ``Loader.stateful``.

    Args:
        loader: the loader of this rank.
        world: number of ranks of the run that saved the states; None means this loader's number.
    """

    def __init__(self, loader: Any, world: int | None = None) -> None:
        self._loader = loader
        rank, ranks = loader.rank.rank, loader.rank.world
        self._ranks = [rank] if world in (None, ranks) else list(range(world or 0))
        self._world = world or ranks

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state by name; with another world's ``world``, a placeholder for each of its ranks."""
        text = json.dumps(self._loader.state_dict())
        return {_name(rank, self._world): text for rank in self._ranks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the saved states; raises the same errors as ``Loader.load_state_dict``."""
        states = [json.loads(state[_name(rank, self._world)]) for rank in self._ranks]
        self._loader.load_state_dict(states)


def _name(rank: int, world: int) -> str:
    return f"rank {rank} of {world}"


class DataLoaderLike:
    """Attributes of ``torch.utils.data.DataLoader`` that trainers use, and checkpoint support."""

    _epochs: Epochs  # the loader's components and position

    def __reduce_ex__(self, protocol: object) -> Any:
        raise UsageError(
            "a loader cannot be pickled or copied, because it holds running threads and workers",
            fix="save loader.state_dict(); send the pipeline, and create the loader there. If pickle rejects the "
            "pipeline because of lambdas or nested functions, use cloudpickle",
        )

    def __getitem__(self, item: object) -> NoReturn:
        """Raise an error, because a loader cannot be indexed, for example by a DataLoader that wraps it.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "a loader has no items: it can only be iterated",
            site=self._epochs.parts.site,  # the nearest calling line would be torch's
            fix="iterate the loader in place of a DataLoader, without wrapping it; see help(cedar.Loader). "
            "loader.read(step) returns one batch",
        )

    def stateful(self, world: int | None = None) -> ByRank:
        """Return an object for ``torch.distributed.checkpoint``, which stores one value per name for all ranks.

        Use ``dcp.save({"loader": loader.stateful()}, ...)``, and the same dict with ``dcp.load``. Other checkpoint
        libraries can save the loader itself.

        Args:
            world: when loading, the number of ranks of the run that saved, if it differs from this run's.

        Examples:
            >>> import cedar
            >>> loader = cedar.from_items([{"x": 1}]).batch(1).loader()
            >>> list(loader.stateful().state_dict())
            ['rank 0 of 1']
        """
        return ByRank(self, world)

    @property
    def sampler(self) -> EpochSampler:
        """An object whose ``set_epoch`` sets the loader's epoch, for trainers such as Lightning that call it."""
        return EpochSampler(self._epochs)

    @property
    def batch_sampler(self) -> None:
        """Always None, since the pipeline creates the batches."""
        return None
