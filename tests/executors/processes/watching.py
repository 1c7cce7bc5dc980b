"""How many workers there are, and whether they have ended."""

from __future__ import annotations

from pathlib import Path

WORKERS = 2


def gone(pid: int) -> bool:
    """Whether a process has ended, or is a zombie that nothing has waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"
