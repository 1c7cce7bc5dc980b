"""Columns of text: what is UTF-8 and what is not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cedar.operators.text import tokenize
from cedar.operators.transform import BadValues
from tests.operators.text.toy_tokenizers import column, tokenizer


def test_bytes_are_text_if_they_are_utf8():
    made = tokenizer("gpt2")
    raw = column(["caf\u00e9".encode(), b"\xff", None, b"ok\xc3"], pa.large_binary())
    with pytest.raises(BadValues) as caught:
        tokenize(made).columns(raw)
    assert sorted(caught.value.rows) == [1, 3]
    found = tokenize(made, errors="replace").columns(raw).to_pylist()
    assert found == [made.encode(t).ids if t else None for t in ("caf\u00e9", "\ufffd", None, "ok\ufffd")]
