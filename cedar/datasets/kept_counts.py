"""Kept counts: how many rows filters leave of each row group of files, in a file that ranks and later runs share.

40 bytes (a mark, and the SHA-256 of the rest), then an Arrow stream with a row per file: what it is known by (its URL,
size and stamp), and what is left of its row groups. They are a cache: a run that reads finds the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from typing import Any

import pyarrow as pa

from cedar.core.errors import CedarError
from cedar.core.private_folder import private_folder
from cedar.core.redact import redact_url
from cedar.datasets.kept_file import Damaged, read_file, sealed, unsealed, write_file
from cedar.datasets.listing import File
from cedar.datasets.stamps import lasting

_log = logging.getLogger("cedar")
_MARK = b"cedarct1"
_SCHEMA = pa.schema([("file", pa.large_string()), ("left", pa.large_list(pa.int64()))])


def file_mark(file: File) -> str | None:
    """What a file is known by; None where nothing tells it from another of its name and size."""
    if file.stamp is None:
        return None
    return _digest([file.url, file.size, lasting(file.stamp)])


def place_of(source: Any, key: str) -> str | None:
    """Where the counts of a source over files are kept: beside its manifest, else in the user's cache folder.

    Args:
        source: over files.
        key: of the filters.
    """
    if source.manifest is not None:
        return f"{source.manifest}.{key}.counts"
    folder = private_folder("counts")
    if folder is None:
        return None
    own = os.path.join(folder, _digest(list(source.paths)))  # its own: who counts holds a lock of it
    try:
        os.makedirs(own, mode=0o700, exist_ok=True)
    except OSError:
        return None
    return os.path.join(own, f"{key}.counts")


def load_counts(where: str) -> dict[str, tuple[int, ...]]:
    """What is kept, by file; nothing where there is no such file, or it cannot be used, which is said."""
    try:
        data = read_file(where)
        return {} if data is None else _opened(data)
    except (CedarError, OSError, ValueError, TypeError, pa.ArrowException) as error:
        _log.warning("the counts %r cannot be used: %s; rows are counted anew", redact_url(where), error)
        return {}


def save_counts(where: str, counts: dict[str, tuple[int, ...]]) -> None:
    """Keep counts, by file; where that cannot be, it is said."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_table(pa.table([list(counts), list(map(list, counts.values()))], schema=_SCHEMA))
    try:
        write_file(where, sealed(_MARK, memoryview(sink.getvalue())))
    except (CedarError, OSError) as error:
        _log.warning("the counts %r cannot be kept: %s", redact_url(where), error)


def _opened(data: bytes) -> dict[str, tuple[int, ...]]:
    with pa.ipc.open_stream(pa.py_buffer(unsealed(_MARK, data))) as stream:
        if stream.schema != _SCHEMA:
            raise Damaged("its columns are not those of this version")
        table = stream.read_all()
    table.validate(full=True)
    counts = dict(zip(table["file"].to_pylist(), map(tuple, table["left"].to_pylist()), strict=True))
    if any(type(each) is not int or each < 0 for left in counts.values() for each in left):
        raise Damaged("it has counts that are none")
    return counts


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
