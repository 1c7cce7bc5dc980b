"""Budget: which machine resources a plan may use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from cedar.core.errors import PipelineError, user_site
from cedar.core.limits import parse_bytes


@dataclass(frozen=True)
class Budget:
    """Resources that a plan may use. Resources that are not given default to what the machine has.

    Args:
        cpus: number of cores, an integer of at least 1.
        memory: limit for this process and all processes that it starts, in bytes or as a string such as "2GiB". cedar
            adapts read-ahead and caches to measured memory. If a run still exceeds the limit, the log and the report
            name the component that did so.
        cache: limit for ``cache()``, in bytes or as a string.
        cluster: a Dask cluster that may also run stages, given as its scheduler's address or a client. cedar measures
            its overhead once. A saved plan does not contain the cluster; pass it to ``Plan.load(cluster=)``.
        layout: a directory or URL in which cedar stores preprocessed splits as memory-mapped Arrow files, after all
            operators whose results are the same in every epoch. Later epochs read these files, and so do later runs
            with the same pipeline and data. Rows, order and states stay the same. ``cache=`` limits the files' size.

    Raises:
        PipelineError: an invalid value, at the user's line.

    Examples:
        >>> Budget(cpus=4, memory="2GiB").memory_bytes
        2147483648
    """

    cpus: int | None = None
    memory: int | str | None = None
    cache: int | str | None = None
    cluster: Any = None
    layout: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.cpus is not None and not _whole(self.cpus, least=1):
            raise PipelineError(
                f"Budget(cpus={self.cpus!r}): an integer of cores, at least 1",
                site=user_site(),
                fix="such as cpus=8",
            )
        _size(self.memory, "memory", least=1)
        _size(self.cache, "cache", least=0)
        if self.cluster is not None and not _names_cluster(self.cluster):
            raise PipelineError(
                f"Budget(cluster={self.cluster!r:.80}): neither the address of a Dask scheduler nor a Dask client",
                site=user_site(),
                fix='such as cluster="tcp://10.0.0.1:8786"',
            )

        if self.layout is not None and not (isinstance(self.layout, str | os.PathLike) and os.fspath(self.layout)):
            raise PipelineError(
                f"Budget(layout={self.layout!r:.80}) names no place", site=user_site(), fix="a directory or a URL"
            )

    @property
    def layout_place(self) -> str | None:
        """The directory or URL for preprocessed splits."""
        return None if self.layout is None else os.fspath(self.layout)

    @property
    def memory_bytes(self) -> int | None:
        """Bytes that the process and its workers may use."""
        return _size(self.memory, "memory", least=1)

    @property
    def cache_bytes(self) -> int | None:
        """Bytes that ``cache()`` may store; 0 disables it."""
        return _size(self.cache, "cache", least=0)


@dataclass(frozen=True)
class Cluster:
    """A cluster that may run stages, and its measured overhead.

    Args:
        address: the scheduler's address, which is also the executor's name in plans.
        threads: how many tasks run concurrently.
        ship_seconds: seconds to send a task and get its result, not counting the transfer of rows.
        ship_bytes: bytes per second to and from the cluster.
    """

    address: str
    threads: int
    ship_seconds: float
    ship_bytes: float


def _names_cluster(value: Any) -> bool:
    return "://" in value if isinstance(value, str) else hasattr(value, "scheduler")


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _size(value: Any, option: str, least: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        return parse_bytes(value, option)
    if not _whole(value, least):
        raise PipelineError(
            f"Budget({option}={value!r}): an integer of bytes, or a size as text",
            site=user_site(),
            fix=f'such as {option}="2GiB"',
        )
    return int(value)
