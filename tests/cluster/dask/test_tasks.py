"""What a submitted call is on its way: packed without its code, and what its results add up to."""

from __future__ import annotations

import threading

import pytest

import cedar
from cedar.cluster.dask.remote import CodeRef
from cedar.cluster.dask.tasks import Meter, pack
from cedar.core.columns import objects
from cedar.tasks.chain import Result, Timing
from cedar.tasks.code import Code
from tests.toy_blocks import block

pytestmark = [pytest.mark.heavy, pytest.mark.waits]


def test_code_travels_by_itself() -> None:
    code = Code.of((bytes(1 << 16),))
    packed = pack(len, (code, 3), {"more": 4}, "/tmp")
    assert packed.code == (code,)
    assert packed.parcel.nbytes < 1 << 12
    call = packed.parcel.open()
    reference = CodeRef(code.key, code.path)
    assert (call.fn, call.args, call.kwargs, call.folder) == (len, (reference, 3), {"more": 4}, "/tmp")


def test_what_cannot_be_packed_names_its_column() -> None:
    rows = Result([block(x=[1]).with_columns({"lock": objects([threading.Lock()])})], Timing())
    with pytest.raises(cedar.WorkerError, match="column 'lock' cannot be sent to another process"):
        pack(len, (rows,), {}, None)


def test_results_count_until_they_are_taken() -> None:
    meter = Meter()
    assert meter.starving
    kept, dropped = (Result([block(x=[1, 2, 3])], Timing()) for _ in range(2))
    meter.arrived(kept, 100, 0.5)
    meter.arrived(dropped, 50, 0.25)
    meter.arrived(7, 10, 0.25)  # which nothing can follow
    assert (meter.buffered, meter.bytes, meter.rows, meter.busy) == (2, 150, 6, 0.75)
    assert not meter.starving
    with meter.waited():
        assert meter.starving
    del dropped
    assert (meter.buffered, meter.bytes, meter.rows) == (1, 100, 6)
