"""The parts of the ``DataLoader`` interface, other than iteration, that existing code uses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

from cedar.core.errors import UsageError


class Epochs(Protocol):
    """The part of a loader that deals with epochs."""

    epoch: int
    _continue_if_over: bool

    def set_epoch(self, epoch: int) -> None: ...


class EpochSampler:
    """Stands in for a DataLoader's sampler, on which trainers set the epoch.

    A loader that is already in that epoch keeps its position, since it may have been resumed in the middle.

    Args:
        loader: the loader whose epoch is set.
    """

    def __init__(self, loader: Epochs) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Begin or continue epoch ``epoch``."""
        self._loader._continue_if_over = False
        if epoch != self._loader.epoch:
            self._loader.set_epoch(epoch)


class ByRank:
    """The states of a loader's ranks under separate names, each a JSON string: see ``Loader.stateful``.

    Args:
        loader: the loader of this rank.
        world: number of ranks of the run that saved; None for this loader's own number.
    """

    def __init__(self, loader: Any, world: int | None = None) -> None:
        self._loader = loader
        rank, ranks = loader.rank.rank, loader.rank.world
        self._ranks = [rank] if world in (None, ranks) else list(range(world or 0))
        self._world = world or ranks

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, or placeholders for the states of all saved ranks when loading another world's."""
        text = json.dumps(self._loader.state_dict())
        return {_name(rank, self._world): text for rank in self._ranks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the saved states; raises as ``Loader.load_state_dict`` does."""
        states = [json.loads(state[_name(rank, self._world)]) for rank in self._ranks]
        self._loader.load_state_dict(states)


def _name(rank: int, world: int) -> str:
    return f"rank {rank} of {world}"


class DataLoaderLike:
    """Attributes of ``torch.utils.data.DataLoader`` that trainers use, and checkpoint support."""

    def __reduce_ex__(self, protocol: object) -> Any:
        raise UsageError(
            "a loader cannot be pickled or copied, because it holds running threads and workers",
            fix="save loader.state_dict(); send the pipeline, and create the loader there. If pickle rejects the "
            "pipeline because of lambdas or nested functions, use cloudpickle",
        )

    def __getitem__(self: Any, item: object) -> NoReturn:
        """Refuse indexing, which a DataLoader around the loader would use.

        Raises:
            PipelineError: always; it is a TypeError too.
        """
        raise UsageError(
            "a loader has no items: it can only be iterated",
            site=self._site,  # the nearest calling line would be torch's
            fix="iterate the loader in place of a DataLoader, without wrapping it; see help(cedar.Loader). "
            "loader.read(step) returns one batch",
        )

    def stateful(self, world: int | None = None) -> ByRank:
        """Return the loader for ``torch.distributed.checkpoint``, which keeps one value per name over all ranks.

        Use ``dcp.save({"loader": loader.stateful()}, ...)`` and ``dcp.load`` likewise. Other checkpoints can contain
        the loader itself.

        Args:
            world: when loading, the number of ranks of the run that saved, if that differs.

        Examples:
            >>> import cedar
            >>> loader = cedar.from_items([{"x": 1}]).batch(1).loader()
            >>> list(loader.stateful().state_dict())
            ['rank 0 of 1']
        """
        return ByRank(self, world)

    @property
    def sampler(self: Any) -> EpochSampler:
        """An object that takes the epoch from trainers that set it on the sampler, as Lightning does."""
        return EpochSampler(self)

    @property
    def batch_sampler(self) -> None:
        """None, since the pipeline creates the batches."""
        return None
