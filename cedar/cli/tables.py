"""Tables in a terminal, plain text in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from cedar.engine.metrics import Report
    from cedar.profile import Profile


def show(found: Any, as_table: Callable[[Any], Any]) -> None:
    """Print a profile or a report: as a table where somebody looks, as its own text elsewhere."""
    if not sys.stdout.isatty():
        print(found)
        return
    from rich.console import Console

    Console().print(as_table(found))


@contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr while something runs, in a terminal; gives a function that changes it."""
    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(text)) as line:
        yield lambda new: line.update(Text(new))


def profile_table(profile: Profile) -> Table:
    """One operator a row, the costliest in bold."""
    header, *rows = profile.cells()
    told = profile.table().splitlines()[len(rows) + 1 :]
    costliest = max(profile.operators.values(), key=lambda figures: figures.seconds, default=None)
    operators = [figures for _, figures in sorted(profile.operators.items())]
    return _table(header, rows, [figures is costliest for figures in operators], told, "lrrrrrr")


def report_table(report: Report) -> Table:
    """What workers did, a part a row, most first; the rest of the report below."""
    total = sum(line.seconds for line in report.workers_time) or 1.0
    rows = [(str(line), f"{line.seconds:.3f}", f"{line.seconds / total:.0%}") for line in report.workers_time]
    told = [line for line in str(report).splitlines() if not line.startswith("  ")]
    told += [f"skipped {count:,} row(s) in {label}" for label, count in report.skipped.items()]
    return _table(("workers", "seconds", "share"), rows, [i == 0 for i in range(len(rows))], told, "lrr")


def _table(header: Any, rows: Any, bold: list[bool], told: list[str], sides: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(caption=Text("\n".join(told)), caption_justify="left")
    for name, side in zip(header, sides, strict=True):
        table.add_column(Text(name), justify="left" if side == "l" else "right")
    for row, strong in zip(rows, bold, strict=True):
        table.add_row(*(Text(cell) for cell in row), style="bold" if strong else None)
    return table
