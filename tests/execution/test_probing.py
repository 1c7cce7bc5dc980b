"""Who holds the GIL, told from functions that wait for something else."""

from types import SimpleNamespace
from typing import Any

import pytest

from cedar.execution import clocks, probing
from cedar.profile import OperatorProfile


@pytest.mark.parametrize(
    ("wall", "held_up", "gil"),
    [
        (1e-5, 30.0, 1.0),  # beside a run whose threads take all turns: the function itself does not wait
        (3e-4, 30.0, 0.0),  # it waits as long in the run
        (1e-5, 1.0, 1.0),
        (1e-5, 0.0, 0.0),
    ],
)
def test_long_turns_of_others_are_no_waiting(
    monkeypatch: pytest.MonkeyPatch, wall: float, held_up: float, gil: float
) -> None:
    block: Any = SimpleNamespace(slots=8, slice=lambda start, stop: None)
    binding: Any = SimpleNamespace(kernel=lambda node: lambda block, env: block, check_env=None)
    took = clocks.Reading(wall=0.02 * (1 + held_up), cpu=0.02)
    monkeypatch.setattr(probing, "_together", lambda call: (took, 0.0))
    node: Any = None
    found = probing._figures(OperatorProfile("map", 1, 8, wall=wall, cpu=1e-5), binding, node, block, workers=3)
    assert found.gil == pytest.approx(gil)
