"""Kernels, what a task is told of its run on its way to another process, and the instances that it borrows."""

from __future__ import annotations

import pickle
import threading
import time
from dataclasses import replace

import cedar
from cedar.core.limits import Limits
from cedar.core.numeric import NumericEnvironment
from cedar.operators.calls import Call
from cedar.operators.dedup_kernels import PlainRows
from cedar.operators.failures import ErrorContext
from cedar.operators.filter_function import FilterRows
from cedar.operators.kernel import Env, Instances, block_kernel
from cedar.operators.marks import Marks, SlotAddress
from tests.toy_blocks import block


def test_an_env_arrives_as_it_was_sent_but_for_what_is_of_its_process():
    sent = Env(
        seed=3, epoch=5, sampling=True, watch="whole", marks=Marks(SlotAddress("/nowhere", b"t", 2, 7)),
        call_in_subprocess=print, numeric=NumericEnvironment(blas=2, flush=True), limits=Limits(json_depth=7),
    )  # fmt: skip
    for epoch in (5, 6):
        sent = replace(sent, epoch=epoch)
        found, again = (pickle.loads(pickle.dumps(sent)) for _ in range(2))
        assert found.marks.place == sent.marks.place
        assert found.instances is not again.instances
        same = {"marks": None, "instances": None, "call_in_subprocess": None}
        assert {**vars(found), **same} == {**vars(sent), **same}
        assert found.call_in_subprocess is None


def test_none_is_made_while_the_caller_is_at_work():
    instances, made = Instances(), threading.Event()

    def borrow() -> None:
        with instances.borrow(0, lambda: made.set() or "one"):
            pass

    instances.leave()
    thread = threading.Thread(target=borrow)
    thread.start()
    assert not made.wait(0.05)
    with instances.borrow(0, lambda: "by the caller itself") as one:
        assert one == "by the caller itself"
    thread.join(60)
    assert not made.is_set()  # one was there meanwhile
    instances.enter()


def test_who_waits_for_an_instance_ends_with_the_run():
    instances, errors = Instances(), []

    def borrow() -> None:
        try:
            with instances.borrow(0, object):
                pass
        except cedar.PipelineError as error:
            errors.append(str(error))

    instances.leave()
    thread = threading.Thread(target=borrow)
    thread.start()
    time.sleep(0.02)
    instances.end()
    thread.join(60)
    assert errors == ["the run ended while a worker waited for an instance of a class"]


def test_a_function_is_a_kernel_that_promises_nothing():
    kernel = block_kernel(lambda block, env: block)
    assert (kernel.row_wise, kernel.pooled, kernel.inexact, kernel.row_bytes, kernel.timeout) == (
        False, False, False, 0, None,
    )  # fmt: skip
    given = block(x=[1, 2])
    assert kernel(given, Env()) is given
    assert (kernel.fuse(kernel), kernel.describe(given, Env())) == (None, [])
    assert block_kernel(kernel) is kernel


def test_a_users_kernel_may_describe_what_it_drew():
    class Draws:
        def __call__(self, block, env):
            return block

        def describe(self, block, env):
            return [{"drawn": env.seed}] * len(block)

    assert block_kernel(Draws()).describe(block(x=[1, 2]), Env(seed=7)) == [{"drawn": 7}] * 2


def test_a_wrapped_kernel_keeps_the_time_limit_of_its_function():
    call = Call(bool, ErrorContext(0, "filter(bool)", None, None), timeout=2.5)
    assert PlainRows(FilterRows(call, ("x",))).timeout == 2.5
    assert PlainRows(FilterRows(call, ("x",))).row_wise
