"""What a task is told of its run, on its way to another process."""

import pickle
from dataclasses import replace

from cedar.core.limits import Limits
from cedar.core.numeric import NumericEnvironment
from cedar.operators.base import Env
from cedar.operators.marks import Marks, SlotAddress


def test_an_env_arrives_as_it_was_sent_but_for_what_is_of_its_process():
    sent = Env(
        seed=3, epoch=5, sampling=True, watch="whole", marks=Marks(SlotAddress("/nowhere", b"t", 2, 7), patience=1.5),
        apart=print, numeric=NumericEnvironment(blas=2, flush=True), limits=Limits(json_depth=7),
    )  # fmt: skip
    for epoch in (5, 6):
        sent = replace(sent, epoch=epoch)
        found, again = (pickle.loads(pickle.dumps(sent)) for _ in range(2))
        assert found.marks.place == sent.marks.place
        assert found.marks.patience == 1.5
        assert found.instances is not again.instances
        same = {"marks": None, "instances": None, "apart": None}
        assert {**vars(found), **same} == {**vars(sent), **same}
        assert found.apart is None
