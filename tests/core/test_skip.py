"""Skip: budgets that can be kept, and those that cannot."""

from __future__ import annotations

from typing import Any

import pytest

from cedar.core.errors import PipelineError
from cedar.core.skip import Skip


@pytest.mark.parametrize(
    "wrong", [{"max_rate": 1.5}, {"max_rate": -0.1}, {"max_rate": float("nan")}, {"max_count": -1}]
)
def test_a_budget_that_cannot_be_is_refused_at_the_line(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(PipelineError, match=rf"Skip\({name}={value}\)") as caught:
        Skip(**wrong)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_the_ends_of_a_budget_are_allowed_and_policies_compare_by_value() -> None:
    assert [Skip(max_rate=rate).max_rate for rate in (0, 1, None)] == [0, 1, None]
    assert Skip(max_count=0) == Skip(max_count=0) != Skip(max_count=1)
    assert (Skip().refill, Skip().quarantine) == (False, None)
