"""Limits of what is read: a small file must not fill the memory, or nest until a parser's stack ends.

All limits are here. An environment variable raises one; it is read when a source lists its files, and travels to the
workers with the source.
"""

from __future__ import annotations

import io
import os
import threading
from dataclasses import dataclass, fields
from typing import Any, Self

from cedar.core.errors import PipelineError, SourceError, user_site
from cedar.core.sizes import parse_bytes


@dataclass(frozen=True)
class Limits:
    """What one file may ask for.

    Args:
        line_bytes: of a line of text or JSON, and of a row or the header of CSV.
        decompression_ratio: decompressed bytes for each compressed one, judged once 64 MiB have come out.
        split_bytes: held at a time while a split is read: the columns of a Parquet row group as its metadata declare
            them, a record batch, the headers and members of a tar shard up to the end of a chunk, and what images and
            sound are decoded to.
        json_depth: levels of objects and lists inside each other in a line of JSON.
    """

    line_bytes: int = 256 << 20
    decompression_ratio: int = 1000
    split_bytes: int = 8 << 30
    json_depth: int = 100

    @staticmethod
    def of_environment() -> Limits:
        """The defaults, and what variables such as ``CEDAR_MAX_LINE_BYTES`` say: a number, or a size like "1GiB".

        Raises:
            PipelineError: a variable holds neither.

        Examples:
            >>> os.environ["CEDAR_MAX_JSON_DEPTH"] = "200"
            >>> Limits.of_environment().json_depth
            200
            >>> del os.environ["CEDAR_MAX_JSON_DEPTH"]
        """
        given = {f.name: os.environ.get(variable(f.name)) for f in fields(Limits)}
        return Limits(**{name: _whole(name, text) for name, text in given.items() if text is not None})


DEFAULT = Limits()


def variable(name: str) -> str:
    """The environment variable that sets a limit."""
    return f"CEDAR_MAX_{name.upper()}"


def _whole(name: str, text: str) -> int:
    value = int(text) if text.strip().isdecimal() else None
    if value is None and name.endswith("_bytes"):
        value = parse_bytes(text, variable(name))
    if not value:
        raise PipelineError(f"{variable(name)}={text!r}: an integer above 0 is expected", site=user_site())
    return value


def too_much(where: str, claim: str, name: str, limits: Limits) -> SourceError:
    """The error for a file that asks for more than a limit.

    Args:
        where: the URL, and what of it.
        claim: how much it asks for, as in "is longer than".
        name: the limit's field.
    """
    most = getattr(limits, name)
    return SourceError(
        f"{where} {claim} the limit {name}={most:,}", done="it was not read", fix=how_to_raise(name, most)
    )


def how_to_raise(name: str, most: int) -> str:
    """What to do where a file is to be trusted."""
    return f"if you trust the file, raise the limit before the pipeline is built: {variable(name)}={4 * most}"


class MemoryReservation:
    """What one task holds in memory: whatever a file asks for is asked of it first, by readers and decoders alike.

    Args:
        where: the URL, for the error.
        limits: how much that may be, as ``split_bytes``.

    Examples:
        >>> account = MemoryReservation("a.tar", Limits(split_bytes=100))
        >>> account.take(60, "member '1.jpg'")
        >>> account.give(60)
        >>> account.take(101, "member '2.jpg'")
        Traceback (most recent call last):
        ...
        cedar.SourceError: a.tar: member '2.jpg' takes what is held at a time to 101 bytes, more than ...
    """

    def __init__(self, where: str, limits: Limits) -> None:
        self.where, self._limits = where, limits
        self.taken = 0

    @staticmethod
    def of_task(where: str, limits: Limits) -> MemoryReservation:
        """The account of the task that this thread is at, from now on in the name of ``where``; else a new one."""
        account: MemoryReservation | None = getattr(_thread, "account", None)
        if account is None:
            return MemoryReservation(where, limits)
        account.where, account._limits = where, limits
        return account

    def __enter__(self) -> Self:
        """What is asked for in this thread, until the end of the block, is asked of this account."""
        self._before: MemoryReservation | None = getattr(_thread, "account", None)
        _thread.account = self
        return self

    def __exit__(self, *_: object) -> None:
        _thread.account = self._before

    def take(self, size: int, part: str) -> None:
        """Room for ``size`` bytes more.

        Raises:
            SourceError: there is none; it names the file and ``part`` of it.
        """
        if self.taken + size > self._limits.split_bytes:
            reported = f"takes what is held at a time to {self.taken + size:,} bytes, more than"
            raise too_much(f"{self.where}: {part}", reported, "split_bytes", self._limits)
        self.taken += size

    def give(self, size: int) -> None:
        """So many bytes are held no more."""
        self.taken -= size


_thread = threading.local()


def take(size: int, part: str) -> None:
    """Ask for room for what is decoded: of the account of the task that this thread is at, if it is at one.

    Raises:
        SourceError: there is none.
    """
    account: MemoryReservation | None = getattr(_thread, "account", None)
    if account is not None:
        account.take(size, part)


class Passing:
    """What is taken in the block is released at its end."""

    __slots__ = ("_account", "_held")

    def __enter__(self) -> None:
        self._account: MemoryReservation | None = getattr(_thread, "account", None)
        self._held = 0 if self._account is None else self._account.taken

    def __exit__(self, *_: object) -> None:
        if self._account is not None:
            self._account.taken = self._held


_JUDGED = 64 << 20  # decompressed bytes before a ratio tells something
_BLOCK = 1 << 20


class LimitedDecompression(io.RawIOBase):
    """Decompressed bytes, and an error where too many come out of too few.

    Args:
        stream: of the decompressed bytes.
        raw: of the compressed ones; its ``tell()`` says how many were used.
        where: the URL, for the error.
        limits: which ratio is too large.
    """

    def __init__(self, stream: Any, raw: Any, where: str, limits: Limits) -> None:
        super().__init__()
        self._stream, self._raw, self._where, self._limits = stream, raw, where, limits
        self._out = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        """As many bytes as asked for, fewer at the end only.

        Raises:
            SourceError: the limit of ``decompression_ratio`` is passed.
        """
        if size is None or size < 0:
            return self.readall()
        data: bytes = self._stream.read(size)
        self._out += len(data)
        if self._out > _JUDGED:
            ratio = self._out / max(1, self._raw.tell())
            if ratio > self._limits.decompression_ratio:
                reported = f"decompresses to {ratio:,.0f} times its size, more than"
                raise too_much(self._where, reported, "decompression_ratio", self._limits)
        return data

    def readall(self) -> bytes:
        parts = []
        while part := self.read(_BLOCK):
            parts.append(part)
        return b"".join(parts)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def tell(self) -> int:
        return self._out

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self._raw.close()
        super().close()
