"""Read partition columns, which a dataset stores in folder names: ``date=2024-01-01/part-0.parquet``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.columns import Column
from cedar.core.errors import SourceError
from cedar.datasets.files_io import File
from cedar.datasets.listing import Listing

if TYPE_CHECKING:
    import polars as pl

_SATISFIED = "kept"
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class HiveColumn:
    """A partition column, which has one value per file."""

    name: str
    kind: pa.DataType
    values: tuple[Any, ...]

    def of_files(self) -> Column:
        return pa.array(self.values, self.kind)

    def column(self, file: int, rows: int) -> Column:
        return pa.repeat(pa.scalar(self.values[file], self.kind), rows)


def hive_columns(listing: Listing, types: Mapping[str, pa.DataType]) -> list[HiveColumn]:
    """Return the partition columns in the folder names of the listed files.

    The type comes from ``types`` if it has the column. Otherwise it is integer, date (2024-01-31) or boolean (true) if
    all values in the folder names match, else string.
    """
    if not any("=" in file.name for file in listing):
        return []
    parts = [_parts(file) for file in listing]
    names = list(parts[0])
    for file, values in zip(listing, parts, strict=True):
        if list(values) != names:
            raise SourceError(
                f"{listing[0].url} is partitioned by {names}, {file.url} by {list(values)}",
                fix="read folders with different partition columns separately",
            )
    return [_column(name, [p[name] for p in parts], types.get(name), listing) for name in names]


def _parts(file: File) -> dict[str, str]:
    folders = file.name.split("/")[:-1]
    pairs = (folder.partition("=") for folder in folders if "=" in folder)
    try:
        named = {unquote(name, errors="strict"): value for name, _, value in pairs if name}
        "".join([*named, *(unquote(value, errors="strict") for value in named.values())]).encode()
    except UnicodeError as error:
        raise SourceError(f"{file.url}: a folder's name is not UTF-8: {error}", fix="rename the folder") from error
    return named


def _column(name: str, strings: list[str], declared: pa.DataType | None, listing: Listing) -> HiveColumn:
    kinds = {_kind(text) for text in strings if text != NULL}
    if kinds == {pa.int64(), pa.uint64()} and not any(text[0] == "-" for text in strings):
        kinds = {pa.uint64()}
    kind = declared or (kinds.pop() if len(kinds) == 1 else pa.large_string())
    values: list[Any] = []
    for file, text in zip(listing, strings, strict=True):
        try:
            values.append(pa.scalar(None if text == NULL else unquote(text)).cast(kind).as_py())
        except (pa.ArrowException, ValueError) as error:
            raise SourceError(
                f"{file.url}: the value of {name!r} in its folder's name cannot be {kind}: {unquote(text)!r}",
                fix=f"give it another type: schema={{{name!r}: str}}",
            ) from error
    return HiveColumn(name, kind, tuple(values))


def _kind(text: str) -> pa.DataType:
    """Infer the type of a value from its percent-encoded form in a folder name."""
    if text in ("true", "false"):
        return pa.bool_()
    if _DATE.fullmatch(text):
        with suppress(ValueError):
            date.fromisoformat(text)
            return pa.date32()
    digits = text.removeprefix("-")
    plain = digits.isascii() and digits.isdigit() and (digits == "0" or digits[0] != "0")
    if not plain or text == "-0" or not -(1 << 63) <= int(text) < 1 << 64:
        return pa.large_string()
    return pa.int64() if int(text) < 1 << 63 else pa.uint64()


def satisfied(columns: Mapping[str, Callable[[], Column]], predicate: pl.Expr) -> npt.NDArray[np.bool_] | None:
    """Return which files satisfy a row-wise predicate; None if it needs other columns than these, or raises an error.

    Examples:
        >>> import polars as pl
        >>> satisfied({"day": lambda: pa.array([1, 2, None])}, pl.col("day") > 1).tolist()
        [False, True, False]
    """
    import polars as pl

    asked = set(predicate.meta.root_names())
    if not asked or not asked <= columns.keys():
        return None
    values = pa.table({name: columns[name]() for name in sorted(asked)})
    try:
        satisfied_rows = pl.DataFrame(values).select(predicate.alias(_SATISFIED))[_SATISFIED]
    except pl.exceptions.PolarsError:
        return None  # the run will evaluate the predicate again and report the row that fails
    of_rows = satisfied_rows.dtype == pl.Boolean and len(satisfied_rows) == len(values)
    return satisfied_rows.fill_null(value=False).to_numpy() if of_rows else None


def folder_of(names: list[str], values: list[Any]) -> str:
    """Return the folder for rows with these partition values, such as ``date=2024-01-01/hour=7``.

    Examples:
        >>> folder_of(["n", "s", "b"], [7, "7", True])
        'n=7/s=%37/b=true'
    """
    return "/".join(
        f"{quote(name, safe='')}={NULL if value is None else _quoted(value)}"
        for name, value in zip(names, values, strict=True)
    )


def _quoted(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else quote(str(value), safe=" ")
    if isinstance(value, str) and (text == NULL or _kind(text) != pa.large_string()):
        return f"%{ord(text[0]):02X}{text[1:]}"  # escape one character, so that readers do not infer another type
    return text
