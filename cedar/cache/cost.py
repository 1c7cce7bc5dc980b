"""The cost of reading cache entries, for the optimizer."""

from __future__ import annotations

from cedar.core import forks

SECONDS_PER_BYTE = {"disk": 1e-9, "url": 2e-8}  # 1 GB/s and 0.05 GB/s
_ENOUGH = 64 << 20  # bytes that must be read before the measured average is used
_EXPECTED = {"memory": 1e-10, **SECONDS_PER_BYTE}  # estimates until then; memory: 10 GB/s
_seen: dict[str, tuple[int, float]] = {}
_lock = forks.Lock()


def kind_of(where: str) -> str:
    """Return the kind of a ``cache()`` argument: ``memory``, ``disk`` or ``url``.

    Examples:
        >>> [kind_of(w) for w in ("auto", "kept", "file:///tmp/kept", "s3://bucket/kept")]
        ['memory', 'disk', 'disk', 'url']
    """
    if where in ("auto", "memory"):
        return "memory"
    return "url" if "://" in where and not where.startswith(("file://", "local://")) else "disk"


def note_load(kind: str, nbytes: int, seconds: float) -> None:
    """Record that an entry was read."""
    with _lock:
        known_bytes, known_seconds = _seen.get(kind, (0, 0.0))
        _seen[kind] = (known_bytes + nbytes, known_seconds + seconds)


def load_seconds_per_byte(where: str) -> float:
    """Return the seconds per byte to read an entry: the average measured by this process, or an estimate until then.

    Args:
        where: the argument of ``cache(where)``.

    Examples:
        >>> load_seconds_per_byte("memory") < load_seconds_per_byte("s3://bucket/kept")
        True
    """
    kind = kind_of(where)
    nbytes, seconds = _seen.get(kind, (0, 0.0))
    return seconds / nbytes if nbytes >= _ENOUGH else _EXPECTED[kind]
