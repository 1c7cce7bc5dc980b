"""Budget: what a plan may use of the machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from cedar.core.errors import PipelineError, user_site
from cedar.core.sizes import parse_bytes


@dataclass(frozen=True)
class Budget:
    """What a plan may use; what is left out is what the machine has.

    Args:
        cpus: cores, an integer above 0.
        memory: of this process and of all that it starts, bytes or text such as "2GiB". How far a run reads ahead and
            what its caches keep follow what is measured; where it is exceeded even so, the log and the report say by
            whom.
        cache: for what ``cache()`` keeps, bytes or text.
        cluster: a Dask cluster that stages may run on, too: the address of its scheduler, or a client. What it costs to
            work there is measured once. A saved plan does not name it: ``Plan.load(cluster=)`` does.
        layout: a directory or URL for the result of the splits of files behind all operators that do the same in every
            epoch, as Arrow files that are mapped: later epochs read those, and later runs of the same pipeline and
            data. Rows, order and states stay the same. ``cache=`` limits its bytes.

    Raises:
        PipelineError: an invalid figure, at the user's line.

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
        """Where files are written in another layout."""
        return None if self.layout is None else os.fspath(self.layout)

    @property
    def memory_bytes(self) -> int | None:
        """Bytes that the process and its workers may hold."""
        return _size(self.memory, "memory", least=1)

    @property
    def cache_bytes(self) -> int | None:
        """Bytes for what ``cache()`` keeps; 0 keeps nothing."""
        return _size(self.cache, "cache", least=0)


@dataclass(frozen=True)
class Cluster:
    """Machines that stages may run on, and what it costs to work there.

    Args:
        address: of the scheduler; it names the place.
        threads: tasks at once.
        ship_seconds: to send a task there and its result back, without the bytes.
        ship_bytes: bytes per second there and back.
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
