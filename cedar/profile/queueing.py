"""Estimate how many cores workers keep busy if they share a lock, such as the GIL.

The model is a closed queueing network with one station (the lock) and work that does not need it. Its throughput is
found by mean value analysis (Reiser and Lavenberg, 1980).
"""

from __future__ import annotations

_STEPS = 30


def cores_kept(share: float, workers: int) -> float:
    """Return how many cores ``workers`` workers keep busy if each needs a shared lock for ``share`` of its work.

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
    """Return the share of their work, 0 to 1, for which workers need a lock, given how many cores they keep busy.

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
