"""The manifest of a place: the last records of what its entries were made from."""

from __future__ import annotations

from pathlib import Path

from cedar.cache.cached import Store
from cedar.cache.manifest import remember, why_missing


def test_a_manifest_keeps_the_last_records(tmp_path: Path) -> None:
    store = Store()
    place = store.place(str(tmp_path))
    for number in range(70):
        remember(place, {"group": str(number), "operators": [], "data": "", "versions": {}})
    remember(place, {"group": "69"})
    groups = [r["group"] for r in store.records(str(tmp_path))]
    assert (len(groups), groups[0], groups[-1]) == (64, "6", "69")
    assert (
        why_missing([{"group": "x"}], {"group": "y", "operators": []})
        == "what is kept there comes from other pipelines"
    )
