"""Criteo's display advertising logs: tab-separated text, most often gzipped."""

from __future__ import annotations

from typing import Any

import cedar
from cedar import Pipeline

COUNTS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))


def criteo(paths: Any, *, label: bool = True, counts: int = 13, categories: int = 26) -> Pipeline:
    r"""Rows of files in Criteo's format (Kaggle 2014, the Terabyte log): a row is an impression, in order of time.

    Columns: ``label`` (int8, 1: a click); ``I1`` to ``I13`` (int64, counts, may be null, some negative); ``C1`` to
    ``C26`` (int64, what the eight hexadecimal digits say, null where there are none). There is no user and no
    session in it: nothing repeats, and ``dedup`` has nothing to find. Memory stays constant, whatever the size.

    Args:
        paths: any fsspec URL, glob, or a list of them; ``.gz`` and others are decompressed. Plain files are read in
            ranges, a compressed one from its beginning: give several, one day each, to several workers.
        label: whether the first field is the label; the test files of Kaggle have none.
        counts, categories: how many columns of each kind the files have, for files cut down to fewer.

    Raises:
        RowError: while reading, a line with another number of fields, or a field that is no number.
        SourceError: no such files.

    Example:
        >>> import gzip
        >>> line = "\t".join(["1", "5", *[""] * 12, "68fd1e64", *["0000000a"] * 25])
        >>> with gzip.open("day_0.gz", "wt") as file:
        ...     _ = file.write(line + "\n")
        >>> row = next(iter(criteo("day_0.gz")))
        >>> row["label"], row["I1"], row["I2"], row["C1"], row["C26"]
        (1, 5, None, 1761418852, 10)
    """
    numbers, texts = [*COUNTS[:counts]], [*CATEGORIES[:categories]]
    names = [*(["label"] if label else []), *numbers, *texts]
    dtypes: dict[str, Any] = {"label": "int8"} if label else {}
    dtypes |= dict.fromkeys(numbers, "int64") | dict.fromkeys(texts, "string")
    rows = cedar.read_csv(paths, delimiter="\t", header=False, column_names=names, dtypes=dtypes, quoting=False)
    return rows.with_columns(**{name: cedar.col(name).str.to_integer(base=16) for name in texts})
