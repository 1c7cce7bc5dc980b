"""The arguments of a loader, and which of them are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cedar
from cedar import PipelineError
from tests.engine.delivery.few_rows import rows
from tests.engine.streams.slow_rows import SLOW


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"format": "pandas"}, "it is one of 'numpy', 'torch', 'arrow'"),
        ({"device": "cpu", "format": "numpy"}, 'device= needs format="torch"'),
        ({"workers": 0}, "workers=0"),
        ({"workers": True}, "workers=True"),
        ({"steps": 0}, "steps=0"),
        ({"steps": 2.5}, "steps=2.5"),
        ({"on_error": "skip"}, "cedar.Skip"),
        ({"rank": 0}, "give both or neither"),
        ({"rank": 3, "world": 3}, "between 0 and world - 1"),
        ({"split_batches": True, "rank": 0, "world": 3}, "cannot be cut evenly for 3 ranks"),
        ({"executor": "process"}, "'process' is unknown"),
        ({"num_workers": 4}, "here that is workers="),
        ({"batch_size": 4}, "here that is .batch(n)"),
        ({"exekutor": "threads"}, "did you mean executor=?"),
    ],
)
def test_wrong_arguments_are_refused_at_the_users_line(options: dict[str, Any], error: str) -> None:
    with pytest.raises(cedar.CedarError) as caught:
        rows().batch(4).loader(**options)
    assert error in str(caught.value)
    if caught.value.site is not None:
        assert caught.value.site.file == __file__


def test_split_batches_needs_batches() -> None:
    with pytest.raises(PipelineError, match="needs batch"):
        rows().loader(split_batches=True)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    def batches(whole: Any) -> list[Any]:
        shuffled = rows().shuffle(seed=whole(2), window=whole(7)).batch(whole(4))
        return [b["x"].tolist() for b in shuffled.loader(seed=whole(3), epoch=whole(1), workers=whole(2))]

    assert batches(np.int64) == batches(np.uint8) == batches(int)
    with pytest.raises(PipelineError, match="whole number"):
        rows().batch(np.float64(4))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 3}, 'order= is "exact", "any", or the folder'),
        ({"order": ""}, 'order= is "exact", "any", or the folder'),
        ({"record": "folder"}, "nothing to record"),
    ],
)
def test_arguments_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(cedar.PipelineError, match=message):
        SLOW.loader(**options)
