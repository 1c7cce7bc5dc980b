"""Libraries of extras: imported, or named with what to install; and what their errors become."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from cedar.core.errors import PipelineError, RowError
from cedar.core.libraries import library, plain_errors


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nowhere_to_be_found", None)
    with pytest.raises(PipelineError, match="read_lance needs nowhere_to_be_found, which cannot be imported") as caught:
        library("nowhere_to_be_found.inner", "lance", "read_lance")
    assert caught.value.fix == "pip install 'cedar-data[lance]'"
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
    assert isinstance(caught.value.__cause__, ImportError)
    assert library("json.decoder", "all", "read_json") is sys.modules["json.decoder"]


class PanicException(BaseException):
    """As Rust's bindings call theirs."""


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            PanicException("index out of bounds\nBacktrace:\n 0: a"),
            ValueError,
            "its decoder failed: index out of bounds",
        ),
        (OSError("bad file\n\nBacktrace:\n 0: a\n 1: b"), ValueError, "bad file"),
        (OSError("bad file"), OSError, "bad file"),
        (RowError("row 3 Backtrace: none"), RowError, "row 3 Backtrace: none"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
)
def test_panics_are_errors_and_backtraces_are_left_out(error: Any, kind: Any, text: str) -> None:
    with pytest.raises(BaseException) as caught, plain_errors():
        raise error
    assert type(caught.value) is kind
    assert str(caught.value) == text
