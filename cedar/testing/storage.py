"""Slow and flaky storage for tests. It wraps any fsspec filesystem, and a seed determines which requests fail.

A URL names the wrapped filesystem, the faults, and the path, so it works wherever cedar accepts a URL::

    flaky://memory;status=0.1;reset=0.05;seed=1/data/x.parquet

``flaky`` builds such a URL. The same request always gets the same answer, independent of other requests and of the
thread or process that makes it, so failing tests are reproducible.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter
from typing import Any
from urllib.parse import quote, unquote

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

_SHARES = ("status", "busy", "reset", "short")
_NUMBERS = (*_SHARES, "latency", "bandwidth", "wait")


class StorageFault(OSError):
    """Raised for a storage request that was answered with an HTTP error status.

    Args:
        status: the HTTP status, 503 or 429.
        wait: seconds in the Retry-After header; None leaves the header out.

    Examples:
        >>> str(StorageFault(503))
        'the storage answers 503'
    """

    def __init__(self, status: int, wait: float | None = None) -> None:
        super().__init__(f"the storage answers {status}")
        self.status = status
        self.headers = {} if wait is None else {"Retry-After": f"{wait:g}"}

    def __reduce__(self) -> tuple[Any, ...]:
        wait = self.headers.get("Retry-After")
        return StorageFault, (self.status, None if wait is None else float(wait))


def flaky(
    url: str | os.PathLike[str],
    *,
    status: float = 0.0,
    busy: float = 0.0,
    reset: float = 0.0,
    short: float = 0.0,
    latency: float = 0.0,
    bandwidth: float = 0.0,
    wait: float = 0.0,
    seed: int = 0,
    log: str | os.PathLike[str] | None = None,
) -> str:
    """Return a URL that reads and writes the same files through flaky storage.

    Args:
        url: a URL of any fsspec filesystem, or a local path.
        status: share of requests that are answered with status 503, 0 to 1.
        busy: share of requests that are answered with 429 and a Retry-After of ``wait`` seconds.
        reset: share of requests that end in a ConnectionResetError.
        short: share of reads that return fewer bytes than requested.
        latency: seconds that each request takes.
        bandwidth: bytes per second of reads; 0 means no limit.
        wait: seconds in the Retry-After header of a 429.
        seed: determines which requests fail.
        log: a local file. Each request of any process appends a line "pid operation path fault" to it.

    Examples:
        >>> import cedar, fsspec
        >>> fsspec.filesystem("memory").pipe_file("/lines.txt", b"one two")
        >>> url = flaky("memory://lines.txt", status=0.5, seed=3)
        >>> url
        'flaky://memory;status=0.5;seed=3/lines.txt'
        >>> [row["text"] for row in cedar.read_text(url)]
        ['one two']
    """
    given = {"status": status, "busy": busy, "reset": reset, "short": short, "latency": latency, "bandwidth": bandwidth}
    given |= {"wait": wait, "seed": seed}
    if sum(given[name] for name in _SHARES) >= 1:
        raise ValueError("the shares of faults add up to 1 or more: no request would ever succeed")
    protocol, _, path = os.fspath(url).rpartition("://")
    reported = "".join(f";{name}={value:g}" for name, value in given.items() if value)
    reported += "" if log is None else f";log={quote(os.path.abspath(os.fspath(log)), safe='')}"
    if protocol in ("", "file", "local"):
        path = os.path.abspath(path)
    return f"flaky://{protocol or 'file'}{reported}/{path.lstrip('/')}"


class FlakyFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """An fsspec filesystem that injects faults; see ``flaky``, which takes the same arguments.

    Args:
        target: the protocol of the wrapped filesystem, such as "memory" or "file".
        target_options: arguments for the wrapped filesystem.

    ``requests`` counts this process's requests by operation (``info``, ``list``, ``read``, ``write``), and ``faults``
    counts the injected faults by kind.

    Examples:
        >>> FlakyFileSystem("memory", status=0.5, seed=3).faults
        Counter()
    """

    protocol = "flaky"
    cachable = True
    root_marker = ""

    def __init__(  # noqa: PLR0913 - all are keyword arguments
        self,
        target: str = "memory",
        target_options: dict[str, Any] | None = None,
        *,
        status: float = 0.0,
        busy: float = 0.0,
        reset: float = 0.0,
        short: float = 0.0,
        latency: float = 0.0,
        bandwidth: float = 0.0,
        wait: float = 0.0,
        seed: int = 0,
        log: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.target = fsspec.filesystem(target, **(target_options or {}))
        self._host = target
        self._shares = {"status": status, "busy": busy, "reset": reset, "short": short}
        self.latency, self.bandwidth, self.wait, self.seed, self.log = latency, bandwidth, wait, int(seed), log
        self.requests: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._attempts: Counter[tuple[str, str, int]] = Counter()
        self._guard = threading.Lock()

    # ---- URLs --------------------------------------------------------------------------------------------------------

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Return the path in the wrapped filesystem."""
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        path = os.fspath(path)
        if path.startswith("flaky://"):
            host, _, path = path.removeprefix("flaky://").partition("/")
            target = fsspec.get_filesystem_class(_parse_host(host)["target"])
            path = target._strip_protocol(f"/{path}" if target.root_marker == "/" else path)
        return path.rstrip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        if not path.startswith("flaky://"):
            return {}
        return _parse_host(path.removeprefix("flaky://").partition("/")[0])

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL of a path in the wrapped filesystem, without faults, since they do not identify the data."""
        return f"flaky://{self._host}/{name.lstrip('/')}"

    # ---- faults ------------------------------------------------------------------------------------------------------

    def _request(self, operation: str, path: str, start: int = 0) -> str:
        """Count and delay a request, and raise its fault if it has one. Return "short" to cut a read short."""
        with self._guard:
            self.requests[operation] += 1
            attempt = self._attempts[operation, path, start]
            self._attempts[operation, path, start] += 1
        fault = self._draw_fault(operation, path, start, attempt)
        if self.log is not None:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {operation} {path} {fault or 'none'}\n")
        if self.latency:
            time.sleep(self.latency)
        if not fault or (fault == "short" and operation != "read"):
            return ""
        with self._guard:
            self.faults[fault] += 1
        if fault == "reset":
            raise ConnectionResetError("the storage reset the connection")
        if fault != "short":
            raise StorageFault(503) if fault == "status" else StorageFault(429, self.wait)
        return fault

    def _draw_fault(self, operation: str, path: str, start: int, attempt: int) -> str:
        request = f"{self.seed} {operation} {path} {start} {attempt}".encode()
        draw = int.from_bytes(hashlib.blake2b(request, digest_size=8).digest(), "big") / 2.0**64
        for kind, share in self._shares.items():
            if draw < share:
                return kind
            draw -= share
        return ""

    # ---- for readers -------------------------------------------------------------------------------------------------

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        self._request("info", path)
        return dict(self.target.info(path, **kwargs))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        path = self._strip_protocol(path)
        self._request("list", path)
        return self.target.ls(path or self.target.root_marker, detail=detail, **kwargs)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        path = self._strip_protocol(path)
        fault = self._request("read", path, start or 0)
        data: bytes = self.target.cat_file(path, start=start, end=end, **kwargs)
        if fault == "short":
            data = data[: len(data) // 2]
        if self.bandwidth:
            time.sleep(len(data) / self.bandwidth)
        return data

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        path = self._strip_protocol(path)
        if mode == "rb":
            self._request("info", path)
            return _Ranges(self, path, mode, size=self.target.info(path)["size"], cache_type="none")
        self._request("write", path)
        return self.target.open(path, mode)

    # ---- for writers -------------------------------------------------------------------------------------------------

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.target.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        self.target.mkdir(self._strip_protocol(path), create_parents=create_parents, **kwargs)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self._request("write", path2)
        self.target.cp_file(path1, path2, **kwargs)

    def rm_file(self, path: str) -> None:
        path = self._strip_protocol(path)
        self._request("write", path)
        self.target.rm_file(path)


class _Ranges(AbstractBufferedFile):  # type: ignore[misc]
    """A file that sends one request for each range that is read."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.cat_file(self.path, start=start, end=end)  # type: ignore[no-any-return]


def _parse_host(host: str) -> dict[str, Any]:
    """Return the arguments in the host part of a URL. A user and password at its beginning are ignored."""
    target, *pairs = host.rpartition("@")[2].split(";")
    arguments: dict[str, Any] = {"target": target}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name in _NUMBERS:
            arguments[name] = float(value)
        elif name == "seed":
            arguments[name] = int(value)
        elif name == "log":
            arguments[name] = unquote(value)
        else:
            raise ValueError(f"flaky://{host}: unknown option {name!r}; see cedar.testing.storage.flaky")
    return arguments


fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
