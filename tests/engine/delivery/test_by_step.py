"""Batches that are read again by their step, until they are committed."""

from __future__ import annotations

import pytest

from cedar import PipelineError
from tests.engine.delivery.few_rows import rows


def test_what_is_committed_cannot_be_read() -> None:
    with rows().batch(2).loader() as loader:
        loader.read(4)
        loader.commit(4)
        with pytest.raises(PipelineError, match="committed"):
            loader.read(4)
        with pytest.raises(PipelineError, match="committed"):
            loader.read(0)
        assert loader.read(5)["x"].tolist() == [10, 11]
        for step, rank in ((99, 0), (5, 7)):
            with pytest.raises(PipelineError):
                loader.read(step, rank)
