"""Track the runs that processes serve. A file per run, in the user's private folder, has its address and token."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from cedar.core.errors import PipelineError
from cedar.store.files import private_folder

_FOLDER = "served"


def note(url: str, port: int) -> str | None:
    """Save an address in a file that only this user can read. Return its path, or None if no folder is available."""
    folder = private_folder(_FOLDER)
    if folder is None:
        return None
    _remove_dead(folder)
    path = os.path.join(folder, f"{_host_name()}.{os.getpid()}.{port}")
    with suppress(OSError):
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(url)
        return path
    return None


def forget(path: str | None, process: int) -> None:
    """Remove the file of a run that is no longer served. A forked child leaves it in place."""
    if path is not None and process == os.getpid():
        with suppress(OSError):
            os.unlink(path)


def served_by(pid: int) -> list[str]:
    """Return the addresses (``loader.url``) of the loaders that a process of this user on this machine serves.

    Raises:
        PipelineError: the process serves no loader.

    Examples:
        >>> import cedar, os
        >>> with cedar.from_items([{"x": 1}]).loader(serve="127.0.0.1:0") as loader:
        ...     cedar.served_by(os.getpid()) == [loader.url]
        True
    """
    folder, addresses = private_folder(_FOLDER), []
    for host, process, port in _list_entries(folder) if folder else []:
        if host == _host_name() and process == pid:
            with (
                suppress(OSError),
                open(os.path.join(str(folder), f"{host}.{process}.{port}"), encoding="utf-8") as file,
            ):
                addresses.append((port, file.read()))
    if not addresses:
        raise PipelineError(
            f"process {pid} serves none of your runs",
            fix='create its loader with serve="127.0.0.1:0"; for another machine, use loader.url',
        )
    return [url for _, url in sorted(addresses)]


def _list_entries(folder: str) -> list[tuple[str, int, int]]:
    """Return host, process and port of each file name; skip other files."""
    entries = []
    for name in os.listdir(folder):
        host, _, rest = name.partition(".")
        process, _, port = rest.partition(".")
        if process.isdecimal() and port.isdecimal():
            entries.append((host, int(process), int(port)))
    return entries


def _remove_dead(folder: str) -> None:
    """Remove the files of processes that were killed."""
    for host, process, port in _list_entries(folder):
        if host == _host_name():
            try:
                os.kill(process, 0)
            except ProcessLookupError:
                with suppress(OSError):
                    os.unlink(os.path.join(folder, f"{host}.{process}.{port}"))
            except OSError:  # the process is alive and belongs to another user
                continue


def _host_name() -> str:
    """Return the name of this machine, to distinguish machines that share the folder."""
    return socket.gethostname().replace(".", "-") or "localhost"
