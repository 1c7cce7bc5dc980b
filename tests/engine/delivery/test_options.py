"""The arguments of a loader, and which of them are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cedar
from tests.engine.streams.slow_rows import SLOW


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 3}, '(?s)order=3 is not known.*"exact" delivers.*"any" delivers'),
        ({"order": "folder"}, "order='folder' is not known"),
        ({"workers": 0}, '(?s)workers=0: needs an integer, at least 1.*executor="inline" runs everything'),
        ({"record": "folder"}, r"loader\(\) has no option 'record'"),
    ],
)
def test_arguments_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(cedar.PipelineError, match=message):
        SLOW.loader(**options)


@pytest.mark.parametrize("agree", [5, "s3://bucket/run", object()])
def test_ranks_cannot_meet_anywhere(agree: Any) -> None:
    with pytest.raises(cedar.PipelineError, match="agree=.*ranks cannot communicate there") as caught:
        SLOW.loader(rank=0, world=2, agree=agree)
    assert caught.value.site is not None


def test_a_folder_for_ranks_is_given_in_any_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (tmp_path / "run", f"{tmp_path}/run", f"file://{tmp_path}/run", "~/run"):
        with SLOW.loader(rank=0, world=2, agree=given) as loader:
            assert loader._epochs.parts.options.agree == f"{tmp_path}/run"
