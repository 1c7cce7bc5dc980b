"""What a loader is made of, and what it refuses to be asked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import cedar
from tests.engine.delivery.few_rows import in_batches, rows, xs
from tests.engine.streams.slow_rows import SLOW
from tests.toy_runs import saved


def test_logging_is_quiet_by_default(caplog):
    with caplog.at_level(logging.WARNING):
        xs(in_batches(10).loader())
    assert caplog.text == ""


def test_a_closed_loader_still_reports() -> None:
    with rows().batch(5).loader() as loader:
        for _ in loader:
            break
    assert loader.report().batches == 1
    assert saved(loader)["step"] == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda loader: loader.read(0),
        lambda loader: loader.locate(0),
        lambda loader: loader.where("x", 0),
        lambda loader: loader.commit(0),
        lambda loader: loader.reshard(0, 2),
    ],
)
def test_what_must_know_the_order_ahead_is_refused(ask: Callable[[cedar.Loader], Any]) -> None:
    with (
        SLOW.loader(order="any", executor="inline") as loader,
        pytest.raises(cedar.PipelineError, match="the order of rows is not known in advance"),
    ):
        ask(loader)
