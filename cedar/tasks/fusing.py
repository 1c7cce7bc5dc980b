"""Fuse adjacent steps that can run as one query."""

from __future__ import annotations

from collections.abc import Sequence

from cedar.tasks.chain import Step


def fuse_steps(steps: Sequence[Step]) -> list[Step]:
    """Runs of kernels of one fusing kind become one step; a kernel says so by its method ``fuse``."""
    fused: list[Step] = []
    for step in steps:
        join = getattr(fused[-1].kernel, "fuse", None) if fused else None
        both = join(step.kernel) if join is not None else None
        if both is None:
            fused.append(step)
        else:
            last = fused[-1]
            label = f"{last.label} -> {step.label}"
            parts = (*(last.parts or (last,)), *(step.parts or (step,)))
            fused[-1] = Step(both, (*last.operators, *step.operators), label, last.site, parts)
    return fused
