"""Sizes as users write them ("256MiB", "2GB"), and limits for input files.

The limits prevent that a small file exhausts the memory, or overflows a parser's stack by deep nesting. Environment
variables change them. A source reads the variables when it lists its files, and workers receive the limits with the
source.
"""

from __future__ import annotations

import io
import operator
import os
import re
import threading
from dataclasses import dataclass, fields
from typing import Any, Self

from cedar.core.errors import SourceError, invalid_call

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def as_int(value: Any) -> Any:
    """Convert integers of NumPy and torch to int; return anything else, such as True, unchanged.

    Examples:
        >>> import numpy as np
        >>> as_int(np.int64(3)), as_int(3.0), as_int(True)
        (3, 3.0, True)
    """
    if isinstance(value, int) or "bool" in str(getattr(value, "dtype", "")):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def size_text(size: float) -> str:
    """Format a number of bytes for people.

    Examples:
        >>> size_text(3 << 40), size_text(3 << 29), size_text(512)
        ('3TiB', '1.5GiB', '512B')
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        whole = _UNITS[unit.upper()]
        if size >= whole:
            return f"{size / whole:.3g}{unit}" if size < 1000 * whole else f"{size / whole:,.0f}{unit}"
    return f"{size:.0f}B"


def parse_bytes(text: str, argument: str) -> int:
    """Return the number of bytes of a size such as "256MiB".

    Raises:
        PipelineError: the text is not a size.

    Examples:
        >>> parse_bytes("2KiB", "window")
        2048
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*", text)
    unit = _UNITS.get(match.group(2).upper()) if match else None
    if match is None or unit is None or float(match.group(1)) <= 0:
        raise invalid_call(f'{argument}={text!r} is not a size; write it like "256MiB"')
    return int(float(match.group(1)) * unit)


@dataclass(frozen=True)
class Limits:
    """The limits for one file.

    Args:
        line_bytes: bytes of a line of text or JSON, or of a row or the header of a CSV file.
        decompression_ratio: decompressed bytes per compressed byte, checked after the first 64 MiB of output.
        split_bytes: bytes in memory at a time while a split is read: the columns of a Parquet row group (as declared in
            its metadata), a record batch, the headers and members of a tar shard up to the end of a chunk, and decoded
            images and sound.
        json_depth: levels of nested objects and lists in a line of JSON.
    """

    line_bytes: int = 256 << 20
    decompression_ratio: int = 1000
    split_bytes: int = 8 << 30
    json_depth: int = 100

    @staticmethod
    def of_environment() -> Limits:
        """Return the defaults, or the values of variables such as ``CEDAR_MAX_LINE_BYTES`` (an integer or "1GiB").

        Raises:
            PipelineError: the value of a variable is neither an integer nor a size.

        Examples:
            >>> os.environ["CEDAR_MAX_JSON_DEPTH"] = "200"
            >>> Limits.of_environment().json_depth
            200
            >>> del os.environ["CEDAR_MAX_JSON_DEPTH"]
        """
        limits: dict[str, int] = {}
        for name in (field.name for field in fields(Limits)):
            text = os.environ.get(variable(name))
            if text is None:
                continue
            value = int(text) if text.strip().isdecimal() else None
            if value is None and name.endswith("_bytes"):
                value = parse_bytes(text, variable(name))
            if not value:
                raise invalid_call(f"{variable(name)}={text!r}: an integer above 0 is expected")
            limits[name] = value
        return Limits(**limits)


DEFAULT = Limits()


def variable(name: str) -> str:
    """Return the environment variable that sets a limit."""
    return f"CEDAR_MAX_{name.upper()}"


def too_much(where: str, claim: str, name: str, limits: Limits) -> SourceError:
    """Return the error for a file that exceeds a limit.

    Args:
        where: the URL and the part of the file.
        claim: the words before the limit, such as "is longer than".
        name: the field of ``Limits``.
    """
    most = getattr(limits, name)
    return SourceError(
        f"{where} {claim} the limit {name}={most:,}", done="it was not read", fix=how_to_raise(name, most)
    )


def how_to_raise(name: str, most: int) -> str:
    """Return the advice to raise a limit for a file that the user trusts."""
    return f"if you trust the file, raise the limit before the pipeline is built: {variable(name)}={4 * most}"


class MemoryReservation:
    """The memory reserved by one task. Readers and decoders reserve the bytes that a file needs before allocating them.

    Args:
        where: the URL, for the error.
        limits: the limits, of which ``split_bytes`` applies.

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
        """Return the reservation of this thread's task, or a new one. Its later errors name ``where``."""
        account: MemoryReservation | None = getattr(_thread, "account", None)
        if account is None:
            return MemoryReservation(where, limits)
        account.where, account._limits = where, limits
        return account

    def __enter__(self) -> Self:
        """Use this reservation for the memory that this thread needs inside the ``with`` block."""
        self._before: MemoryReservation | None = getattr(_thread, "account", None)
        _thread.account = self
        return self

    def __exit__(self, *_: object) -> None:
        _thread.account = self._before

    def take(self, size: int, part: str) -> None:
        """Reserve ``size`` more bytes.

        Raises:
            SourceError: the limit would be exceeded; the error names the file and ``part`` of it.
        """
        if self.taken + size > self._limits.split_bytes:
            excess = f"takes what is held at a time to {self.taken + size:,} bytes, more than"
            raise too_much(f"{self.where}: {part}", excess, "split_bytes", self._limits)
        self.taken += size

    def give(self, size: int) -> None:
        """Release ``size`` bytes."""
        self.taken -= size


_thread = threading.local()


def take(size: int, part: str) -> None:
    """Reserve memory for decoded data in the reservation of this thread's task, if it has one.

    Raises:
        SourceError: the limit would be exceeded.
    """
    account: MemoryReservation | None = getattr(_thread, "account", None)
    if account is not None:
        account.take(size, part)


class Passing:
    """A ``with`` block that releases at its end all memory that was reserved in it."""

    __slots__ = ("_account", "_held")

    def __enter__(self) -> None:
        self._account: MemoryReservation | None = getattr(_thread, "account", None)
        self._held = 0 if self._account is None else self._account.taken

    def __exit__(self, *_: object) -> None:
        if self._account is not None:
            self._account.taken = self._held


_MIN_CHECKED_BYTES = 64 << 20  # the ratio is checked only beyond this many decompressed bytes
_BLOCK = 1 << 20


class LimitedDecompression(io.RawIOBase):
    """A stream of decompressed bytes that raises an error if the compression ratio is too high.

    Args:
        stream: the stream of decompressed bytes.
        raw: the stream of compressed bytes; its ``tell()`` returns how many were read.
        where: the URL, for the error.
        limits: the limits, of which ``decompression_ratio`` applies.
    """

    def __init__(self, stream: Any, raw: Any, where: str, limits: Limits) -> None:
        super().__init__()
        self._stream, self._raw, self._where, self._limits = stream, raw, where, limits
        self._out = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Read ``size`` bytes, or fewer at the end of the stream.

        Raises:
            SourceError: the ratio exceeds ``decompression_ratio``.
        """
        if size is None or size < 0:
            return self.readall()
        data: bytes = self._stream.read(size)
        self._out += len(data)
        if self._out > _MIN_CHECKED_BYTES:
            ratio = self._out / max(1, self._raw.tell())
            if ratio > self._limits.decompression_ratio:
                excess = f"decompresses to {ratio:,.0f} times its size, more than"
                raise too_much(self._where, excess, "decompression_ratio", self._limits)
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
