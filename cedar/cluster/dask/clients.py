"""Clients: one Dask client per scheduler address, kept open and checked before the first task."""

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
from cedar.core.errors import WorkerError, invalid_call
from cedar.core.packages import library
from cedar.core.process import Lock
from cedar.plan.places import forget, forget_all, given

_log = logging.getLogger("cedar")
_clients: dict[str, Any] = {}  # created by this module, by address
_used: set[str] = set()  # addresses at which a scheduler was reachable before, so a lost one may return
_checked: set[str] = set()  # ids of clients whose cluster has the same library versions as this process
_muted: list[dict[logging.Logger, int]] = []  # the original log levels, once per caller of _mute
_lock = Lock()


def client_at(address: str) -> Any:
    """Return a client for a scheduler's address, after ``check``.

    Raises:
        WorkerError: the scheduler does not answer, versions differ, or there are no workers.
    """
    client = reached(address)
    check(client, address)
    _used.add(address)
    return client


def client_again(
    address: str, why: WorkerError, limit: float, stop: threading.Event, clock: Callable[[], float] = time.monotonic
) -> Any:
    """Wait until a lost scheduler is back, perhaps with another key. Return its client, or None if ``stop`` is set.

    Args:
        limit: max seconds to wait.

    Raises:
        WorkerError: the scheduler did not return in time; or ``why``, if there was no scheduler at this address before.
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
                    fix="start it again at that address, then load the state into a new loader; loader(timeout=) sets "
                    "the time limit",
                ) from error
            stop.wait(1.0)
        else:
            _log.warning("the Dask scheduler at %s is back: unfinished tasks are submitted again", address)
            return client
    return None


def reached(where: Any) -> Any:
    """Return a client for an address, without checking that there are workers. A client is returned unchanged.

    Raises:
        WorkerError: the scheduler does not answer.
    """
    if not isinstance(where, str):
        return where
    while (client := _known(where)) is not None:
        if _is_answering(client):
            return client
        _forget(where, client)
    made = connected(where)
    with _lock:
        client = _clients.setdefault(where, made)
    if client is not made:  # another thread was faster
        _close(made)
    return client


def _known(where: str) -> Any:
    with _lock:
        return given(where) or _clients.get(where)


def _forget(where: str, client: Any) -> None:
    """Forget a client, and close it if this module created it."""
    with _lock:
        if given(where) is client:
            forget(where)
        ours = _clients.get(where) is client and _clients.pop(where)
    if ours:
        _close(client)


def ask(client: Any, question: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Return the result of a client's method that asks the scheduler, within a time limit.

    Raises:
        WorkerError: the scheduler does not answer.
    """
    limit = seconds("scheduler-silent")
    try:
        return client.sync(question, *args, callback_timeout=limit, **named)
    except OSError as error:  # includes TimeoutError
        raise WorkerError(
            f"the Dask scheduler does not answer: {str(error) or type(error).__name__}",
            done="nothing was run",
            fix="check that its process runs, and the network; cedar.dask.scheduler-silent in Dask's "
            "configuration sets the time limit",
        ) from error


def _is_answering(client: Any) -> bool:
    """Return whether the client's scheduler still answers."""
    try:
        return client.status == "running" and ask(client, client.nthreads) is not None
    except WorkerError:
        return False


def check(client: Any, address: str) -> None:
    """Check that a client can be used, that its cluster has workers, and that versions are equal (once per client).

    Raises:
        PipelineError: the client is asynchronous, or was created before this process was forked.
        WorkerError: the client is closed, versions differ, or there are no workers.
    """
    if client.asynchronous:
        raise invalid_call("the Dask client is asynchronous", fix="create it without asynchronous=True")
    if any(client is each for each in _parents):
        forget(address)
        raise invalid_call(
            "the Dask client was created before this process was forked, and does not work here",
            fix="create it in the process that uses it, or give the address of the scheduler",
        )
    if not _is_answering(client):
        raise WorkerError(
            f"the scheduler at {address} does not answer the Dask client, which is {client.status}",
            done="nothing was run",
            fix="reconnect: Client(address)",
        )
    wait_for_workers(client, address)
    if client.id not in _checked:
        check_versions(client, address)
        _checked.add(client.id)


def connected(address: str, name: str = "cedar") -> Any:
    """Create a client, with the keys of a cluster that cedar started or with the TLS settings of Dask's configuration.

    Raises:
        WorkerError: the scheduler does not answer.
    """
    addressing = library("distributed.comm.addressing", "dask", "a Dask cluster")
    limit = seconds("connect")
    try:
        if address.startswith(("tcp://", "tls://")):  # raise if the port is missing: such a client would delay exit
            addressing.parse_host_port(addressing.parse_address(address)[1])
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
            fix="start one with `cedar service start` or `dask scheduler`, and check address, port, firewall and "
            'TLS: the keys of a service are found by the user who started it; for other clusters at "tls://", Dask\'s '
            "configuration names the certificates under distributed.comm.tls",
        ) from error


