"""Loader methods that change the number of ranks during an epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cedar.core.errors import PipelineError, user_site
from cedar.core.ranks import Rank
from cedar.engine.delivery.elastic import Elastic, LostRank
from cedar.engine.delivery.loader_position import LoaderPosition
from cedar.engine.delivery.options import Options, check_slices
from cedar.engine.delivery.replay import Replays
from cedar.engine.delivery.state import part_of
from cedar.engine.quarantine import Budgets
from cedar.operators.take import whole
from cedar.plan.graph import Node, digest, topology


class Resharding(LoaderPosition):
    """Redistributes the rest of an epoch to other ranks."""

    def __init__(self, root: Node, options: Options) -> None:
        super().__init__(root, options)
        self._elastic = self._make_elastic()

    def reshard(self, rank: int | None, world: int) -> None:
        """Change this rank's number and the number of ranks; the rest of the epoch is redistributed without loss.

        All ranks of the new world must call it at the same step: staying ranks between two batches, and new ranks with
        an unused loader of the same pipeline and seed. A ``for`` in progress continues with this rank's part of the
        rest; otherwise the next ``for`` does. Ranks communicate through ``loader(agree=)``, torch.distributed's store
        if it is initialized for the new ranks, or the service that they read through; see docs/ranks.md.

        A rank of the old world that does not call it is lost. All batches up to this step count as delivered to it.

        Args:
            rank: this rank's new number; None if it leaves. A leaving rank publishes its state, so that other ranks
                need not recompute it, and its loader is closed.
            world: the new number of ranks.

        Raises:
            PipelineError: a rank is outside its world, or ranks cannot communicate.
            ResumeError: the ranks are at different steps, or have different pipelines.
            WorkerError: a rank did not join within ``loader(timeout=)``, or 600 s. This rank keeps its position.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": i} for i in range(8)]).batch(2)
            >>> loader = p.loader(rank=0, world=2, agree="ranks")
            >>> for batch in loader:
            ...     print(batch["x"].tolist())
            ...     if loader.rank.world == 2:
            ...         loader.reshard(0, 1)  # rank 1 is gone after this step: [4, 5] was its batch
            [0, 1]
            [2, 3]
            [6, 7]
        """
        site = user_site()
        state = None if self._unused else self.state_dict()
        if rank is None:
            self._elastic.leave(state, self.rank.rank, self.rank.world, site)
            self.close()
            return
        self._check_exact("reshard()", site)
        rank, world = whole(rank, "reshard(rank)"), whole(world, "reshard(world)", least=1)
        if rank >= world:
            raise PipelineError(f"reshard({rank}, {world}): rank must be between 0 and world - 1", site=site)
        if self._options.split_batches:
            check_slices(self._binding, world, site)
        merged = self._elastic.change(state, self.epoch, self._must_publish(), rank, world, site)
        self._options = replace(self._options, rank=rank, world=world, subgroup=True)
        self.rank = Rank(rank, world, "arguments")
        self._job = replace(self._job, rank=self.rank, counts={})
        self._replays.close()
        self._replays, self._locator = Replays(self._job, self._options, self._site), None
        self._plans.first_rows.world, self._account.budgets = world, Budgets(rank)
        self._warned = False
        if merged is None:
            self._begin_epoch(self.epoch)
            self._unused = False
        else:
            self._move_to(part_of(merged, rank, world))
            self._redistributed = True

    def _make_elastic(self) -> Elastic:
        options, root = self._options, self._binding.root
        name = f"cedar/{digest([topology(root), options.seed, 'reshard'])[:16]}"
        check = lambda state, site: self._identity().check(state, site)  # noqa: E731 - computes the identity lazily
        return Elastic(name, self._job.place, options.timeout, check, self._chunk, self._drifts, self._run_again)

    def _must_publish(self) -> bool:
        """Whether only this rank knows where it began the epoch."""
        sharing = self._job.sharing
        lanes = sharing.lanes or any(entry["lanes"] is not None for entry in self._begun["open"].values())
        return self._elastic.must_publish(self._begun, self.epoch, lanes, sharing.together)

    def _publish_beginning(self) -> None:
        """Publish this rank's position at the epoch's beginning, in case the rank is lost before the next change."""
        if self.rank.world > 1 and self._must_publish():
            self._elastic.publish_beginning(self._begun, self.epoch, self.rank.rank, self.rank.world, self._site)

    def _run_again(self, gone: LostRank, keep_alive: Callable[[], None]) -> dict[str, Any]:
        """Run a lost rank's part again, and return its state after its last step."""
        options = replace(
            self._options, rank=gone.rank, world=gone.world, subgroup=True, observer=None, planner=None, plan=None,
            device=None,
        )  # fmt: skip
        other: Any = type(self)(self._binding.root, options)  # a complete loader, which can be iterated
        with other:
            other._job = replace(other._job, shares=replace(other._job.sharing, lanes=gone.lanes, together=False))
            other._move_to(gone.state)
            for _ in zip(range(gone.steps), other, strict=False):
                keep_alive()
            return other.state_dict()  # type: ignore[no-any-return]
