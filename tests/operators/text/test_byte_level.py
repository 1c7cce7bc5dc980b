"""byte_level: the bytes of texts, and its special tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.operators.text import byte_level, tokenize
from tests.operators.text.toy_tokenizers import column


@given(st.lists(st.none() | st.text(max_size=6), max_size=6), st.booleans(), st.booleans())
def test_byte_level(texts, begin, end):
    transform = byte_level(begin="<bos>" if begin else None, end="<eos>" if end else None)
    found = transform.columns(column(texts)).to_pylist()
    assert found == [None if t is None else [257] * begin + list(t.encode()) + [258] * end for t in texts]
    assert [None if ids is None else transform.decode(ids) for ids in found] == texts


def test_byte_level_is_the_default_and_takes_any_bytes():
    assert tokenize()("Hi") == [72, 105]
    assert byte_level()(b"\xff\x00") == [255, 0]
    assert byte_level(specials=("<a>",)).vocab_size == 257
    for wrong in ({"begin": "<none>"}, {"specials": ("<a>", "<a>")}):
        with pytest.raises(PipelineError, match="byte_level"):
            byte_level(**wrong)
