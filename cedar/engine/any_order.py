"""For ``loader(order="any")``: find the stage whose rows may be delivered out of order, and describe it in reports."""

from __future__ import annotations

from cedar.engine.streams.ready import ReadyStream
from cedar.plan.physical import Physical, Stage
from cedar.plan.steps.reorder import batch_rows


def any_order_stage(physical: Physical) -> int:
    """Return the number of the stage whose rows may be delivered as they finish; -1 if an operator needs their order.
    It is the stage below ``batch()``, or the last stage if there are no batches. All plans of a pipeline have the same.
    """
    stages, works = physical.stages, physical.works
    (number,) = stages[physical.deal].inputs
    while works[stages[number].out].batched:
        stage = stages[number]
        in_order = stage.kind == "stream" and batch_rows(physical.nodes[stage.out]) is None
        if in_order or len(stage.inputs) != 1:
            return -1
        (number,) = stage.inputs
    return number if sum(stage.inputs.count(number) for stage in stages) == 1 else -1


def describe_order(physical: Physical, ready: ReadyStream | None) -> str:
    """Describe which rows are delivered as they finish, or why none are, and which slow stages stay in order."""
    number = any_order_stage(physical)
    if ready is None or number < 0:
        reported = f"rows come in order: {_label(physical, _topmost(physical))} needs that order"
    elif not ready.free:
        reported = "rows come in order: ranks take turns at the same rows, or have slices of the same batches"
    elif ready.stage is None:
        reported = f"rows come in order: {_why(physical, number)}"
    else:
        work = " -> ".join(physical.works[i].label for i in physical.stages[number].operators)
        reported = f"rows come as they finish by {work}"
    slow = [stage for stage in physical.stages if stage.small and physical.works[stage.out].batched]
    above = "".join(f"; {_label(physical, stage.out)} works on batches, which stay in order" for stage in slow)
    return reported + above


def _topmost(physical: Physical) -> int:
    """Return the topmost operator that needs its rows in order."""
    (number,) = physical.stages[physical.deal].inputs
    while physical.stages[number].kind == "task" and len(physical.stages[number].inputs) == 1:
        (number,) = physical.stages[number].inputs
    return physical.stages[number].out


def _why(physical: Physical, number: int) -> str:
    stage: Stage = physical.stages[number]
    below = "batch()" if any(work.batched for work in physical.works) else "the loader"
    if stage.small:
        culprit = next(i for i in reversed(stage.operators) if not physical.works[i].preserves_slots)
        return f"how many rows {_label(physical, culprit)} leaves is known only after it has run"
    return f"no per-row function is directly below {below}"


def _label(physical: Physical, i: int) -> str:
    return physical.works[i].label
