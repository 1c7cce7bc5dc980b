"""normalize, against what it says in plain Python."""

import re
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.operators.text import normalize
from cedar.operators.transform import BadValues
from tests.operators.text.toy_tokenizers import column

ODD = st.sampled_from(
    list(" \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2003\u2028\u3000\x00aZ\u0130\u03a3\u00c5\ufb01\u0301\ud55c")
)
TEXTS = st.lists(st.none() | st.text(ODD, max_size=8) | st.text(st.characters(max_codepoint=127), max_size=8)
                 | st.text(max_size=8), max_size=8)  # fmt: skip
FORMS = st.sampled_from([None, "NFC", "NFD", "NFKC", "NFKD"])


def plain(text, form, lower, collapse, strip):
    text = unicodedata.normalize(form, text) if form else text
    text = text.lower() if lower else text
    text = re.sub(r"\s+", " ", text) if collapse else text
    return text.strip() if strip else text


@given(TEXTS, FORMS, st.booleans(), st.booleans(), st.booleans())
def test_it_is_what_python_makes_of_each_text(texts, form, lower, collapse, strip):
    found = normalize(form, lower=lower, collapse=collapse, strip=strip).columns(column(texts))
    found.validate(full=True)
    assert found.type == pa.large_string()
    assert found.to_pylist() == [None if t is None else plain(t, form, lower, collapse, strip) for t in texts]


def test_every_character_by_itself():
    texts = [f"x{chr(i)}{chr(i)} y" for i in [*range(0x3400), *range(0xA000, 0xAC80), *range(0xF900, 0x10000)]]
    for options in ({"form": "NFKD", "lower": True, "collapse": True}, {"form": "NFC"}):
        expected = [
            plain(t, options.get("form"), *(options.get(k, False) for k in ("lower", "collapse")), True) for t in texts
        ]
        assert normalize(**options).columns(pa.array(texts, pa.large_string())).to_pylist() == expected


def test_bytes_that_are_not_utf8_fail_by_row_or_are_replaced():
    raw = column([b"fine", b"caf\xe9", None, b"\xff", "\u00e9".encode()], pa.large_binary())
    with pytest.raises(BadValues) as caught:
        normalize().columns(raw)
    assert caught.value.rows == {
        1: "not valid UTF-8: byte 0xe9 at byte 3",
        3: "not valid UTF-8: byte 0xff at byte 0",
    }
    found = normalize(errors="replace").columns(raw)
    assert found.to_pylist() == ["fine", "caf\ufffd", None, "\ufffd", "\u00e9"]
    assert found.type == pa.large_string()


def test_a_surrogate_in_bytes_is_no_utf8():
    with pytest.raises(BadValues):
        normalize().columns(column([b"\xed\xa0\x80"], pa.large_binary()))


@pytest.mark.parametrize("wrong", [{"form": "NFX"}, {"errors": "ignore"}])
def test_what_it_does_not_know_is_refused(wrong):
    with pytest.raises(PipelineError):
        normalize(**wrong)


def test_it_takes_text_alone():
    with pytest.raises(PipelineError, match="takes text"):
        normalize().result(pa.int64())
