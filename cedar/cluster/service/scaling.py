"""ServiceScaling: lets Dask's adaptive scaling follow the trainers' buffers, on any cluster that Dask can scale."""

from __future__ import annotations

from distributed.deploy.adaptive import Adaptive


class ServiceScaling(Adaptive):
    """``cluster.adapt(Adaptive=ServiceScaling, minimum=1, maximum=32)``, on a cluster whose scheduler is a service."""

    async def target(self) -> int:
        """How many workers there should be."""
        return int(await self.scheduler.cedar_target())
