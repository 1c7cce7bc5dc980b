"""Columns that a dataset keeps in the names of its folders: ``date=2024-01-01/part-0.parquet``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.columns import Column
from cedar.core.errors import SourceError
from cedar.datasets.listing import File, Listing

if TYPE_CHECKING:
    import polars as pl

_KEPT = "kept"
NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class HiveColumn:
    """A column with one value per file: int64 where all values are whole numbers, else text."""

    name: str
    kind: pa.DataType
    values: tuple[str | int | None, ...]

    def column(self, file: int, rows: int) -> Column:
        return pa.repeat(pa.scalar(self.values[file], self.kind), rows)


def hive_columns(listing: Listing) -> list[HiveColumn]:
    """The columns in the folder names below what was listed.

    Raises:
        SourceError: files that are partitioned by different columns.
    """
    if not any("=" in file.name for file in listing):
        return []
    parts = [_parts(file) for file in listing]
    names = list(parts[0])
    for file, values in zip(listing, parts, strict=True):
        if list(values) != names:
            raise SourceError(
                f"{listing[0].url} is partitioned by {names}, {file.url} by {list(values)}",
                fix="read folders that are partitioned by other columns apart",
            )
    return [_column(name, [p[name] for p in parts]) for name in names]


def _parts(file: File) -> dict[str, str]:
    folders = file.name.split("/")[:-1]
    pairs = (folder.partition("=") for folder in folders if "=" in folder)
    try:
        named = {unquote(name, errors="strict"): unquote(value, errors="strict") for name, _, value in pairs if name}
        "".join([*named, *named.values()]).encode()
    except UnicodeError as error:
        raise SourceError(f"{file.url}: a folder's name is not UTF-8: {error}", fix="rename the folder") from error
    return named


def _column(name: str, texts: list[str]) -> HiveColumn:
    values = [None if t == NULL else t for t in texts]
    present = [v for v in values if v is not None]
    if present and all(_is_int(v) for v in present):
        return HiveColumn(name, pa.int64(), tuple(None if v is None else int(v) for v in values))
    return HiveColumn(name, pa.large_string(), tuple(values))


def _is_int(text: str) -> bool:
    digits = text.removeprefix("-")
    plain = digits.isascii() and digits.isdigit() and (digits == "0" or digits[0] != "0")
    return plain and text != "-0" and -(1 << 63) <= int(text) < 1 << 63


def satisfied(columns: Sequence[HiveColumn], predicate: pl.Expr) -> npt.NDArray[np.bool_] | None:
    """Which files satisfy a row-wise predicate of these columns; None where it asks for more, or fails for a value.

    Example:
        >>> import polars as pl
        >>> satisfied([HiveColumn("day", pa.int64(), (1, 2, None))], pl.col("day") > 1).tolist()
        [False, True, False]
    """
    import polars as pl

    known, asked = {column.name: column for column in columns}, set(predicate.meta.root_names())
    if not asked or not asked <= known.keys():
        return None
    values = pa.table({name: pa.array(known[name].values, known[name].kind) for name in sorted(asked)})
    try:
        kept = pl.DataFrame(values).select(predicate.alias(_KEPT))[_KEPT]
    except pl.exceptions.PolarsError:
        return None  # the run says of which row
    of_rows = kept.dtype == pl.Boolean and len(kept) == len(values)
    return kept.fill_null(value=False).to_numpy() if of_rows else None


def folder_of(names: list[str], values: list[object]) -> str:
    """The folder of the rows with these values, such as ``date=2024-01-01/hour=7``."""
    return "/".join(
        f"{quote(name, safe='')}={NULL if value is None else quote(str(value), safe=' ')}"
        for name, value in zip(names, values, strict=True)
    )
