"""Storage that fails and waits, for tests: any filesystem behind faults that a seed decides.

A URL of it names the filesystem behind, the faults, and then the path there, so that it works wherever a URL does::

    flaky://memory;status=0.1;reset=0.05;seed=1/data/x.parquet

``flaky`` writes such a URL. The same request gets the same answer whatever else is asked, and whatever thread or
process asks, so that a test that fails once fails again.
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
    """What a storage answers that is out of order.

    Args:
        status: as in HTTP, 503 or 429.
        wait: seconds of its Retry-After header; None leaves it out.

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
    """The URL of the same files behind faults.

    Args:
        url: of any filesystem of fsspec; a path is one of a local file.
        status: share of requests that are answered with status 503, 0 to 1.
        busy: share that are answered with 429 and a Retry-After of ``wait`` seconds.
        reset: share that end in a ConnectionResetError.
        short: share of reads that return fewer bytes than they should.
        latency: seconds that each request takes.
        bandwidth: bytes per second of reads; 0 does not limit them.
        wait: seconds that a 429 asks to wait.
        seed: another one fails other requests.
        log: a local file to which each request, of any process, adds a line: "pid operation path fault".

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
    """A filesystem of fsspec behind faults; see ``flaky``, which takes the same arguments.

    Args:
        target: the protocol of the filesystem behind, such as "memory" or "file".
        target_options: what it is made with.

    ``requests`` counts what this process asked, by operation (``info``, ``list``, ``read``, ``write``), ``faults`` what
    went wrong, by kind.

    Examples:
        >>> FlakyFileSystem("memory", status=0.5, seed=3).faults
        Counter()
    """

    protocol = "flaky"
    cachable = True
    root_marker = ""

    def __init__(  # noqa: PLR0913 - each has a name
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
        """The path as the filesystem behind has it."""
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        path = os.fspath(path)
        if path.startswith("flaky://"):
            host, _, path = path.removeprefix("flaky://").partition("/")
            target = fsspec.get_filesystem_class(_parsed(host)["target"])
            path = target._strip_protocol(f"/{path}" if target.root_marker == "/" else path)
        return path.rstrip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        if not path.startswith("flaky://"):
            return {}
        return _parsed(path.removeprefix("flaky://").partition("/")[0])

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path, with the filesystem behind but not the faults: they are no part of the data."""
        return f"flaky://{self._host}/{name.lstrip('/')}"

    # ---- faults ------------------------------------------------------------------------------------------------------

    def _ask(self, operation: str, path: str, start: int = 0) -> str:
        """Count a request, take its time, raise its fault; "short" where it is to return less."""
        with self._guard:
            self.requests[operation] += 1
            attempt = self._attempts[operation, path, start]
            self._attempts[operation, path, start] += 1
        fault = self._drawn(operation, path, start, attempt)
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

    def _drawn(self, operation: str, path: str, start: int, attempt: int) -> str:
        word = f"{self.seed} {operation} {path} {start} {attempt}".encode()
        draw = int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "big") / 2.0**64
        for kind, share in self._shares.items():
            if draw < share:
                return kind
            draw -= share
        return ""

    # ---- what readers call -------------------------------------------------------------------------------------------

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        self._ask("info", path)
        return dict(self.target.info(path, **kwargs))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        path = self._strip_protocol(path)
        self._ask("list", path)
        return self.target.ls(path or self.target.root_marker, detail=detail, **kwargs)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        path = self._strip_protocol(path)
        fault = self._ask("read", path, start or 0)
        data: bytes = self.target.cat_file(path, start=start, end=end, **kwargs)
        if fault == "short":
            data = data[: len(data) // 2]
        if self.bandwidth:
            time.sleep(len(data) / self.bandwidth)
        return data

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        path = self._strip_protocol(path)
        if mode == "rb":
            self._ask("info", path)
            return _Ranges(self, path, mode, size=self.target.info(path)["size"], cache_type="none")
        self._ask("write", path)
        return self.target.open(path, mode)

    # ---- what sinks call ---------------------------------------------------------------------------------------------

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.target.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        self.target.mkdir(self._strip_protocol(path), create_parents=create_parents, **kwargs)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self._ask("write", path2)
        self.target.cp_file(path1, path2, **kwargs)

    def rm_file(self, path: str) -> None:
        path = self._strip_protocol(path)
        self._ask("write", path)
        self.target.rm_file(path)


class _Ranges(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read by ranges, each its own request."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.cat_file(self.path, start=start, end=end)  # type: ignore[no-any-return]


def _parsed(host: str) -> dict[str, Any]:
    """The arguments that a URL names behind its protocol, and behind a user and password, which nothing asks for."""
    target, *pairs = host.rpartition("@")[2].split(";")
    given: dict[str, Any] = {"target": target}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name in _NUMBERS:
            given[name] = float(value)
        elif name == "seed":
            given[name] = int(value)
        elif name == "log":
            given[name] = unquote(value)
        else:
            raise ValueError(f"flaky://{host}: there is no {name!r}; see cedar.testing.storage.flaky")
    return given


fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
