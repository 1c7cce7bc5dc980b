"""Host of a service: a process that runs the service's cluster on this machine and scales it."""

from __future__ import annotations

from typing import Any

from cedar.cluster.dask import host
from cedar.cluster.service.plugin import ServicePlugin
from cedar.cluster.service.policy import Policy
from cedar.cluster.service.scaling import ServiceScaling


def main(text: str, parent: int, reported: int) -> None:
    """See ``cedar.cluster.dask.host.main``. The JSON adds ``most`` (max workers), ``keep_bytes`` and ``patience``."""
    host.main(text, parent, reported, serve)


def serve(cluster: Any, asked: dict[str, Any]) -> None:
    """Turn a cluster that runs in this process into a service."""
    policy = Policy(asked["workers"], asked["most"], asked["patience"])
    plugin = ServicePlugin(policy, asked["keep_bytes"])
    plugin.attach(cluster.scheduler)
    cluster.scheduler.add_plugin(plugin)
    if asked["most"] > asked["workers"]:
        cluster.adapt(
            Adaptive=ServiceScaling, minimum=asked["workers"], maximum=asked["most"], interval="1s", wait_count=1
        )
