"""Lines: how a rank reaches the service where it meets the others."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import cedar
from cedar.cluster.dask.local import local_address
from cedar.cluster.service import line
from cedar.cluster.service.line import ServiceLine, is_service
from tests.engine.delivery.test_elastic import numbers


def test_a_scheduler_that_is_no_service_says_so() -> None:
    here = local_address(1)
    assert not is_service(here)
    loader = numbers(8).filter(lambda x: x != 3, "x").batch(4).loader(rank=0, world=2, agree=here, executor="inline")
    with pytest.raises(cedar.PipelineError, match=r"is not a service(?s:.*)cedar service start"):
        next(iter(loader))


def test_where_another_program_has_the_port_it_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    here = local_address(1)
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as thread:
        monkeypatch.setitem(line._addresses, here, other.getsockname())
        thread.submit(lambda: other.accept()[0].close())  # it knows nothing of TLS
        with pytest.raises(OSError):
            ServiceLine(here)
        with pytest.raises(cedar.PipelineError, match="is not a service"):
            ServiceLine(here)


def test_two_that_find_a_port_left_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    here = local_address(1)
    monkeypatch.setitem(line._addresses, here, ("127.0.0.1", 1))

    def refused(*_: Any) -> Any:
        line._addresses.clear()  # by the other one
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refused)
    with pytest.raises(cedar.PipelineError, match="is not a service"):
        ServiceLine(here)
