"""Files of a run: atomic writes, JSON with a digest, metrics, and the check that a folder contains only one run."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

from cedar.core.errors import CedarError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_SEALED = re.compile(rb'\{"sha256": "([0-9a-f]{64})", "content": (.*)\}\n?', re.DOTALL)
_MAX_BYTES = 1 << 28  # maximum bytes of a JSON file


class Damaged(CedarError):
    """The content of a file is not the content that was written to it."""


class Unreadable(Damaged):
    """A file may not be opened, or the disk reports an error. Its content may be intact, so do not rename it."""


def seal(content: dict[str, Any]) -> bytes:
    """Return a line of JSON with the content and the content's SHA-256 digest.

    Examples:
        >>> unseal(seal({"step": 3}), "memory")
        {'step': 3}
    """
    text = json.dumps(content, allow_nan=False).encode()
    return b'{"sha256": "%s", "content": %s}\n' % (hashlib.sha256(text).hexdigest().encode(), text)


def unseal(line: bytes, where: str) -> dict[str, Any]:
    """Return the content of a sealed line, after checking the digest.

    Raises:
        Damaged: the digest does not match, or the content is not a JSON object. The message names ``where``.
    """
    match = _SEALED.fullmatch(line)
    if match is None:
        raise _damaged(where, "it is truncated, or has another format")
    if hashlib.sha256(match[2]).hexdigest().encode() != match[1]:
        raise _damaged(where, "its SHA-256 digest does not match its content")
    try:
        content = json.loads(match[2], parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, f"it is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise _damaged(where, "it is not a JSON object")
    return content


def write_sealed(path: str, content: dict[str, Any]) -> None:
    """Write a file of sealed JSON atomically and flush it to disk."""
    with replacing(path) as file:
        file.write(seal(content))


def read_sealed(path: str) -> dict[str, Any]:
    """Return the content of a file that ``write_sealed`` wrote.

    Raises:
        Damaged: the file cannot be read, or its content has changed.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a named pipe must not block
        with open(handle, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
                raise _damaged(path, f"it is not a file of at most {_MAX_BYTES >> 20} MiB")
            text = file.read(_MAX_BYTES)
    except OSError as error:
        check_readable(error, path)
        raise _damaged(path, error.strerror or str(error)) from error
    return unseal(text, path)


def check_readable(error: OSError, path: str) -> None:
    """Raise Unreadable unless an error shows that the file at ``path`` is missing or is not a file."""
    if isinstance(error, PermissionError) or error.errno == errno.EIO:
        raise Unreadable(
            f"{path} cannot be read: {error.strerror}", done="it was not used and not changed",
            fix="check its permissions and the disk",
        ) from error  # fmt: skip


@contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
    """Open a temporary file. If the block succeeds, sync it to disk and atomically replace ``path`` with it; after an
    error, remove it.

    Raises:
        CedarError: the file cannot be written.
    """
    aside = f"{path}.new"
    try:
        with open(aside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        sync_folder(os.path.dirname(path) or ".")
    except BaseException as error:
        with suppress(OSError):
            os.unlink(aside)
        if isinstance(error, OSError):
            raise not_written(path, error) from error
        raise


def not_written(path: str, error: OSError) -> CedarError:
    """Return the error for a file or a folder that cannot be written."""
    return CedarError(
        f"{path} cannot be written: {error.strerror or error}", done="checkpoints that are complete were not changed",
        fix="check the free space and the permissions of its folder",
    )  # fmt: skip


def sync_folder(folder: str) -> None:
    """Flush a folder to disk, so that renames in it survive a crash."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")


def _damaged(where: str, why: str) -> Damaged:
    return Damaged(f"{where} cannot be read: {why}", done="it was not used", fix="remove it, or use an older one")


CHECKPOINTS, METRICS, RUN, PLOT = "checkpoints", "metrics.jsonl", "run.json", "replicas.png"
_OURS = (CHECKPOINTS, "sparse", METRICS, RUN, "report.json")


def check_folder(folder: str, trainer: str, *, resume: bool) -> None:
    """Create the folder if it does not exist, and raise if it contains files of another run.

    Args:
        folder: ``run.folder``.
        trainer: the name of the trainer that will use the folder.
        resume: whether this run continues the run in the folder, which must be from the same trainer.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        names = [name for name in _OURS if os.path.exists(os.path.join(folder, name))]
        names = [name for name in names if not os.path.isdir(path := os.path.join(folder, name)) or os.listdir(path)]
    except OSError as error:
        raise CedarError(
            f"run.folder is {folder!r}, which cannot be created: {error.strerror}",
            fix="set it to a folder for checkpoints and metrics",
        ) from error
    whose = ""
    with suppress(OSError, ValueError, RecursionError), open(os.path.join(folder, RUN), encoding="utf-8") as file:
        reported = json.load(file)
        whose = str(reported.get("trainer", "")) if isinstance(reported, dict) else ""
    if names and whose not in ("", trainer):
        raise CedarError(
            f"{folder} holds a run of the trainer {whose!r}, but this one is {trainer!r}",
            done="nothing was changed there", fix="set run.folder to another folder",
        )  # fmt: skip
    if names and not resume:
        raise CedarError(
            f"{folder} holds the files of another run: {', '.join(names)}",
            done="nothing was changed there", fix="continue with --resume, or set run.folder to another folder",
        )  # fmt: skip


def claim_folder(folder: str, trainer: str) -> None:
    """Record the trainer's name in the folder."""
    with replacing(os.path.join(folder, RUN)) as file:
        file.write(json.dumps({"trainer": trainer}).encode() + b"\n")


OnMetrics = Callable[[Mapping[str, Any]], None]


class MetricsFile:
    """Writes a record per step as a line of JSON. Numbers that are not finite become null.

    Args:
        path: path of the file; if empty, do not write a file.
        after: drop existing records from this step on, because the run will write them again.
        on_metrics: called with each record in the form in which it is written.
    """

    def __init__(self, path: str, after: int = 0, on_metrics: OnMetrics | None = None) -> None:
        self.path, self.on_metrics = path, on_metrics
        if path:
            kept = [line for line in read_lines(path) if line["step"] < after] if after else []
            with replacing(path) as file:
                file.writelines(json.dumps(line).encode() + b"\n" for line in kept)

    def write(self, record: DataclassInstance) -> None:
        """Append a record, which must have a field ``step``."""
        line = finite(asdict(record))
        if self.path:
            try:
                with open(self.path, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line, allow_nan=False) + "\n")
            except OSError as error:
                raise not_written(self.path, error) from error
        if self.on_metrics is not None:
            self.on_metrics(line)


def finite(value: Any) -> Any:
    """Return a JSON value in which None replaces numbers that are not finite.

    Examples:
        >>> finite({"loss": math.nan, "rates": (0.5, math.inf)})
        {'loss': None, 'rates': [0.5, None]}
    """
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number(value: float | None) -> float:
    """Return a number that was written by ``finite``; NaN for None.

    Examples:
        >>> number(None), number(0.5)
        (nan, 0.5)
    """
    return math.nan if value is None else value


def read_lines(path: str) -> list[dict[str, Any]]:
    """Return the records of a file of JSON lines without a truncated last line; [] if the file does not exist."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    parsed: list[dict[str, Any]] = []
    for line in lines:
        try:
            parsed.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return parsed


def figure(width: float, height: float) -> Any:
    """Return an empty matplotlib figure of a size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CedarError("pictures need matplotlib", fix="pip install 'cedar-data[plots]'") from error
    return Figure(figsize=(width, height), layout="constrained")