@functools.cache
def _client_class() -> Any:
    """Return a client class that leaves no thread if it cannot connect, nor anything to do when it is collected.

    A client that is collected in a thread which starts another client waits for a lock that the other one holds. The
    class also raises OSError if the scheduler ends before the TLS handshake.
    """
    from distributed import Client

    class _Client(Client):
        def start(self, **named: Any) -> None:
            try:
                super().start(**named)  # type: ignore[no-untyped-call]
            except BaseException:
                _close(self)
                self._loop_runner.stop()  # type: ignore[no-untyped-call] # a closed client does not stop it
                raise

        async def _ensure_connected(self, *within: Any, **named: Any) -> None:
            try:
                await super()._ensure_connected(*within, **named)  # type: ignore[no-untyped-call]
            except ValueError as error:  # tornado raises it if the stream was closed before the handshake
                raise OSError(str(error)) from error

    return _Client


def wait_for_workers(client: Any, address: str) -> None:
    """Wait until the cluster has a worker.

    Raises:
        WorkerError: none joined in time.
    """
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
    """Close all clients that this module created."""
    for address in list(_clients):
        close_client_at(address)


def close_client_at(address: str) -> None:
    """Close the client created for an address, before its scheduler ends; otherwise the client tries to reconnect."""
    with _lock:
        client = _clients.pop(address, None)
    if client is not None:
        _close(client)


def _close(client: Any) -> None:
    _mute()  # if the scheduler is gone, that was already reported
    try:
        client.close(timeout=2)
    except Exception:  # noqa: BLE001 - the client is no longer needed
        client.status = "closed"  # otherwise closing would be retried, and fail, on collection
    finally:
        _unmute()


def _mute() -> None:
    """Silence the logs of Dask's connections, until every call of ``_mute`` is followed by one of ``_unmute``."""
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
    """Close clients at exit, without logs, because connections may break while a client is closing."""
    if _clients:
        _mute()
    close_clients()


def _after_fork() -> None:
    """In a forked child, abandon all clients, whose threads do not survive a fork."""
    _parents.extend((*_clients.values(), *forget_all()))
    _clients.clear()


_parents: list[Any] = []  # references to the parent's objects, so that their finalizers do not run in a forked child
atexit.register(end_clients)
os.register_at_fork(after_in_child=_after_fork)


_PACKAGES = ("cedar", "cloudpickle", "pyarrow", "polars", "numpy")
_REQUESTED = [name for name in _PACKAGES if name != "cloudpickle"]  # Dask reports cloudpickle's version itself


def check_versions(client: Any, where: str) -> None:
    """Reject a cluster whose library versions differ from this process's. Rows could differ, or code fail to load.

    Raises:
        WorkerError: versions differ; the error names each process of the cluster and each library.
    """
    try:
        named = {"check": False, "packages": _REQUESTED}
        versions = client.sync(client.get_versions, **named, callback_timeout=seconds("scheduler-silent"))
    except Exception as error:
        raise WorkerError(
            f"the Dask cluster at {where} does not report its versions: {type(error).__name__}: {error}",
            done="nothing was run",
            fix="check the scheduler's log",
        ) from error
    differences = list(version_differences(versions))
    if differences:
        raise WorkerError(
            f"the Dask cluster at {where} has other versions than this process: {'; '.join(differences[:8])}",
            done="nothing was run",
            fix="install the same versions on the client, the scheduler and all workers, and start them again",
        )


def version_differences(versions: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences in the result of ``Client.get_versions``, one per process and library.

    Examples:
        >>> def part(version):
        ...     return {"packages": {"cedar": version, "python": "3.11.7.final.0"}}
        >>> found = {"client": part("0.1.0"), "scheduler": part("0.1.0"), "workers": {"tcp://a:1": part(None)}}
        >>> list(version_differences(found))
        ['worker tcp://a:1: cedar is missing, here 0.1.0']
    """
    ours = _relevant_versions(versions["client"])
    parts = {"scheduler": versions["scheduler"]} | {f"worker {at}": each for at, each in versions["workers"].items()}
    for name, part in parts.items():
        theirs = _relevant_versions(part)
        for package, version in ours.items():
            if theirs.get(package) != version:
                yield f"{name}: {package} {theirs.get(package, 'is missing')}, here {version}"


def _relevant_versions(part: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of one process that must match, with Python's version without its patch number."""
    packages = part["packages"]
    kept = {name: packages[name] for name in _PACKAGES if packages.get(name)}
    return kept | {"Python": ".".join(str(packages["python"]).split(".")[:2])}
