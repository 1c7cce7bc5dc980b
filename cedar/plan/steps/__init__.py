"""Steps: the only code that changes a plan's graph. Each step checks whether it may be applied to a node."""

from cedar.plan.steps.order import Cross, Group, Reorder
from cedar.plan.steps.pushdown import DropResults, Keep, KeepOrder, PushColumns, PushFilter
from cedar.plan.steps.single import Cache, Loosen, Place, Replace, Share
from cedar.plan.steps.step import Facts, Refusal, Step

__all__ = [
    "Cache", "Cross", "DropResults", "Facts", "Group", "Keep", "KeepOrder", "Loosen", "Place", "PushColumns",
    "PushFilter", "Refusal", "Reorder", "Replace", "Share", "Step",
]  # fmt: skip
