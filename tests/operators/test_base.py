"""What a task is told of its run, on its way to another process, and the instances that it borrows."""

from __future__ import annotations

import pickle
import threading
import time
from dataclasses import replace

import cedar
from cedar.core.limits import Limits
from cedar.core.numeric import NumericEnvironment
from cedar.operators.base import Env, Instances
from cedar.operators.marks import Marks, SlotAddress


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
