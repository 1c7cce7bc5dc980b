"""What reading an entry costs, for the optimizer."""

from __future__ import annotations

from cedar.core import forks

SECONDS_PER_BYTE = {"disk": 1e-9, "url": 2e-8}  # to read files: 1 and 0.05 GB/s
_ENOUGH = 64 << 20  # bytes that were read before the average is believed
_EXPECTED = {"memory": 1e-10, **SECONDS_PER_BYTE}  # until then: 10 GB/s, and what files take
_seen: dict[str, tuple[int, float]] = {}
_lock = forks.Lock()


def kind_of(where: str) -> str:
    """``memory``, ``disk`` or ``url``: what an argument of ``cache()`` names.

    Examples:
        >>> [kind_of(w) for w in ("auto", "kept", "file:///tmp/kept", "s3://bucket/kept")]
        ['memory', 'disk', 'disk', 'url']
    """
    if where in ("auto", "memory"):
        return "memory"
    return "url" if "://" in where and not where.startswith(("file://", "local://")) else "disk"


def note_load(kind: str, nbytes: int, seconds: float) -> None:
    """An entry was read."""
    with _lock:
        known_bytes, known_seconds = _seen.get(kind, (0, 0.0))
        _seen[kind] = (known_bytes + nbytes, known_seconds + seconds)


def load_seconds_per_byte(where: str) -> float:
    """Seconds per byte to read an entry back: as this process measured it, before that an estimate per kind of place.

    Args:
        where: as ``cache(where)`` takes it.

    Examples:
        >>> load_seconds_per_byte("memory") < load_seconds_per_byte("s3://bucket/kept")
        True
    """
    kind = kind_of(where)
    nbytes, seconds = _seen.get(kind, (0, 0.0))
    return seconds / nbytes if nbytes >= _ENOUGH else _EXPECTED[kind]
