"""What loaders say of themselves, made up."""

from __future__ import annotations

from cedar.cluster.dask.signals import Signal


def signal(waiting: float, busy: float, run: str = "r") -> Signal:
    return Signal(run, "job", 0, buffered=1, ahead=4, waiting=waiting, rows_per_second=100.0, busy=busy)
