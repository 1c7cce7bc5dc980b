"""Join row groups, which were encoded concurrently, into one Parquet file.

Each row group is encoded as a separate small Parquet file. Its pages are copied unchanged. In its footer, which uses
Thrift's compact protocol, only offsets from the beginning of the file and row group numbers change.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from cedar.datasets.parquet_footer import _LIST, _STRUCT, _field, _list, _skip, _zigzag

MAGIC = b"PAR1"
MAX_ROW_GROUPS = 10_000  # per file; the format stores row group numbers in 16 bits
Rules: TypeAlias = "dict[int, Any]"  # field id -> how to change the value, or the rules for structs in the value
_OFFSET, _ORDINAL = "moved", "number"
_ROW_GROUP: Rules = {
    1: {2: _OFFSET, 3: {9: _OFFSET, 10: _OFFSET, 11: _OFFSET, 14: _OFFSET}, 4: _OFFSET, 6: _OFFSET},  # for each column
    5: _OFFSET,
    7: _ORDINAL,
}


class RowGroups:
    """Collects the row groups of a Parquet file that is being written.

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
        self._fields: list[tuple[int, bytes, bytes]] = []  # fields of the first footer: id, header, value

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, file: Any, pos: int) -> memoryview:
        """Add the row groups of a small Parquet file, and return their bytes, to be written at offset ``pos``."""
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
                self._add_groups(footer, value, pos - len(MAGIC))
        self._fields = self._fields or fields
        return body

    def _add_groups(self, footer: bytes, pos: int, shift: int) -> None:
        count, _, pos = _list(footer, pos)
        for _ in range(count):
            group, pos = _shift_offsets(footer, pos, _ROW_GROUP, shift, len(self._groups))
            self._groups.append(group)

    def footer(self) -> bytes:
        """Return the footer of the joined file, up to its last byte."""
        encoded = bytearray()
        for number, head, value in self._fields:
            encoded += head
            if number == 3:
                encoded += _signed(self._rows)
            elif number == 4:
                encoded += _list_head(len(self._groups)) + b"".join(self._groups)
            else:
                encoded += value
        encoded += b"\0"
        return bytes(encoded) + len(encoded).to_bytes(4, "little") + MAGIC


def _shift_offsets(data: bytes, pos: int, rules: Rules, shift: int, ordinal: int) -> tuple[bytes, int]:
    """Return a copy of a struct whose offsets are increased by ``shift`` bytes, and the end of the original."""
    encoded, number = bytearray(), 0
    while data[pos]:
        start = pos
        number, kind, pos = _field(data, pos, number)
        rule = rules.get(number)
        if isinstance(rule, str):
            value, end = _zigzag(data, pos)
            value = ordinal if rule == _ORDINAL else value + shift * (value > 0)  # 0 means that there is no offset
            encoded += data[start:pos] + _signed(value)
        elif isinstance(rule, dict) and kind == _STRUCT:
            inner, end = _shift_offsets(data, pos, rule, shift, ordinal)
            encoded += data[start:pos] + inner
        elif isinstance(rule, dict) and kind == _LIST:
            count, _, end = _list(data, pos)
            encoded += data[start:end]
            for _ in range(count):
                inner, end = _shift_offsets(data, end, rule, shift, ordinal)
                encoded += inner
        else:
            end = _skip(data, pos, kind, 0)
            encoded += data[start:end]
        pos = end
    return bytes(encoded) + b"\0", pos + 1


def _signed(value: int) -> bytes:
    return _unsigned(value << 1 if value >= 0 else (-value << 1) - 1)


def _unsigned(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _list_head(count: int) -> bytes:
    """Encode the header of a list of structs."""
    return bytes([count << 4 | _STRUCT]) if count < 15 else bytes([0xF0 | _STRUCT]) + _unsigned(count)
