"""Arrow in entries: tables come back as views, and what a stranger wrote is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cedar.store.arrow import PAGE, read_batch, table_body, table_of, write_batch
from cedar.store.entry import Damaged, Entry, opened, sealed


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
