"""What cache() keeps on a service: made once, taken on by each run as if it had made it."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cedar.cluster.dask import remote
from cedar.cluster.dask.kept import SharedFailed, read_shared, run_on_shared, run_shared, shared
from cedar.cluster.dask.remote import Parcel, RemoteCall, stamp
from cedar.core.block import Block
from cedar.datasets.table import from_arrow
from cedar.operators.base import BlockKernel, Env
from cedar.tasks.chain import KernelStep, Program
from cedar.tasks.code import Code
from cedar.tasks.reading import Reader
from tests.toy_blocks import values

pytestmark = [pytest.mark.heavy, pytest.mark.waits]


@pytest.fixture(autouse=True)
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_set_up_worker", lambda: None)  # what it changes is this process's


def call(fn: Any, *args: Any) -> Parcel:
    return Parcel.of(RemoteCall(fn, args, {}, None))


def test_the_rest_of_a_task_works_on_what_was_made() -> None:
    made = run_shared(stamp(), call(list, range(3)))
    answer = run_on_shared(stamp(), call(lambda made, more: [*made, more], 7), made).open()
    assert answer.value == [0, 1, 2, 7]


def test_what_cannot_be_made_is_no_result() -> None:
    with pytest.raises(SharedFailed) as caught:
        run_shared(stamp(), call(lambda: 1 // 0))
    failed = pickle.loads(pickle.dumps(caught.value)).parcel.open()
    assert isinstance(failed.error, ZeroDivisionError)


class Grows(BlockKernel):
    """A kernel that changes its rows in place."""

    def __call__(self, block: Block, env: Env) -> Block:
        for tags in block.columns["tags"]:
            tags.append("seen")  # type: ignore[union-attr]
        return block


def test_each_run_has_rows_of_its_own() -> None:
    source = from_arrow(pa.table({"x": [1, 2, 3]}))
    (split,) = source.splits()
    plain = Reader(source, 4)
    (read,) = plain.blocks(split, 0)
    tags = np.empty(3, dtype=object)
    tags[:] = [["a"], ["b"], ["c"]]
    made = [Block({"x": read.columns["x"], "tags": tags}, read.keys)]
    code = Code.of((Program((KernelStep(Grows(), (1,)),)), SimpleNamespace(plain=plain)))
    for lap in (0, 2):
        (block,) = read_shared(made, code, Env(), split, lap, 1).blocks
        assert values(block, "x") == [2, 3]
        assert values(block, "tags") == [["b", "seen"], ["c", "seen"]]
        assert [block.keys.ref(i).row for i in range(2)] == [1, 2]
        assert (block.keys.source, block.keys.repeat) == (4, lap)
    assert values(made[0], "tags") == [["a"], ["b"], ["c"]]


def test_a_reader_that_keeps_nothing_shares_nothing() -> None:
    source = from_arrow(pa.table({"x": [1]}))
    (split,) = source.splits()
    reader = Reader(source, 0)
    assert shared(reader, split, Env(), Code.of((reader, Program()))) is None
