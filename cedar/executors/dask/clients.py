"""Clients: one for each scheduler address, kept warm, checked before the first task."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from cedar.core.errors import PipelineError, WorkerError, user_site
from cedar.executors.dask.keys import security_at
from cedar.executors.dask.limits import seconds
from cedar.plan.places import forget, given

_log = logging.getLogger("cedar")
_clients: dict[str, Any] = {}  # made here
_checked: set[str] = set()  # clients whose cluster has our versions
_lock = threading.Lock()


def client_at(address: str) -> Any:
    """The client of a scheduler; TLS is as Dask's configuration has it.

    Raises:
        WorkerError: nobody answers, versions differ, or there is no worker.
    """
    client = reached(address)
    check(client, address)
    return client


def reached(where: Any) -> Any:
    """The client of a scheduler, which may have no worker yet; a client is its own.

    Raises:
        WorkerError: nobody answers.
    """
    if not isinstance(where, str):
        return where
    with _lock:
        client = given(where) or _clients.get(where)
        if client is None or not _answers(client):
            forget(where)
            if where in _clients:
                _close(_clients.pop(where))
            client = _clients[where] = connected(where)
    return client


def _answers(client: Any) -> bool:
    """Whether the scheduler that it was connected to is still there."""
    try:
        return client.status == "running" and client.nthreads() is not None
    except OSError:
        return False


def check(client: Any, address: str) -> None:
    """That it can be used, that its cluster has workers, and that versions are the same; asked once of each client.

    Raises:
        PipelineError: it is an asynchronous client.
        WorkerError: it is closed, versions differ, or there is no worker.
    """
    if client.asynchronous:
        raise PipelineError(
            "the Dask client is asynchronous", site=user_site(), fix="make it without asynchronous=True"
        )
    if not _answers(client):
        raise WorkerError(
            f"the scheduler at {address} does not answer the Dask client, which is {client.status}",
            done="nothing was run",
            fix="connect again: Client(address)",
        )
    _wait_for_workers(client, address)
    if client.id not in _checked:
        check_versions(client, address)
        _checked.add(client.id)


def connected(address: str, name: str = "cedar") -> Any:
    """A client of its own; with the keys of a cluster that cedar started, else as Dask's configuration has it.

    Raises:
        WorkerError: nobody answers.
    """
    from distributed.comm.addressing import parse_address, parse_host_port

    limit = seconds("connect")
    try:
        if address.startswith(("tcp://", "tls://")):  # without a port, a client that never was would hold up the end
            parse_host_port(parse_address(address)[1])
        keys = security_at(address)
        if address.startswith("tls://") and keys.get_connection_args("client")["ssl_context"] is None:
            raise OSError("TLS needs the certificates of this client, and none are configured")
        return _client_class()(
            address, timeout=limit, set_as_default=False, direct_to_workers=True, name=name, security=keys
        )
    except (OSError, ValueError, TypeError) as error:
        raise WorkerError(
            f"no Dask scheduler answers at {address} within {limit:g} s: {error or type(error).__name__}",
            done="nothing was run",
            fix="start one with `cedar service start` or `dask scheduler`, and look at address, port, firewall and "
            'TLS: the keys of a service are found by the user who started it; for other clusters at "tls://", Dask\'s '
            "configuration names the certificates under distributed.comm.tls",
        ) from error


@functools.cache
def _client_class() -> Any:
    """Dask's client, for which a scheduler that ends between accepting it and the keys is one that does not answer."""
    from distributed import Client

    class _Client(Client):
        async def _ensure_connected(self, *within: Any, **named: Any) -> None:
            try:
                await super()._ensure_connected(*within, **named)  # type: ignore[no-untyped-call]
            except ValueError as error:  # tornado's, of a stream that was closed before its handshake
                raise OSError(str(error)) from error

    return _Client


def _wait_for_workers(client: Any, address: str) -> None:
    deadline = time.monotonic() + seconds("workers")
    while not client.nthreads():
        if time.monotonic() > deadline:
            raise WorkerError(
                f"the Dask cluster at {address} has no worker, and got none within {seconds('workers'):g} s",
                done="nothing was run",
                fix=f"start one with `dask worker {address}`, or scale the cluster up; "
                "cedar.dask.workers in Dask's configuration is how long to wait",
            )
        time.sleep(0.1)


