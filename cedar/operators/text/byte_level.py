"""byte_level: a tokenizer whose tokens are bytes; it does not need a vocabulary file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.columns import Column, ColumnType
from cedar.core.errors import invalid_call
from cedar.operators.recsys.lists import lists_from
from cedar.operators.text.string_column import is_text, surround_lists
from cedar.operators.transform import Transform

_BYTES = 256


@dataclass(frozen=True)
class ByteLevel(Transform):
    """Tokenize strings to their UTF-8 bytes: int32 ids 0 to 255, with special tokens from 256 on.

    In a column of bytes, invalid UTF-8 is allowed. Null strings stay null.

    Args:
        specials: names of the special tokens, in the order of their ids, which start at 256.
        begin: name of the special token to put before each text.
        end: name of the special token to put after each text.

    Raises:
        PipelineError: ``begin`` or ``end`` is not in ``specials``, or a name occurs twice.

    Examples:
        >>> tokenizer = ByteLevel(end="<eos>")
        >>> tokenizer("Hi"), tokenizer.vocab_size
        ([72, 105, 258], 259)
        >>> tokenizer.decode([72, 105, 258])
        'Hi'
    """

    specials: tuple[str, ...] = ("<pad>", "<bos>", "<eos>")
    begin: str | None = None
    end: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "specials", tuple(self.specials))
        for name in (self.begin, self.end):
            if name is not None and name not in self.specials:
                raise invalid_call(f"byte_level: {name!r} is not among its special tokens {list(self.specials)}")
        if len(set(self.specials)) < len(self.specials):
            raise invalid_call(f"byte_level: a name occurs twice: {list(self.specials)}")

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return _BYTES + len(self.specials)

    @property
    def digest(self) -> str:
        """A string that is equal for tokenizers that return equal ids."""
        return repr(self)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a special token or of an ASCII character; None for other strings."""
        if token in self.specials:
            return _BYTES + self.specials.index(token)
        return ord(token) if len(token) == 1 and token.isascii() else None

    def decode(self, ids: Any, errors: str = "replace") -> str:
        """Convert ids to text; special tokens are left out."""
        return bytes(i for i in np.asarray(ids).tolist() if 0 <= i < _BYTES).decode("utf-8", errors)

    def result(self, *types: Any) -> ColumnType:
        if not is_text(types[0]):
            raise self.unfit(types[0], "text")
        return pa.large_list(pa.int32())

    def columns(self, *columns: Column) -> Column:
        (column,) = columns
        missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        if missing is not None:
            column = column.fill_null(b"" if pt.is_large_binary(column.type) else "")
        _, bounds, data = column.buffers()
        offsets = np.zeros(1, dtype=np.int64)
        if len(column):
            offsets = np.frombuffer(bounds, np.int64, len(column) + 1, column.offset * 8)
        raw = np.frombuffer(data, np.uint8, int(offsets[-1])) if data is not None else np.empty(0, np.uint8)
        ids = raw[int(offsets[0]) :].astype(np.int32)
        ends = [[] if name is None else [self.token_to_id(name)] for name in (self.begin, self.end)]
        return lists_from(*surround_lists(ids, offsets - offsets[0], *ends), missing)
