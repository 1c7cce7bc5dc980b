"""The last step of a batch that goes to files: its rows as bytes, in pieces."""

from __future__ import annotations

import pyarrow as pa
import pytest

import cedar
from cedar.lake.encode import Encode, pieces
from cedar.lake.formats import Jsonl
from cedar.operators.base import Env
from tests.toy_blocks import block


def encoded(encode: Encode, **columns: list[int]) -> list[tuple[str, int, str]]:
    made = encode(block(**columns), Env())
    return [(folder, rows, bytes(data).decode()) for folder, rows, data in pieces(made.columns)]


def test_a_batch_is_one_piece() -> None:
    assert encoded(Encode(Jsonl()), x=[1, 2]) == [("", 2, '{"x":1}\n{"x":2}\n')]


def test_rows_are_cut_by_folder_and_by_their_number() -> None:
    found = encoded(Encode(Jsonl(), ("k",), 2), k=[0, 1, 0, 0], x=[1, 2, 3, 4])
    assert found == [("k=0", 2, '{"x":1}\n{"x":3}\n'), ("k=0", 1, '{"x":4}\n'), ("k=1", 1, '{"x":2}\n')]


def test_no_rows_are_no_piece_and_no_column_is_an_error() -> None:
    assert not Encode(Jsonl())(block(x=[1]).slice(0, 0), Env()).columns
    with pytest.raises(cedar.PipelineError, match="no column to write"):
        Encode(Jsonl()).columns(pa.table({}))