def close_clients() -> None:
    """Close those that were made here."""
    with _lock:
        ours = list(_clients.values())
        _clients.clear()
    for client in ours:
        _close(client)


def close_client_at(address: str) -> None:
    """Close the one made here for an address: before its scheduler ends, or it would look for another."""
    with _lock:
        client = _clients.pop(address, None)
    if client is not None:
        _close(client)


def _close(client: Any) -> None:
    before = _quiet()  # the scheduler may be gone, which was said
    try:
        client.close(timeout=2)
    except Exception:  # noqa: BLE001 - whatever it is: nothing more is asked of it
        client.status = "closed"  # or it would be closed again, and fail in the same way, once it is collected
    for log, level in before:
        log.setLevel(level)


def _quiet() -> list[tuple[logging.Logger, int]]:
    """Nothing more from Dask's connections; the levels that were."""
    logs = [logging.getLogger(name) for name in ("distributed.client", "distributed.batched", "distributed.comm")]
    before = [(log, log.level) for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL + 1)
    return before


def end_clients() -> None:
    """As Python ends: a client that is slow to close may find its connections cut a little later."""
    if _clients:
        _quiet()
    close_clients()


def _after_fork() -> None:
    """A client's threads are not there in a forked child."""
    global _lock  # noqa: PLW0603 - another thread may have held it
    _lock = threading.Lock()
    _parents.extend(_clients.values())
    _clients.clear()


_parents: list[Any] = []  # kept, so that nothing of them is collected here as if it were ours
atexit.register(end_clients)
os.register_at_fork(after_in_child=_after_fork)


_PACKAGES = ("cedar", "cloudpickle", "pyarrow", "polars", "numpy")
_ASKED = [name for name in _PACKAGES if name != "cloudpickle"]  # Dask tells that one by itself


def check_versions(client: Any, where: str) -> None:
    """Refuse a cluster whose libraries are not those of this process: rows would differ, or code would not load.

    Raises:
        WorkerError: names each part of the cluster and each library that differs.
    """
    try:
        versions = client.get_versions(check=False, packages=_ASKED)
    except Exception as error:
        raise WorkerError(
            f"the Dask cluster at {where} does not tell its versions: {type(error).__name__}: {error}",
            done="nothing was run",
            fix="look at the scheduler's log",
        ) from error
    differences = list(differing(versions))
    if differences:
        raise WorkerError(
            f"the Dask cluster at {where} has other versions than this process: {'; '.join(differences[:8])}",
            done="nothing was run",
            fix="install the same versions on the client, the scheduler and all workers, and start them again",
        )


def differing(versions: Mapping[str, Any]) -> Iterator[str]:
    """What differs, a part of the cluster and a library each, from what ``Client.get_versions`` returned.

    Example:
        >>> def part(version):
        ...     return {"packages": {"cedar": version, "python": "3.11.7.final.0"}}
        >>> found = {"client": part("0.1.0"), "scheduler": part("0.1.0"), "workers": {"tcp://a:1": part(None)}}
        >>> list(differing(found))
        ['worker tcp://a:1: cedar is missing, here 0.1.0']
    """
    ours = _of_interest(versions["client"])
    parts = {"scheduler": versions["scheduler"]} | {f"worker {at}": each for at, each in versions["workers"].items()}
    for name, part in parts.items():
        theirs = _of_interest(part)
        for package, version in ours.items():
            if theirs.get(package) != version:
                yield f"{name}: {package} {_told(theirs.get(package))}, here {version}"


def _of_interest(part: Mapping[str, Any]) -> dict[str, str]:
    """Of one part; Python's version without its last number, which changes nothing."""
    packages = part["packages"]
    kept = {name: packages[name] for name in _PACKAGES if packages.get(name)}
    return kept | {"Python": ".".join(str(packages["python"]).split(".")[:2])}


def _told(version: str | None) -> str:
    return "is missing" if version is None else version
