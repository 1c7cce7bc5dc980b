"""What runs in the workers of a cluster: one task, from a parcel to a parcel."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest

import cedar
from cedar.cluster.dask import remote
from cedar.cluster.dask.remote import Parcel, run, stamp
from cedar.tasks.code import Code

pytestmark = [pytest.mark.heavy, pytest.mark.waits]


def test_a_parcel_keeps_large_buffers_apart() -> None:
    message: dict[str, Any] = {"values": np.arange(1 << 16), "text": "x"}
    parcel = Parcel.of(message)
    assert sys.getsizeof(parcel) > 1 << 19
    assert parcel.open()["values"].tolist() == message["values"].tolist()


def test_code_that_is_pushed_out_while_a_task_begins_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget() -> str:
        remote._code.clear()  # as when other code comes
        return os.path.sep

    code = Code.of((41,))
    assert code.pickled is not None
    monkeypatch.setattr(remote, "_code", {code.key: code.pickled})
    monkeypatch.setattr(os, "getcwd", forget)
    monkeypatch.setattr(remote, "_set_up_worker", lambda: None)
    call = Parcel.of(
        remote.RemoteCall(lambda code: code.load()[0] + 1, (remote.CodeRef(code.key, code.path),), {}, os.path.sep)
    )
    answer = run(stamp(), call).open()
    assert isinstance(answer, remote.Done)
    assert answer.value == 42


def test_a_worker_of_another_version_that_came_late_refuses_the_task() -> None:
    answer = run("cedar 0.0.1, Python 3.9", Parcel((b"whatever",))).open()
    assert isinstance(answer.error, cedar.WorkerError)
    assert f"has {stamp()}, but the client has cedar 0.0.1, Python 3.9" in str(answer.error)
