"""What a service tells of itself."""

from __future__ import annotations

from cedar.cluster.dask.signals import Signal
from cedar.cluster.service.status import ServiceStatus


def test_a_status_is_readable() -> None:
    status = ServiceStatus("tcp://a:1", (Signal("run", "train", 1, 0, 8, 0.25, 1234.0, 2.5),), bounds=(1, 4))
    assert "train  1     0 of 8    25%    1,234   2.5           stalls" in str(status)
