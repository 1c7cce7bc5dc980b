"""What reading an entry costs: an estimate, until enough was measured."""

from __future__ import annotations

from typing import Any

from cedar.cache.cost import load_seconds_per_byte, note_load


def test_the_cost_of_loading_follows_what_was_measured(monkeypatch: Any) -> None:
    monkeypatch.setattr("cedar.cache.cost._seen", {})
    assert 0 < load_seconds_per_byte("auto") < load_seconds_per_byte("kept") < load_seconds_per_byte("s3://b/kept")
    note_load("disk", 1 << 30, 2.0)
    assert load_seconds_per_byte("kept") == 2.0 / (1 << 30)
