"""ServiceScaling: lets the service's policy control Dask's adaptive scaling, on any cluster that Dask can scale."""

from __future__ import annotations

from distributed.deploy.adaptive import Adaptive


class ServiceScaling(Adaptive):
    """For ``cluster.adapt(Adaptive=ServiceScaling, minimum=1, maximum=32)`` if the scheduler is a service."""

    async def target(self) -> int:
        """Return how many workers there should be."""
        return int(await self.scheduler.cedar_target())
