"""Windows of sparse checkpoints (MoEvement, arXiv 2412.15411): which operators each step saves. Needs no torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def plan_window(sizes: Sequence[int], steps: int, *, state: int = 12, weights: int = 2) -> list[range]:
    """Divide operators, in the given order, into one range per step, to minimize the bytes of the largest step.

    A step saves the full state of its own operators, only the weights of operators of later steps, and nothing of
    operators of earlier steps (MoEvement, arXiv 2412.15411).

    Args:
        sizes: number of values of each operator, experts first, from the least popular on.
        steps: number of steps in the window; at most the number of operators.
        state: bytes per value for master weight and moments together.
        weights: bytes per value for the weight with which the model computes.

    Returns:
        For each step, the range of its operators' positions in ``sizes``.

    Examples:
        >>> plan_window([10] * 6, 3)
        [range(0, 2), range(2, 4), range(4, 6)]
    """
    if not 1 <= steps <= len(sizes):
        raise ValueError(f"cannot split {len(sizes)} operators over a window of {steps} steps")
    low, high = 0, state * sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if _cut(sizes, steps, middle, state, weights) is None:
            low = middle + 1
        else:
            high = middle
    runs = _cut(sizes, steps, low, state, weights)
    assert runs is not None
    return runs


def choose_window(sizes: Sequence[int], most: int, *, state: int = 12, weights: int = 2) -> int:
    """Return the smallest number of steps at which no step saves more than ``most`` bytes, or the number of operators
    if there is none. See ``plan_window`` for the other arguments.

    Examples:
        >>> choose_window([10] * 6, 320)
        3
    """
    steps = range(1, max(len(sizes), 1))  # bisection works, as more steps never enlarge the largest step
    return 1 + bisect_left(steps, 1, key=lambda n: int(_cut(sizes, n, most, state, weights) is not None))


def step_bytes(sizes: Sequence[int], window: Sequence[range], at: int, *, state: int = 12, weights: int = 2) -> int:
    """Return the bytes that step ``at`` of a window saves: full state of its operators, and weights of later ones.

    Examples:
        >>> [step_bytes([10] * 6, plan_window([10] * 6, 3), at) for at in range(3)]
        [320, 280, 240]
    """
    own = sum(sizes[op] for op in window[at])
    later = sum(sizes[window[at].stop :])
    return state * own + weights * later


def _cut(sizes: Sequence[int], steps: int, most: int, state: int, weights: int) -> list[range] | None:
    """Return a range of at least one operator and at most ``most`` bytes per step, or None if that is impossible."""
    later, start, runs = sum(sizes), 0, []
    for left in range(steps, 0, -1):
        stop, own = start, 0
        while stop < len(sizes) - (left - 1):
            new = own + sizes[stop]
            if state * new + weights * (later - new) > most:
                break
            own, stop = new, stop + 1
        if stop == start:
            return None
        runs.append(range(start, stop))
        later, start = later - own, stop
    return runs if start == len(sizes) else None
