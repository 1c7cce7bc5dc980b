"""JSON with a digest of its own, and files that are there wholly or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from cedar.errors import CedarError

_SEALED = re.compile(rb'\{"sha256": "([0-9a-f]{64})", "content": (.*)\}\n?', re.DOTALL)
_MOST = 1 << 28  # bytes of a file of JSON


class Damaged(CedarError):
    """What was read is not what was written."""


def seal(content: dict[str, Any]) -> bytes:
    """A line of JSON: a digest, and the content that it is of.

    Example:
        >>> unseal(seal({"step": 3}), "memory")
        {'step': 3}
    """
    text = json.dumps(content, allow_nan=False).encode()
    return b'{"sha256": "%s", "content": %s}\n' % (hashlib.sha256(text).hexdigest().encode(), text)


def unseal(line: bytes, where: str) -> dict[str, Any]:
    """The content; the digest is compared before anything is parsed.

    Raises:
        Damaged: another digest, no JSON, or no object; ``where`` names it.
    """
    match = _SEALED.fullmatch(line)
    if match is None:
        raise _damaged(where, "it is cut off, or not of this format")
    if hashlib.sha256(match[2]).hexdigest().encode() != match[1]:
        raise _damaged(where, "its digest is another than was written")
    try:
        found = json.loads(match[2], parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, f"it is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise _damaged(where, "it holds no object")
    return found


def write_sealed(path: str, content: dict[str, Any]) -> None:
    """Write a file of sealed JSON; it is on the disk afterwards."""
    with replacing(path) as file:
        file.write(seal(content))


def read_sealed(path: str) -> dict[str, Any]:
    """The content of such a file.

    Raises:
        Damaged: it cannot be read, or is not what was written.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe in its place does not block
        with open(handle, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST:
                raise _damaged(path, f"it is no file of at most {_MOST >> 20} MiB")
            text = file.read(_MOST)
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from error
    return unseal(text, path)


@contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
    """Write a file beside its place; it gets there, on the disk, when all is written, and not at all after an error."""
    aside = f"{path}.new"
    try:
        with open(aside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise
    sync_folder(os.path.dirname(path) or ".")


def sync_folder(folder: str) -> None:
    """What was renamed in a folder is so on the disk, too."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")


def _damaged(where: str, why: str) -> Damaged:
    return Damaged(f"{where} cannot be read: {why}", done="it was not used", fix="remove it, or take an older one")
