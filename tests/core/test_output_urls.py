"""Where a run writes: directories and URLs, and those that nothing knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedar.core.errors import PipelineError
from cedar.core.output_urls import find_place


def test_directories_and_urls_have_a_filesystem_and_a_path(tmp_path: Path) -> None:
    for where in (f"{tmp_path}/out/", f"file://{tmp_path}/out//"):
        fs, path = find_place(where, "cache")
        assert path == f"{tmp_path}/out"
        assert "file" in fs.protocol
    fs, path = find_place("memory://kept/", "cache")
    assert (fs.protocol, path) == ("memory", "/kept")


def test_a_url_that_nobody_knows_is_refused_by_the_argument() -> None:
    with pytest.raises(PipelineError, match="quarantine='nowhere://x'") as caught:
        find_place("nowhere://x", "quarantine")
    assert "a filesystem that fsspec has installed" in str(caught.value.fix)
