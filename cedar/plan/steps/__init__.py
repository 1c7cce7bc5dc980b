"""Steps: the only code that changes a plan's graph. Each step checks whether it may be applied to a node."""

from cedar.plan.steps.columns import DropResults, Keep, KeepOrder
from cedar.plan.steps.cross import Cross, Group
from cedar.plan.steps.facts import Facts, Refusal
from cedar.plan.steps.reorder import Reorder
from cedar.plan.steps.scans import PushColumns, PushFilter
from cedar.plan.steps.single import Cache, Loosen, Place, Replace, Share
from cedar.plan.steps.step import Step

__all__ = [
    "Cache", "Cross", "DropResults", "Facts", "Group", "Keep", "KeepOrder", "Loosen", "Place", "PushColumns",
    "PushFilter", "Refusal", "Reorder", "Replace", "Share", "Step",
]  # fmt: skip

KINDS: dict[str, type[Step]] = {
    kind.__name__: kind
    for kind in (
        Cache, Cross, DropResults, Group, Keep, KeepOrder, Loosen, Place, PushColumns, PushFilter, Reorder, Replace,
        Share,
    )
}  # fmt: skip
