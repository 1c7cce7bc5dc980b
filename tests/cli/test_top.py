"""``cedar top``: all ranks of a job, by address or by process."""

from __future__ import annotations

import time
from contextlib import ExitStack

from cedar.cli import main
from tests.report.toy_runs import files


def test_top_shows_all_ranks_and_which_of_them_waits_most(tmp_path, capsys):
    pipeline = files(tmp_path).batch(100)
    with ExitStack() as stack:
        options = {"serve": "127.0.0.1:0", "world": 2, "executor": "inline"}
        loaders = [stack.enter_context(pipeline.loader(rank=rank, **options)) for rank in range(2)]
        for rank, loader in enumerate(loaders):
            for _ in loader:
                time.sleep(0.05 * rank)  # the trainer of rank 1 works nearly all the time, on any machine
        assert main(["top", *(loader.url for loader in loaders)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("2 ranks, ")
    assert "rank 0 waits most" in told
    assert "rank 1 of 2" in told
