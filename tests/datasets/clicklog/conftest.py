"""A log that the tests of its parts look at."""

from __future__ import annotations

import pytest

from cedar.datasets.clicklog import ClickLog, ListFeature, write_sessions


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    log = ClickLog(
        samples=8,
        lists=(
            ListFeature("hist_items", 12, 0.9, ids=5000),
            ListFeature("slides", 12, 0.5, shift=2, ids=1000),
            ListFeature("a", 4, 0.7, group="g"),
            ListFeature("b", 4, 0.7, group="g"),
        ),
        scalars=2, item_scalars=1, dense=3,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("log") / "log"
    return log, write_sessions(folder, 20_000, 5, log=log, rows_per_file=12_000, row_group_rows=4000), folder
