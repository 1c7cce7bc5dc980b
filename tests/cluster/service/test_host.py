"""The process that holds a service: what makes its cluster one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cedar.cluster.service.host import serve
from cedar.cluster.service.scaling import ServiceScaling

pytestmark = [pytest.mark.heavy, pytest.mark.waits]


class Cluster:
    """One that notes what it is asked."""

    def __init__(self) -> None:
        self.plugins: list[Any] = []
        self.scaled: dict[str, Any] = {}
        self.scheduler = SimpleNamespace(extensions={}, handlers={}, workers={}, add_plugin=self.plugins.append)

    def adapt(self, **scaled: Any) -> None:
        self.scaled = scaled


@pytest.mark.parametrize("most", [2, 5])
def test_a_cluster_becomes_a_service_of_its_bounds(most: int) -> None:
    cluster = Cluster()
    serve(cluster, {"workers": 2, "most": most, "patience": 3, "keep_bytes": 1 << 20})
    (plugin,) = cluster.plugins
    assert cluster.scheduler.extensions == {"cedar": plugin}
    assert (plugin.keep_bytes, plugin.policy.least, plugin.policy.most, plugin.policy.patience) == (1 << 20, 2, most, 3)
    assert asyncio.run(cluster.scheduler.handlers["cedar_target"]()) == 2, "the least, without trainers"
    if most == 2:
        assert cluster.scaled == {}
    else:
        assert (cluster.scaled["Adaptive"], cluster.scaled["minimum"], cluster.scaled["maximum"]) == (
            ServiceScaling,
            2,
            5,
        )
