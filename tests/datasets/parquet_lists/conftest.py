from __future__ import annotations

import pytest

from cedar.datasets.parquet_lists import reader


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the kernels, and use them for small row groups, too."""
    pytest.importorskip("numba")
    monkeypatch.setenv("CEDAR_KERNELS", "wait")
    monkeypatch.setattr(reader, "_MIN_BYTES", 0)
