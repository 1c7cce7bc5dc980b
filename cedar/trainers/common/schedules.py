"""Learning rates over time: plain functions of the step, so that any step can be run again."""

from __future__ import annotations

import math


def cosine(step: int, *, peak: float, steps: int, warmup: int = 0, least: float = 0.0) -> float:
    """Linear to ``peak`` over ``warmup`` steps, then half a cosine down to ``least`` at ``steps``, and flat from there.

    The curve is that of SGDR (arXiv 1608.03983), without its restarts.

    Example:
        >>> [round(cosine(step, peak=1.0, steps=6, warmup=2, least=0.1), 3) for step in range(8)]
        [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1, 0.1]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if step >= steps:
        return least
    done = (step - warmup) / max(1, steps - warmup)
    return least + (peak - least) * 0.5 * (1.0 + math.cos(math.pi * done))


def constant(step: int, *, peak: float, warmup: int = 0) -> float:
    """Linear to ``peak`` over ``warmup`` steps, and flat from there.

    Example:
        >>> [constant(step, peak=1.0, warmup=2) for step in range(4)]
        [0.5, 1.0, 1.0, 1.0]
    """
    return peak * min(1.0, (step + 1) / warmup) if warmup else peak
