"""What a synthetic log looks like: what is refused."""

from __future__ import annotations

import pytest

from cedar.core.errors import PipelineError
from cedar.datasets.clicklog import ClickLog, ListFeature


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"samples": 0}, "samples=0"),
        ({"repeats": 1.5}, "repeats=1.5"),
        ({"lists": (ListFeature("label"),)}, "two columns are named 'label'"),
        ({"lists": (ListFeature("x", ids=0),)}, "ListFeature"),
        ({"lists": (ListFeature("hist_items", ids=9_000),)}, "hist_items has ids up to 9000"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, said):
    with pytest.raises(PipelineError, match=said):
        ClickLog(**arguments)
