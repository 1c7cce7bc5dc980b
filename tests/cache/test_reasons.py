"""The records of a place: what its entries were made from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cedar.cache.cached import Store
from cedar.cache.reasons import RECORD, remember, why_missing


def test_the_last_records_are_compared_and_damaged_ones_are_left_out(tmp_path: Path) -> None:
    store = Store()
    place: Any = store.place(str(tmp_path))
    for number in range(70):
        remember(place, {"group": f"{number:016x}", "operators": [], "data": "", "versions": {}})
        os.utime(place.path(f"{number:016x}{RECORD}"), (number, number))
    Path(place.path(f"{69:016x}{RECORD}")).write_bytes(b"torn")
    groups = [int(r["group"], 16) for r in store.records(str(tmp_path))]
    assert groups == [*range(6, 69)]
    assert store.kept([f"{0:016x}-{1:016x}"], str(tmp_path)) == 0
    assert (
        why_missing([{"group": "x"}], {"group": "y", "operators": []})
        == "what is kept there comes from other pipelines"
    )
