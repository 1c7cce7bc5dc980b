"""Tampered cache entries, a few of those that ``python -m benchmarks.tampered_cache`` tries."""

from __future__ import annotations

import os

import pytest

from benchmarks.tampered_cache import try_cases
from tests.how_much import LONG


@pytest.mark.heavy
def test_tampered_entries_are_refused_or_harmless() -> None:
    found = try_cases(int(os.environ.get("CEDAR_SEED", "5")), 20_000 if LONG else 500)
    assert not found.harm
    assert set(found.counts) == {"refused by name", "harmless", "record"}
