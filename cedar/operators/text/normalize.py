"""normalize: convert strings to a standard form."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cedar.core.columns import Column, ColumnType, from_array, from_flags, from_strings
from cedar.core.errors import invalid_call
from cedar.operators.text.string_column import ASCII, Errors, StringColumn, is_text, strings
from cedar.operators.transform import Transform

_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_SPACE = ord(" ")
_ASCII_SPACES = "".join(chr(i) for i in range(ASCII) if chr(i).isspace())
_RUNS = re.compile(r"\s+")


@dataclass(frozen=True)
class Normalize(Transform):
    r"""Normalize strings: convert to a Unicode form and to lower case, collapse white space and strip, in this order.

    Results equal those of Python's ``unicodedata.normalize``, ``str.lower``, ``re.sub(r"\s+", " ", text)`` and
    ``str.strip``, with the Unicode tables of the running Python. ASCII rows are processed together. Null
    strings stay null; a string may become empty.

    Args:
        form: "NFC", "NFD", "NFKC", "NFKD", or None to keep the Unicode form.
        lower: whether to convert to lower case.
        collapse: whether to replace each run of white space by one space.
        strip: whether to remove white space at both ends.
        errors: for invalid UTF-8 in a column of bytes: "strict" fails the row, "replace" inserts U+FFFD.

    Raises:
        PipelineError: an argument is invalid.

    Examples:
        >>> Normalize("NFKC", lower=True, collapse=True)("  The  \u2177\tNotes ")
        'the viii notes'
    """

    form: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = "NFC"
    lower: bool = False
    collapse: bool = False
    strip: bool = True
    errors: Errors = "strict"

    def __post_init__(self) -> None:
        if self.form is not None and self.form not in _FORMS:
            raise invalid_call(f"normalize: unknown form {self.form!r}", fix="one of " + ", ".join(_FORMS))
        if self.errors not in ("strict", "replace"):
            raise invalid_call(f'normalize(errors={self.errors!r}): "strict" or "replace"')

    def result(self, *types: Any) -> ColumnType:
        if not is_text(types[0]):
            raise self.unfit(types[0], "text")
        return pa.large_string()

    def columns(self, *columns: Column) -> Column:
        values = StringColumn.of(columns[0], self.errors)
        non_ascii = values.non_ascii_rows()
        if non_ascii is None:
            result = self._normalize_ascii(values)
        else:
            rows = np.flatnonzero(non_ascii)
            column = values.array()
            converted = [self.normalize_string(value) for value in column.take(from_array(rows)).to_pylist()]
            others = np.flatnonzero(~non_ascii)
            plain = self._normalize_ascii(StringColumn.of(column.take(from_array(others))))
            order = np.argsort(np.concatenate([others, rows]))
            result = pa.concat_arrays([plain, from_strings(converted, pa.large_string())]).take(from_array(order))
        if values.missing is None:
            return result
        return pc.if_else(from_flags(~values.missing), result, pa.scalar(None, pa.large_string()))

    def normalize_string(self, text: str) -> str:
        """Normalize one string."""
        if self.form is not None:
            text = unicodedata.normalize(self.form, text)
        if self.lower:
            text = text.lower()
        if self.collapse:
            text = _RUNS.sub(" ", text)
        return text.strip() if self.strip else text

    def _normalize_ascii(self, values: StringColumn) -> pa.Array:
        """Normalize ASCII strings, for which all Unicode forms are equal."""
        data, offsets = values.bytes, values.offsets - values.offsets[0]
        if self.collapse and len(data):
            spaces = (data == _SPACE) | (data - np.uint8(9) < 5) | (data - np.uint8(28) < 4)  # see _ASCII_SPACES
            data = np.where(spaces, np.uint8(_SPACE), data)
            follows = spaces[1:] & spaces[:-1]
            edges = offsets[(offsets > 0) & (offsets < len(data))]
            follows[edges - 1] = False  # a row's first byte does not follow a space of the same row
            extra_spaces = np.flatnonzero(follows) + 1
            if len(extra_spaces):
                data = np.delete(data, extra_spaces)
                offsets = offsets - np.searchsorted(extra_spaces, offsets)
        column = strings(data, offsets)
        if self.lower:
            column = pc.ascii_lower(column)
        return pc.ascii_trim(column, characters=_ASCII_SPACES) if self.strip else column
