"""Entries as bytes: what was sealed is opened, and any other bytes are damaged."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cedar.store.entry import (
    PAGE,
    Damaged,
    Entry,
    OtherVersion,
    opened,
    read_batch,
    sealed,
    table_body,
    table_of,
    write_batch,
)

OF = {"format": "1"}


def whole(body: bytes = b"some bytes", name: str = "name") -> bytes:
    def write(sink: Any) -> dict[str, Any]:
        sink.write(body)
        return {"about": [1, "two"]}

    return sealed(name, write, OF)


@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 9])
def test_what_was_sealed_is_opened(body: bytes) -> None:
    entry = opened(whole(body), "name", OF)
    assert (bytes(entry.body), entry.about) == (body, {"about": [1, "two"]})


def test_every_flipped_byte_and_every_truncation_is_found() -> None:
    raw = whole()
    for place in range(len(raw)):
        flipped = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
        for damaged in (flipped, raw[:place]):
            with pytest.raises(Damaged):
                opened(damaged, "name", OF)


def test_another_entry_and_another_version_are_refused() -> None:
    with pytest.raises(Damaged, match="another entry"):
        opened(whole(name="other"), "name", OF)
    with pytest.raises(OtherVersion):
        opened(whole(), "name", {"format": "2"})


def test_the_body_is_not_summed_again_where_it_was_checked() -> None:
    raw = bytearray(whole())
    raw[0] ^= 1
    assert opened(raw, "name", OF, checked=True).body[0] == raw[0]


def entry(write: Any) -> Entry:
    return opened(sealed("name", write, {}), "name", {})


def test_a_table_comes_back_in_one_piece() -> None:
    table = pa.concat_tables([pa.table({"x": [1, None], "s": ["a", "b"]})] * 2)
    back = table_of(entry(table_body(table)))
    assert back.equals(table)
    assert back["x"].num_chunks == 1
    assert table_of(entry(table_body(table.slice(0, 0)))).schema == table.schema


def test_batches_begin_at_multiples_of_a_page() -> None:
    sink, batch = pa.BufferOutputStream(), pa.record_batch({"x": [1, 2]})
    places = [write_batch(sink, batch) for _ in range(2)]
    body = sink.getvalue()
    assert all(start % PAGE == 0 for start, _ in places)
    assert [read_batch(body.slice(start, end - start)) for start, end in places] == [batch, batch]


def compressed(sink: Any) -> dict[str, Any]:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, pa.schema({"x": pa.int64()}), options=options) as writer:
        writer.write_batch(pa.record_batch({"x": [0] * 1000}))
    return {}


def not_text(sink: Any) -> dict[str, Any]:
    values = pa.StringArray.from_buffers(1, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff"))
    with pa.ipc.new_stream(sink, pa.schema({"s": pa.string()})) as writer:
        writer.write_batch(pa.record_batch({"s": values}))
    return {}


@pytest.mark.parametrize("write", [compressed, not_text, lambda sink: (sink.write(b"no Arrow") and {}) or {}])
def test_what_a_stranger_wrote_is_refused(write: Any) -> None:
    with pytest.raises(Damaged, match="cannot be decoded"):
        table_of(entry(write))
