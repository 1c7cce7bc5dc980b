"""Limits on waiting, as Dask's configuration has them."""

from __future__ import annotations

import pytest

from cedar.cluster.dask.limits import seconds

pytestmark = [pytest.mark.heavy, pytest.mark.waits]


@pytest.mark.parametrize(("given", "limit"), [("300ms", 0.3), ("2 minutes", 120.0), (7, 7.0)])
def test_a_limit_is_what_the_configuration_says(given: object, limit: float) -> None:
    from dask import config

    before = seconds("scheduler-silent")
    with config.set({"cedar.dask.scheduler-silent": given}):
        assert seconds("scheduler-silent") == limit
        assert seconds("connect") != limit
    assert seconds("scheduler-silent") == before
