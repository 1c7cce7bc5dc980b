"""Release the memory pages of a library's code. The system reads a page again when it is needed."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator

_DONT_NEED = 4  # MADV_DONTNEED on every Linux
_HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+\s*(.*)$")


def release_idle(library: str) -> int:
    """Release the pages of a library's code and constants; the system reads them again if they are needed.

    Pages that this process has written to, such as relocated addresses, are kept. Only works on Linux.

    Args:
        library: the prefix of its file name.

    Returns:
        The bytes that were released.

    Examples:
        >>> release_idle("libunheard")
        0
    """
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
            clean = list(_clean_mappings(library, lines))
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return 0
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return sum(resident for start, stop, resident in clean if advise(start, stop - start, _DONT_NEED) == 0)


def _clean_mappings(library: str, lines: Iterator[str]) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, resident bytes) of the library's read-only mappings that were never written to."""
    start = stop = resident = 0
    of_library = written = False
    for line in lines:
        if head := _HEAD.match(line):
            start, stop = int(head[1], 16), int(head[2], 16)
            of_library, written = "w" not in head[3] and head[4].rpartition("/")[2].startswith(library), False
        elif of_library and line.startswith("Rss:"):
            resident = int(line.split()[1]) << 10
        elif of_library and line.startswith(("Anonymous:", "Swap:")):
            written |= int(line.split()[1]) > 0
        elif of_library and line.startswith("VmFlags:") and resident and not written:  # the last line of a mapping
            yield start, stop, resident
