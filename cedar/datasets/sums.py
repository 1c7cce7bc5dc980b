"""Checksums for formats that lack them: the file ``name.crc`` has one CRC per 64 KiB of the file ``name``.

Data is checked block by block before decoding, so that a flipped bit raises an error that names the file.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cedar.core.errors import SourceError
from cedar.store.files import write_whole

SUFFIX = ".crc"
BLOCK = 64 << 10  # about the size of a small read of remote storage
_FORMAT = "cedar checksums 1"


class RunningChecksums:
    """Computes the checksums of data that is added piece by piece."""

    def __init__(self) -> None:
        self.size = 0
        self._sums: list[int] = []
        self._last = 0  # checksum of the incomplete block

    def add(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        while view:
            room = BLOCK - self.size % BLOCK
            part, view = view[:room], view[room:]
            self._last = zlib.crc32(part, self._last)
            self.size += len(part)
            if self.size % BLOCK == 0:
                self._sums.append(self._last)
                self._last = 0

    def text(self) -> bytes:
        """Return the contents to write to the checksum file."""
        last = [self._last] if self.size % BLOCK else []
        crc32 = np.array([*self._sums, *last], dtype="<u4").tobytes()
        reported = {
            "format": _FORMAT,
            "size": self.size,
            "block": BLOCK,
            "crc32": crc32.hex(),
            "crc": zlib.crc32(crc32),
        }
        return json.dumps(reported).encode()


@dataclass(frozen=True, eq=False)
class Sums:
    """The checksums of a file.

    Args:
        url: the file, for messages.
        size: the file's size in bytes.
        crc32: uint32[blocks].
    """

    url: str
    size: int
    crc32: npt.NDArray[np.uint32]

    @staticmethod
    def parse(url: str, size: int | None, data: bytes) -> Sums:
        """Parse the checksum file ``data`` for the file ``url`` of ``size`` bytes."""
        where = f"{url}{SUFFIX}"
        try:
            reported = json.loads(data)
            crc32 = bytes.fromhex(reported["crc32"])
            sums = Sums(url, int(reported["size"]), np.frombuffer(crc32, dtype="<u4").astype(np.uint32))
            valid = (
                reported["format"] == _FORMAT and reported["block"] == BLOCK and reported["crc"] == zlib.crc32(crc32)
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(where) from error
        if not valid or len(sums.crc32) != -(-sums.size // BLOCK):
            raise _damaged(where)
        if size is not None and size != sums.size:
            raise SourceError(
                f"{url}: has {size:,} bytes, its checksums are of {sums.size:,}: it was truncated or rewritten",
                fix=f"restore the file; if it was written again on purpose, remove {where}",
            )
        return sums

    def check(self, data: Any, start: int) -> None:
        """Raise SourceError if ``data`` does not match; it begins at offset ``start``, the beginning of a block."""
        view = memoryview(data)
        for at in range(0, len(view), BLOCK):
            if zlib.crc32(view[at : at + BLOCK]) != int(self.crc32[(start + at) // BLOCK]):
                where = start + at
                raise SourceError(
                    f"{self.url}: damaged: bytes {where:,} to {min(where + BLOCK, self.size):,} have changed",
                    done="the data was not used",
                    fix=f"restore the file, or write it again; its checksums are in {self.url}{SUFFIX}",
                )


def block_range(start: int, stop: int, size: int) -> tuple[int, int]:
    """Extend the byte range ``start`` to ``stop`` to complete blocks of a file of ``size`` bytes."""
    return start - start % BLOCK, min(size, stop + -stop % BLOCK)


def write_sums(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Write a checksum file next to each local file; return the paths of the checksum files.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("a.vortex").write_bytes(b"data")
        >>> write_sums(["a.vortex"])
        ['a.vortex.crc']
    """
    written = []
    for each in paths:
        path = os.fspath(each)
        checksums = RunningChecksums()
        with open(path, "rb") as file:
            while data := file.read(16 * BLOCK):
                checksums.add(data)
        written.append(f"{path}{SUFFIX}")
        write_whole(written[-1], checksums.text())
    return written


def _damaged(where: str) -> SourceError:
    return SourceError(
        f"{where}: is damaged, or not a checksum file", fix="remove it to read the file without checksums"
    )
