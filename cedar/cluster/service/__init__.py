"""Service: workers that several trainers share, and whose number follows the trainers' needs. See docs/service.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from cedar.cluster.dask.keys import withdraw
from cedar.core.errors import PipelineError, invalid_call, user_site
from cedar.core.limits import parse_bytes
from cedar.core.packages import library

if TYPE_CHECKING:
    from cedar.cluster.service.status import ServiceStatus

_LOOPBACK = ("127.0.0.1", "localhost")
_FEATURE = "a preprocessing service"


class Service:
    """A preprocessing service on this machine. It runs until it is closed or until this process ends.

    Trainers use it by ``loader(executor=service.address)``. Results of ``cache()`` are computed once for all jobs with
    equal operators and data below it. The service has ``workers`` processes, and adds some, up to ``max_workers``,
    while a trainer waits for data.

    Only clients with the service's own key can connect. Programs of the same user on this machine find the key in a
    file of mode 0600, which exists as long as the service. A service on a host other than loopback uses the
    certificates of Dask's configuration.

    Args:
        workers: min number of workers.
        max_workers: max number of workers; None means ``workers``.
        host: the address to listen on; any other than loopback requires certificates in Dask's configuration.
        port: the scheduler's port; 0 picks a free one.
        keep: max size of shared results in the workers' memory, in bytes or as a string such as "1GiB".
        patience: seconds during which fewer workers must suffice before the service removes any.

    Raises:
        PipelineError: an argument is invalid, or a host other than loopback has no certificates.
        WorkerError: the service does not start.

    Examples:
        >>> import cedar
        >>> with cedar.Service(workers=1) as service:  # doctest: +SKIP
        ...     loader = pipeline.loader(executor=service.address)
        ...     print(service.status())
    """

    def __init__(
        self,
        workers: int = 1,
        max_workers: int | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        keep: int | str = "1GiB",
        patience: int = 5,
    ) -> None:
        from cedar.cluster.dask.local import LocalHost

        library("distributed", "dask", _FEATURE)
        max_count = _checked_max(workers, max_workers)
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
            raise invalid_call(f"port={port!r}: an integer from 0 to 65535")
        if host not in _LOOPBACK:
            _check_tls(host)
        asked = {
            "workers": workers, "most": max_count, "host": "127.0.0.1" if host in _LOOPBACK else host, "port": port,
            "keep_bytes": parse_bytes(keep, "keep") if isinstance(keep, str) else keep, "patience": patience,
            "dashboard": None, "publish": True,
        }  # fmt: skip
        self._host = LocalHost(asked, "cedar.cluster.service.host")
        self.address = self._host.address
        self._key_file: str | None = self._host.reported["key_file"]

    @staticmethod
    def on(cluster: Any, workers: int = 1, max_workers: int | None = None, *, keep: int | str = "1GiB") -> None:
        """Turn a cluster that Dask manages (Kubernetes, SSH, a job queue) into a service whose workers Dask scales.

        Args:
            cluster: a Dask cluster object, or a client; with a client, the cluster keeps its size.
            workers, max_workers, keep: see ``Service``.
        """
        from distributed import Client

        from cedar.cluster.service.plugin import ServicePlugin
        from cedar.cluster.service.policy import Policy
        from cedar.cluster.service.scaling import ServiceScaling

        max_count = _checked_max(workers, max_workers)
        size = parse_bytes(keep, "keep") if isinstance(keep, str) else keep
        plugin = ServicePlugin(Policy(workers, max_count), size)
        if isinstance(cluster, Client):
            cluster.register_plugin(plugin)
            return
        with Client(cluster, set_as_default=False) as client:  # type: ignore[no-untyped-call]
            client.register_plugin(plugin)
        cluster.adapt(Adaptive=ServiceScaling, minimum=workers, maximum=max_count, interval="1s", wait_count=1)

    @staticmethod
    def at(address: str) -> ServiceStatus:
        """Return the status of the service at an address. This does not disturb running jobs.

        Raises:
            WorkerError: the scheduler does not answer.
            PipelineError: the scheduler is not a service.
        """
        from cedar.cluster.dask.clients import ask, connected

        library("distributed", "dask", _FEATURE)
        from cedar.cluster.service.plugin import status

        client = connected(address)
        try:
            answer: ServiceStatus | None = ask(client, client.run_on_scheduler, status)
        finally:
            client.close()
        if answer is None:
            raise PipelineError(
                f"the Dask scheduler at {address} is not a service",
                fix="start one with `cedar service start`, or turn it into one with cedar.Service.on(client)",
            )
        return answer

    def status(self) -> ServiceStatus:
        """Return the service's current jobs, buffers, workers and stalls."""
        return Service.at(self.address)

    @property
    def alive(self) -> bool:
        """Whether the service's scheduler is running."""
        return self._host.alive

    def close(self) -> None:
        """End the scheduler and the workers."""
        withdraw(self._key_file, self._host.keys)
        self._host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _checked_max(workers: int, max_workers: int | None) -> int:
    """Check both arguments, and return the max number of workers."""
    max_count = workers if max_workers is None else max_workers
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (workers, max_count))
    if not whole or not 1 <= workers <= max_count:
        raise invalid_call(
            f"workers={workers!r}, max_workers={max_workers!r}: expected integers, 1 <= workers <= max_workers"
        )
    return max_count


def _check_tls(host: str) -> None:
    from distributed.security import Security

    try:
        arguments = Security().get_listen_args("scheduler")  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise PipelineError(f"the certificates of Dask's configuration cannot be read: {error}") from error
    if arguments.get("ssl_context") is None:
        raise PipelineError(
            f"host={host!r} can be reached from other machines, and TLS is not configured",
            site=user_site(),
            done="nothing listens",
            fix="set distributed.comm.tls (ca-file, and cert and key of scheduler, worker and client) in Dask's "
            "configuration (https://distributed.dask.org/en/stable/tls.html); or stay with host='127.0.0.1'",
        )
