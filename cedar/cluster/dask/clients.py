"""Clients: one for each scheduler address, kept warm, checked before the first task."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cedar.cluster.dask.keys import security_at
from cedar.cluster.dask.limits import seconds
from cedar.core.errors import PipelineError, WorkerError, user_site
from cedar.plan.places import forget, forget_all, given

_log = logging.getLogger("cedar")
_clients: dict[str, Any] = {}  # made here
_used: set[str] = set()  # addresses at which there was one: it may come back
_checked: set[str] = set()  # clients whose cluster has our versions
_muted: list[dict[logging.Logger, int]] = []  # levels that were, once for each who wants to hear nothing
_lock = threading.Lock()


def client_at(address: str) -> Any:
    """The client of a scheduler; TLS is as Dask's configuration has it.

    Raises:
        WorkerError: no answer, versions differ, or there is no worker.
    """
    client = reached(address)
    check(client, address)
    _used.add(address)
    return client


def client_again(
    address: str, why: WorkerError, limit: float, stop: threading.Event, clock: Callable[[], float] = time.monotonic
) -> Any:
    """The client of a scheduler that is gone, once it is back, maybe with another key; None if that was stopped.

    Args:
        limit: seconds to wait.

    Raises:
        WorkerError: ``why``, where there was none at this address before; or it does not come back in time.
    """
    if not limit or address not in _used:
        raise why
    _log.warning("%s; waiting up to %g s for it to return", why.what, limit)
    began = clock()
    while not stop.is_set():
        try:
            client = client_at(address)
        except WorkerError as error:
            if clock() - began >= limit:
                raise WorkerError(
                    f"the Dask scheduler at {address} is gone and did not return within {limit:g} s: {error.what}",
                    done="the epoch was stopped; the state is that of the last batch received",
                    fix="start it again at that address, then load the state into a new loader; loader(timeout=) says "
                    "how long to wait",
                ) from error
            stop.wait(1.0)
        else:
            _log.warning("the Dask scheduler at %s is back: unfinished tasks are submitted again", address)
            return client
    return None


def reached(where: Any) -> Any:
    """The client of a scheduler, which may have no worker yet; a client is its own.

    Raises:
        WorkerError: no answer.
    """
    if not isinstance(where, str):
        return where
    while (client := _known(where)) is not None:
        if _answers(client):
            return client
        _forget(where, client)
    made = connected(where)
    with _lock:
        client = _clients.setdefault(where, made)
    if client is not made:  # another thread was first
        _close(made)
    return client


def _known(where: str) -> Any:
    with _lock:
        return given(where) or _clients.get(where)


def _forget(where: str, client: Any) -> None:
    """Nothing more is asked of a client; one that was made here is closed."""
    with _lock:
        if given(where) is client:
            forget(where)
        ours = _clients.get(where) is client and _clients.pop(where)
    if ours:
        _close(client)


def ask(client: Any, question: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What a method of a client returns, which waits for the scheduler: for as long as that may say nothing.

    Raises:
        WorkerError: it does not answer.
    """
    limit = seconds("scheduler-silent")
    try:
        return client.sync(question, *args, callback_timeout=limit, **named)
    except OSError as error:  # a TimeoutError is one
        raise WorkerError(
            f"the Dask scheduler does not answer: {str(error) or type(error).__name__}",
            done="nothing was run",
            fix="check that its process runs, and the network; cedar.dask.scheduler-silent in Dask's "
            "configuration is how long to wait",
        ) from error


def _answers(client: Any) -> bool:
    """Whether the scheduler that it was connected to is still there."""
    try:
        return client.status == "running" and ask(client, client.nthreads) is not None
    except WorkerError:
        return False


def check(client: Any, address: str) -> None:
    """That it can be used, that its cluster has workers, and that versions are the same; asked once of each client.

    Raises:
        PipelineError: it is an asynchronous client, or one of the process that this one was forked from.
        WorkerError: it is closed, versions differ, or there is no worker.
    """
    if client.asynchronous:
        raise PipelineError(
            "the Dask client is asynchronous", site=user_site(), fix="make it without asynchronous=True"
        )
    if any(client is each for each in _parents):
        forget(address)
        raise PipelineError(
            "the Dask client was made before this process was forked, and does not work here",
            site=user_site(),
            fix="make it in the process that uses it, or give the address of the scheduler",
        )
    if not _answers(client):
        raise WorkerError(
            f"the scheduler at {address} does not answer the Dask client, which is {client.status}",
            done="nothing was run",
            fix="reconnect: Client(address)",
        )
    _wait_for_workers(client, address)
    if client.id not in _checked:
        check_versions(client, address)
        _checked.add(client.id)


def connected(address: str, name: str = "cedar") -> Any:
    """Its own client; with the keys of a cluster that cedar started, else as Dask's configuration has it.

    Raises:
        WorkerError: no answer.
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
            f"no Dask scheduler answers at {address} within {limit:g} s: {str(error) or type(error).__name__}",
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
    while not ask(client, client.nthreads):
        if time.monotonic() > deadline:
            raise WorkerError(
                f"the Dask cluster at {address} has no worker, and none joined within {seconds('workers'):g} s",
                done="nothing was run",
                fix=f"start one with `dask worker {address}`, or scale the cluster up; "
                "cedar.dask.workers in Dask's configuration sets the waiting time",
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
    _mute()  # the scheduler may be gone, which was said
    try:
        client.close(timeout=2)
    except Exception:  # noqa: BLE001 - whatever it is: nothing more is asked of it
        client.status = "closed"  # or it would be closed again, and fail in the same way, once it is collected
    finally:
        _unmute()


def _mute() -> None:
    """Nothing more from Dask's connections, until as many want to hear of them again as did not."""
    logs = [logging.getLogger(name) for name in ("distributed.client", "distributed.batched", "distributed.comm")]
    with _lock:
        _muted.append(_muted[0] if _muted else {log: log.level for log in logs})
        for log in logs:
            log.setLevel(logging.CRITICAL + 1)


def _unmute() -> None:
    with _lock:
        before = _muted.pop()
        if not _muted:
            for log, level in before.items():
                log.setLevel(level)


def end_clients() -> None:
    """As Python ends: a client that is slow to close may find its connections cut a little later."""
    if _clients:
        _mute()
    close_clients()


def _after_fork() -> None:
    """A client's threads are not there in a forked child."""
    global _lock  # noqa: PLW0603 - another thread may have held it
    _lock = threading.Lock()
    _parents.extend((*_clients.values(), *forget_all()))
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
        named = {"check": False, "packages": _ASKED}
        versions = client.sync(client.get_versions, **named, callback_timeout=seconds("scheduler-silent"))
    except Exception as error:
        raise WorkerError(
            f"the Dask cluster at {where} does not report its versions: {type(error).__name__}: {error}",
            done="nothing was run",
            fix="check the scheduler's log",
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

    Examples:
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
