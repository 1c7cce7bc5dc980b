"""Join row groups that were encoded concurrently into one Parquet file.

Each row group comes as a small file of its own. Its pages are copied unchanged. In its footer (Thrift's compact
protocol), only the offsets change, which count from the beginning of the file.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from cedar.datasets.parquet_footer import _LIST, _STRUCT, _field, _list, _skip, _zigzag

MAGIC = b"PAR1"
MOST_GROUPS = 10_000  # per file; the format stores row group numbers in 16 bits
Rules: TypeAlias = "dict[int, Any]"  # by field number: shift or replace its value, or rules for the structs in it
_MOVED, _NUMBER = "moved", "number"
_ROW_GROUP: Rules = {
    1: {2: _MOVED, 3: {9: _MOVED, 10: _MOVED, 11: _MOVED, 14: _MOVED}, 4: _MOVED, 6: _MOVED},  # for each column
    5: _MOVED,
    7: _NUMBER,
}


class RowGroups:
    """Collects the row groups of a file that is being written.

    Examples:
        >>> import io, pyarrow as pa, pyarrow.parquet as pq
        >>> groups, file = RowGroups(), bytearray(MAGIC)
        >>> for xs in [1, 2], [3]:
        ...     pq.write_table(pa.table({"x": xs}), sink := io.BytesIO())
        ...     file += groups.add(sink.getvalue(), len(file))
        >>> file += groups.footer()
        >>> pq.read_table(io.BytesIO(file))["x"].to_pylist(), pq.read_metadata(io.BytesIO(file)).num_row_groups
        ([1, 2, 3], 2)
    """

    def __init__(self) -> None:
        self._groups: list[bytes] = []
        self._rows = 0
        self._fields: list[tuple[int, bytes, bytes]] = []  # fields of the first footer: number, head, value

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, file: Any, at: int) -> memoryview:
        """Return the bytes to write at offset ``at`` for the row groups of a complete small file."""
        view = memoryview(file).cast("B")
        length = int.from_bytes(view[-8:-4], "little")
        footer, body = bytes(view[-8 - length : -8]), view[len(MAGIC) : -8 - length]
        fields, place, number = [], 0, 0
        while footer[place]:
            start = place
            number, kind, place = _field(footer, place, number)
            value, place = place, _skip(footer, place, kind, 0)
            fields.append((number, footer[start:value], footer[value:place]))
            if number == 3:
                self._rows += _zigzag(footer, value)[0]
            elif number == 4:
                self._take(footer, value, at - len(MAGIC))
        self._fields = self._fields or fields
        return body

    def _take(self, footer: bytes, at: int, by: int) -> None:
        count, _, at = _list(footer, at)
        for _ in range(count):
            group, at = _moved(footer, at, _ROW_GROUP, by, len(self._groups))
            self._groups.append(group)

    def footer(self) -> bytes:
        """Return the bytes that end the file."""
        made = bytearray()
        for number, head, value in self._fields:
            made += head
            if number == 3:
                made += _signed(self._rows)
            elif number == 4:
                made += _list_head(len(self._groups)) + b"".join(self._groups)
            else:
                made += value
        made += b"\0"
        return bytes(made) + len(made).to_bytes(4, "little") + MAGIC


def _moved(data: bytes, at: int, rules: Rules, by: int, ordinal: int) -> tuple[bytes, int]:
    """Return a struct with its offsets increased by ``by`` bytes, and where the original ended."""
    made, number = bytearray(), 0
    while data[at]:
        start = at
        number, kind, at = _field(data, at, number)
        rule = rules.get(number)
        if isinstance(rule, str):
            value, end = _zigzag(data, at)
            value = ordinal if rule == _NUMBER else value + by * (value > 0)  # 0 means that there is no offset
            made += data[start:at] + _signed(value)
        elif isinstance(rule, dict) and kind == _STRUCT:
            inner, end = _moved(data, at, rule, by, ordinal)
            made += data[start:at] + inner
        elif isinstance(rule, dict) and kind == _LIST:
            count, _, end = _list(data, at)
            made += data[start:end]
            for _ in range(count):
                inner, end = _moved(data, end, rule, by, ordinal)
                made += inner
        else:
            end = _skip(data, at, kind, 0)
            made += data[start:end]
        at = end
    return bytes(made) + b"\0", at + 1


def _signed(value: int) -> bytes:
    return _unsigned(value << 1 if value >= 0 else (-value << 1) - 1)


def _unsigned(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def _list_head(count: int) -> bytes:
    """Encode the header of a list of structs."""
    return bytes([count << 4 | _STRUCT]) if count < 15 else bytes([0xF0 | _STRUCT]) + _unsigned(count)
