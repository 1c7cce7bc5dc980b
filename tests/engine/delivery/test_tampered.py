"""States and plans that someone changed; ``python -m benchmarks.tampered`` changes 100,000."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from benchmarks.tampered import plans, states


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:the code of a function")
@pytest.mark.parametrize("made", [states, plans])
def test_what_was_changed_is_refused_by_name_or_harmless(made: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tally = made(250, seed=11)
    assert tally.odd == {}
    assert tally.refused > 100
    assert tally.harmless > 0
