"""Files of a run: there wholly or not, JSON with a digest, metrics; and the folder that holds one run alone."""

from __future__ import annotations

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
_MOST = 1 << 28  # bytes of a file of JSON


class Damaged(CedarError):
    """What was read is not what was written."""


def seal(content: dict[str, Any]) -> bytes:
    """A line of JSON: a digest, and the content that it is of.

    Examples:
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
        content = json.loads(match[2], parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, f"it is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise _damaged(where, "it holds no object")
    return content


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
                raise _damaged(path, f"it is not a file of at most {_MOST >> 20} MiB")
            text = file.read(_MOST)
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from error
    return unseal(text, path)


@contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
    """Write a file next to its place; it gets there, on the disk, when all is written, and not at all after an
    error.
    """
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
    raise ValueError(f"{constant} is not a number of JSON")


def _damaged(where: str, why: str) -> Damaged:
    return Damaged(f"{where} cannot be read: {why}", done="it was not used", fix="remove it, or take an older one")


CHECKPOINTS, METRICS, RUN, PLOT = "checkpoints", "metrics.jsonl", "run.json", "replicas.png"
_OURS = (CHECKPOINTS, "sparse", METRICS, RUN, "report.json")


def check_folder(folder: str, trainer: str, *, resume: bool) -> None:
    """Make the folder where it is not there, and refuse it where it holds another run's files.

    Args:
        folder: ``run.folder``.
        trainer: the name of the one that wants it.
        resume: the files that are there are of the run that continues; they must be of the same trainer.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        names = [name for name in _OURS if os.path.exists(os.path.join(folder, name))]
        names = [name for name in names if not os.path.isdir(path := os.path.join(folder, name)) or os.listdir(path)]
    except OSError as error:
        raise CedarError(
            f"run.folder is {folder!r}, which cannot be made: {error.strerror}",
            fix="set it to a folder for checkpoints and metrics",
        ) from error
    whose = ""
    with suppress(OSError, ValueError, RecursionError), open(os.path.join(folder, RUN), encoding="utf-8") as file:
        reported = json.load(file)
        whose = str(reported.get("trainer", "")) if isinstance(reported, dict) else ""
    if names and whose not in ("", trainer):
        raise CedarError(
            f"{folder} holds a run of the trainer {whose!r}, and this one is {trainer!r}",
            done="nothing was changed there", fix="set run.folder to another folder",
        )  # fmt: skip
    if names and not resume:
        raise CedarError(
            f"{folder} holds the files of another run: {', '.join(names)}",
            done="nothing was changed there", fix="continue with --resume, or set run.folder to another folder",
        )  # fmt: skip


def claim_folder(folder: str, trainer: str) -> None:
    """Say that the folder is this trainer's."""
    with replacing(os.path.join(folder, RUN)) as file:
        file.write(json.dumps({"trainer": trainer}).encode() + b"\n")


OnMetrics = Callable[[Mapping[str, Any]], None]


class MetricsFile:
    """Records of steps as lines of JSON, written as they come; what is not a finite number is null.

    Args:
        path: of the file; empty: none is written.
        after: records of this step and later ones are dropped: they will be written again.
        on_metrics: is given each record, too, as the line says it.
    """

    def __init__(self, path: str, after: int = 0, on_metrics: OnMetrics | None = None) -> None:
        self.path, self.on_metrics = path, on_metrics
        if path:
            kept = [line for line in read_lines(path) if line["step"] < after] if after else []
            with replacing(path) as file:
                file.writelines(json.dumps(line).encode() + b"\n" for line in kept)

    def write(self, record: DataclassInstance) -> None:
        """Append a record, which has a field ``step``."""
        line = finite(asdict(record))
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        if self.on_metrics is not None:
            self.on_metrics(line)


def finite(value: Any) -> Any:
    """A value of JSON with None for what is not a finite number.

    Examples:
        >>> finite({"loss": math.nan, "rates": (0.5, math.inf)})
        {'loss': None, 'rates': [0.5, None]}
    """
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_lines(path: str) -> list[dict[str, Any]]:
    """The lines of a file of JSON; the last one is left out if it was cut off, all if there is no file."""
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
    """An empty picture, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CedarError("pictures need matplotlib", fix="pip install 'cedar-data[plots]'") from error
    return Figure(figsize=(width, height), layout="constrained")
