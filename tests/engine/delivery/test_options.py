"""The arguments of a loader, and which of them are refused."""

from __future__ import annotations

from typing import Any

import pytest

import cedar
from tests.engine.streams.slow_rows import SLOW


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 3}, '(?s)order=3 is not known.*"exact" delivers.*"any" delivers'),
        ({"order": "folder"}, "order='folder' is not known"),
        ({"record": "folder"}, r"loader\(\) has no option 'record'"),
    ],
)
def test_arguments_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(cedar.PipelineError, match=message):
        SLOW.loader(**options)
