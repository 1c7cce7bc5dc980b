"""What runs a pipeline: arguments at the user's line, ranks, and numbers as users have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cedar
from cedar import PipelineError
from tests.pipeline.toy_rows import rows


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"format": "pandas"}, "use one of 'numpy', 'torch', 'arrow'"),
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
        ({"num_workers": 4}, "here that is loader(workers=n)"),
        ({"batch_size": 4}, "here that is batch(n)"),
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


def test_ranks_come_from_the_environment_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = rows().batch(5).loader()
    assert (loader.rank.rank, loader.rank.world) == (1, 2)
    assert "RANK and WORLD_SIZE" in str(loader.report())
    assert len(list(loader)) == 2
    assert rows().count() == 20, "sinks see every row, whatever the rank"
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(PipelineError, match="not integers"):
        rows().loader()


@pytest.mark.parametrize(("there", "missing"), [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")])
def test_half_a_rank_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch, there: str, missing: str) -> None:
    monkeypatch.delenv(missing, raising=False)
    monkeypatch.setenv(there, "1")
    with pytest.raises(PipelineError, match=rf"{there}='1' is set in the environment and {missing} is not"):
        rows().loader()
    assert rows().loader(rank=0, world=1).rank.origin == "arguments", "which say both"
    assert rows().count() == 20


@pytest.mark.parametrize(("rank", "world"), [("0", 1), (0, "1"), (0.0, 1), (True, 2)])
def test_a_rank_that_is_no_whole_number_is_refused(rank: Any, world: Any) -> None:
    with pytest.raises(PipelineError, match="are not integers"):
        rows().loader(rank=rank, world=world)
    assert rows().loader(rank=np.int64(0), world=np.int64(1)).rank.world == 1


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    def batches(whole: Any) -> list[Any]:
        shuffled = rows().shuffle(seed=whole(2), window=whole(7)).batch(whole(4))
        return [b["x"].tolist() for b in shuffled.loader(seed=whole(3), epoch=whole(1), workers=whole(2))]

    assert batches(np.int64) == batches(np.uint8) == batches(int)
    with pytest.raises(PipelineError, match="integer"):
        rows().batch(np.float64(4))  # type: ignore[arg-type]
