"""A trainer that is little more than its tensors, for tests of checkpoints."""

from typing import ClassVar

import torch

from cedar.trainers.common.checkpoint import Checkpoints
from cedar.trainers.common.group import Group
from cedar.trainers.common.tensors import Part

WHOLE = torch.arange(60.0).view(10, 6)


class Toy:
    """A trainer that holds a slice of one tensor, and all of two others."""

    files: ClassVar[dict[str, str]] = {}
    device = torch.device("cpu")

    def __init__(self, group=None, axis=0, fill=0.0):
        self.group, self.step, self.axis, self.reported = group or Group(), 0, axis, None
        bounds = [WHOLE.shape[axis] * at // self.group.size for at in (self.group.rank, self.group.rank + 1)]
        self.mine = slice(*bounds)
        self.slice = torch.zeros_like(self._own(WHOLE)) + fill
        self.alike, self.count = torch.full((3,), fill, dtype=torch.bfloat16), torch.tensor(int(fill))

    def _own(self, whole):
        return whole[self.mine] if self.axis == 0 else whole[:, self.mine]

    def fill(self, step):
        self.step = step
        self.slice += self._own(WHOLE) + step
        self.alike += step
        self.count += step
        return self

    def state_dict(self):
        return {"step": self.step}

    def parts(self):
        start = (self.mine.start, 0) if self.axis == 0 else (0, self.mine.start)
        return {
            "slice": Part(self.slice, (10, 6), start), "alike": Part(self.alike, alike=True),
            "count": Part(self.count, alike=True),
        }  # fmt: skip

    def check(self, state, path):
        pass

    def load_state_dict(self, state):
        self.step = state["step"]

    def loaded(self):
        self.reported = "loaded"

    @property
    def held(self):
        return self.step, self.slice.tolist(), self.alike.tolist(), int(self.count)


def saved(group, folder, axis, steps=(4,)):
    toy = Toy(group, axis)
    for step in steps:
        toy = Toy(group, axis).fill(step)
        Checkpoints(folder, toy, keep=9).save()


def resumed(group, folder, axis):
    toy = Toy(group, axis, fill=7.0)
    Checkpoints(folder, toy).resume()
    return toy.held == Toy(group, axis).fill(4).held and toy.reported == "loaded"
