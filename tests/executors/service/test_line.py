"""Lines: how a rank reaches the service where it meets the others."""

from __future__ import annotations

import pytest

import cedar
from cedar.executors.dask.local import local_address
from cedar.executors.service.line import is_service
from tests.engine.delivery.test_elastic import numbers


def test_a_scheduler_that_is_no_service_says_so() -> None:
    here = local_address(1)
    assert not is_service(here)
    loader = numbers(8).filter(lambda x: x != 3, "x").batch(4).loader(rank=0, world=2, agree=here, executor="inline")
    with pytest.raises(cedar.PipelineError, match=r"is no service(?s:.*)cedar service start"):
        next(iter(loader))
