"""Dask's own scaling asks the service how many workers there should be."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from cedar.cluster.service.scaling import ServiceScaling


def test_the_target_is_the_services() -> None:
    async def target() -> str:
        return "3"  # as numbers may come over a comm

    class Asked(ServiceScaling):
        def __init__(self) -> None:
            """Of no cluster."""

        def stop(self, reason: str = "") -> None:
            """It never began."""

        scheduler: Any = SimpleNamespace(cedar_target=target)

    assert asyncio.run(Asked().target()) == 3
