"""Ids out of range, found in the footers of Parquet files: before the first step, and without reading a row."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import fsspec
import pyarrow as pa

from cedar.datasets.parquet_footer import BadFooter, read_metadata
from cedar.trainers.dlrm.inputs import bad_id
from cedar.trainers.dlrm.options import FeatureOptions


def check_footers(paths: str | Sequence[str], features: Iterable[FeatureOptions], most: int = 64) -> None:
    """Compare what footers say of the ids of features with their tables; what has no statistics is not judged.

    Args:
        paths: files or globs.
        features: whose ids are taken as they are; others are left out.
        most: files that are looked at.

    Raises:
        CedarError: an id is negative, or beyond its table.
    """
    wanted = {f.column: f for f in features if f.ids == "asis" and not f.vocabulary}
    for path in [paths] if isinstance(paths, str) else paths:
        for name, metadata in _footers(path, most):
            _check(metadata, wanted, name)


def _footers(path: str, most: int) -> list[tuple[str, Any]]:
    """Names and footers of files; none where they cannot be read: the pipeline will say why."""
    try:
        system, place = fsspec.core.url_to_fs(path)
        found = system.glob(place) if "*" in place else system.find(place)
        names = [name for name in sorted(found) if name.endswith((".parquet", ".pq"))][:most]
        return [(name, _footer(system, name)) for name in names]
    except (OSError, NotImplementedError, ImportError, pa.ArrowInvalid, BadFooter):
        return []


def _footer(system: Any, name: str) -> Any:
    with system.open(name, "rb") as file:
        return read_metadata(file, file.seek(0, io.SEEK_END))


def _check(metadata: Any, wanted: dict[str, FeatureOptions], name: str) -> None:
    if not metadata.num_row_groups:
        return
    row_group = metadata.row_group(0)
    columns = {}
    for at in range(row_group.num_columns):
        root = row_group.column(at).path_in_schema.split(".")[0]
        if root in wanted:
            columns[at] = wanted[root]
    for group in range(metadata.num_row_groups):
        for at, option in columns.items():
            limits = metadata.row_group(group).column(at).statistics
            if limits is None or not limits.has_min_max or not isinstance(limits.min, int):
                continue
            if limits.min < 0 or limits.max >= option.rows:
                raise bad_id(option, limits.min if limits.min < 0 else limits.max, f"{name}, row group {group}: ")
