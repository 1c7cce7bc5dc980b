"""Format a profile's figures as a plain-text table."""

from __future__ import annotations

from collections.abc import Sequence

from cedar.core.printable import one_line
from cedar.profile.figures import OperatorProfile

WIDTH = 100
HEAD = ("operator", "us/row wall", "us/row cpu", "keep", "bytes/row", "GIL", "share")
_LEFT = (0, 3, 4)


def cells(figures: OperatorProfile, share: float) -> tuple[str, ...]:
    """Return the table cells of one operator."""
    return (
        one_line(figures.label),
        micros(figures.wall),
        micros(figures.cpu),
        f"{figures.keep:.3g}",
        f"{byte_size(figures.bytes_in)} -> {byte_size(figures.bytes_out)}",
        "?" if figures.gil is None else f"{figures.gil:.0%}",
        f"{share:.1%}",
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as aligned lines of at most ``WIDTH`` characters. The first cell is cut if necessary."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * (len(widths) - 1))
    lines = []
    for row in rows:
        cells = [cut(row[0], widths[0]), *row[1:]]
        padded = [c.ljust(w) if i in _LEFT else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        lines.append("  ".join(padded).rstrip())
    return lines


def cut(text: str, width: int) -> str:
    """Return the text on one line, cut to ``width`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: max(width - 3, 1)] + "..."


def micros(seconds: float) -> str:
    """Format seconds as microseconds with three digits."""
    amount = seconds * 1e6
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}" if amount >= 1e-3 else "0"


def byte_size(size: float) -> str:
    """Format a size in bytes with a unit and three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
