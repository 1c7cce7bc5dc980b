"""Workers that wait for one another: what a lock, such as Python's, leaves of their number.

A closed queueing network of one station, the lock, and of work that needs none; mean value analysis (Reiser and
Lavenberg, 1980) gives its throughput.
"""

from __future__ import annotations

_STEPS = 30


def cores_kept(share: float, workers: int) -> float:
    """How many cores so many workers keep busy that hold one lock for a share of their work.

    Examples:
        >>> cores_kept(0.0, 4), cores_kept(1.0, 4), round(cores_kept(0.5, 2), 2)
        (4.0, 1.0, 1.6)
    """
    queue = kept = 0.0
    for n in range(1, workers + 1):
        locked = share * (1 + queue)
        kept = n / (1 - share + locked)
        queue = kept * locked
    return kept


def lock_share(cores: float, workers: int) -> float:
    """The share of their work in which so many workers hold a lock, where they keep so many cores busy.

    Examples:
        >>> round(lock_share(1.6, 2), 2), lock_share(1.0, 2), round(lock_share(4.0, 4), 2)
        (0.5, 1.0, 0.0)
    """
    if cores <= 1 or workers < 2:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if cores_kept(middle, workers) > cores else (low, middle)
    return high
