"""Read files of any format with one function, which chooses the reader by file extension."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from cedar.core.errors import CedarError, invalid_call
from cedar.lake import reading
from cedar.pipeline import sources
from cedar.pipeline.core import Pipeline

READERS: dict[str, tuple[Callable[..., Pipeline], tuple[str, ...]]] = {
    "parquet": (sources.read_parquet, (".parquet", ".pq")),
    "arrow": (sources.read_arrow, (".arrow", ".feather", ".ipc")),
    "vortex": (reading.read_vortex, (".vortex",)),
    "lance": (reading.read_lance, (".lance",)),
    "jsonl": (sources.read_jsonl, (".jsonl", ".ndjson")),
    "csv": (sources.read_csv, (".csv",)),
    "tsv": (partial(sources.read_csv, delimiter="\t"), (".tsv",)),
    "text": (sources.read_text, (".txt",)),
    "tar": (sources.read_tar, (".tar",)),
}
_ROWS = ("jsonl", "csv", "tsv", "text", "tar")  # formats whose readers accept files but not folders
_COMPRESSED = re.compile(r"\.(gz|bz2|zst|lz4|xz)$")


def read(paths: Any, *, storage_options: sources.StorageOptions = None) -> Pipeline:
    r"""Read files in any format that a ``cedar.read_*`` function reads, chosen by the extension of the first file.

    Extensions are .parquet, .pq, .arrow, .feather, .ipc, .vortex, .lance, .jsonl, .ndjson, .csv, .tsv, .txt and .tar,
    also compressed (.csv.gz). For options such as ``columns=``, use the function of the format.

    Args:
        paths: any fsspec URL, folder or glob, or a list of them; all files must have the same format.
        storage_options: options for the filesystem, see docs/storage.md.

    Raises:
        PipelineError: no file has a known extension.

    Examples:
        >>> import cedar, pathlib
        >>> _ = pathlib.Path("points.csv").write_text("x,y\n1,a\n")
        >>> list(cedar.read("points.csv"))
        [{'x': 1, 'y': 'a'}]
    """
    return by_ending(paths, storage_options)[1]


def by_ending(paths: Any, storage_options: sources.StorageOptions = None) -> tuple[str, Pipeline]:
    """Return the format of the files and a pipeline that reads them; for folders, try ``READERS`` in order.

    Raises:
        PipelineError: no file has a known extension.
    """
    first = paths if isinstance(paths, str | os.PathLike) else next(iter(paths), None)
    if first is None:
        raise invalid_call("no files are given", fix="give a folder, a glob or paths")
    first = os.fspath(first)
    paths = first if isinstance(paths, os.PathLike) else paths
    for name, (reader, endings) in READERS.items():
        if _has_ending(first, endings):
            return name, reader(paths, storage_options=storage_options)
    for name, (reader, endings) in READERS.items():
        folder = name in _ROWS and first is paths and not glob.has_magic(first)
        for place in [f"{first.rstrip('/')}/**/*{ending}*" for ending in endings] if folder else [paths]:
            try:
                data = reader(place, storage_options=storage_options)
                found = data.node.operator.source.url(0) if name != "lance" else ""  # type: ignore[attr-defined]
            except CedarError:
                continue
            if _has_ending(found, endings):
                return name, data
    raise invalid_call(
        f"{first}: no file has a known extension",
        fix=f"use one of the extensions {', '.join(ending for _, endings in READERS.values() for ending in endings)}",
    )


def _has_ending(path: str, endings: tuple[str, ...]) -> bool:
    """Return whether a path, without the query of a URL and an extension for compression, has one of the endings."""
    path = path.partition("?")[0] if path.startswith("http") else path
    return _COMPRESSED.sub("", path.rstrip("/")).endswith(endings)
