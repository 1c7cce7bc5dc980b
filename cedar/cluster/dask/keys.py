"""TLS keys of the clusters that cedar starts: only clients that have a cluster's key can connect to it.

A cluster's scheduler, workers and clients share one key with its certificate, and use mutual TLS.
The key stays in the memory of the process that started the cluster. While a service runs, its key is also in a file of
mode 0600, where other processes of the same user find it by the service's address.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from typing import Any

from cedar.core.errors import WorkerError
from cedar.store.files import private_folder

FIX = "pip install 'cedar-data[dask]'"
_FIELDS = ("certificate", "key")
_known: dict[str, dict[str, str]] = {}  # keys of the clusters that this process started, by address


def new_keys() -> dict[str, str]:
    """Create a key and its certificate, as PEM strings.

    Raises:
        WorkerError: the package cryptography is missing.
    """
    from distributed.security import Security

    try:
        made = Security.temporary()  # type: ignore[no-untyped-call]
    except ImportError as error:
        raise WorkerError(
            f"keys of a Dask cluster need the package cryptography: {error}", done="nothing was started", fix=FIX
        ) from error
    return {"certificate": made.tls_ca_file, "key": made.tls_client_key}


def security(keys: dict[str, str]) -> Any:
    """Return Dask's ``Security`` with a cluster's keys for all roles."""
    from distributed.security import Security

    roles = ("client", "scheduler", "worker")
    return Security(  # type: ignore[no-untyped-call]
        require_encryption=True,
        tls_ca_file=keys["certificate"],
        **{f"tls_{role}_cert": keys["certificate"] for role in roles},
        **{f"tls_{role}_key": keys["key"] for role in roles},
    )


def security_at(address: str) -> Any:
    """Return the ``Security`` for a scheduler's client, from the cluster's key if known, else Dask's configuration."""
    from distributed.security import Security

    keys = _known.get(address) or _published(address)
    return Security() if keys is None else security(keys)  # type: ignore[no-untyped-call]


def know(address: str, keys: dict[str, str]) -> None:
    """Remember the keys of a cluster that this process started."""
    _known[address] = keys


def forget(address: str) -> None:
    """Drop the keys of a cluster that has ended."""
    _known.pop(address, None)


def publish(address: str, keys: dict[str, str]) -> str | None:
    """Save a service's keys for other processes of this user. Return the path, or None without a private folder."""
    path = _path(address)
    if path is None:
        return None
    fresh = f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            json.dump(keys, file)
        os.replace(fresh, path)
    except OSError:
        return None
    return path


def withdraw(path: str | None, keys: dict[str, str] | None) -> None:
    """Remove the file that ``publish`` wrote, unless a new service at the address has replaced it."""
    if path is not None:
        with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
            if json.load(file) == keys:
                os.unlink(path)


def _published(address: str) -> dict[str, str] | None:
    """Return the published keys of this user's service, or None. Raise WorkerError if others can access the file."""
    path = _path(address)
    if path is None:
        return None
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with open(number, encoding="utf-8") as file:
        facts = os.fstat(number)
        others = facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if facts.st_uid != os.geteuid() or others:
            raise WorkerError(
                f"the keys of the service at {address} are in a file that other users can access: {path}",
                done="nothing was run", fix="start the service again; only you should have its key",
            )  # fmt: skip
        try:
            keys = json.load(file)
        except (ValueError, RecursionError):
            return None
    good = isinstance(keys, dict) and set(keys) == set(_FIELDS) and all(isinstance(v, str) for v in keys.values())
    return keys if good else None


def _path(address: str) -> str | None:
    folder = private_folder("services")
    return os.path.join(folder, re.sub(r"[^A-Za-z0-9.]+", "_", address) + ".json") if folder else None
