"""Host of a service: scheduler and workers on this machine, as many as its trainers need."""

from __future__ import annotations

from typing import Any

from cedar.cluster.dask import host
from cedar.cluster.service.plugin import ServicePlugin
from cedar.cluster.service.policy import Policy
from cedar.cluster.service.scaling import ServiceScaling


def main(text: str, parent: int, reported: int) -> None:
    """See ``cedar.cluster.dask.host.main``; it also takes ``most`` workers and ``keep_bytes``."""
    host.main(text, parent, reported, serve)


def serve(cluster: Any, asked: dict[str, Any]) -> None:
    """Make a cluster in this process a service."""
    policy = Policy(asked["workers"], asked["most"], asked["patience"])
    plugin = ServicePlugin(policy, asked["keep_bytes"])
    plugin.attach(cluster.scheduler)
    cluster.scheduler.add_plugin(plugin)
    if asked["most"] > asked["workers"]:
        cluster.adapt(
            Adaptive=ServiceScaling, minimum=asked["workers"], maximum=asked["most"], interval="1s", wait_count=1
        )
