"""Print tables in a terminal, and plain text into a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from cedar.core.printable import one_line, printable

if TYPE_CHECKING:
    from rich.table import Table

    from cedar.profile import Profile
    from cedar.watch.report import Report


def show(shown: Any, as_table: Callable[[Any], Any]) -> None:
    """Print a profile or a report: as a table in a terminal, as plain text otherwise."""
    if not sys.stdout.isatty():
        print(shown)
        return
    from rich.console import Console

    Console().print(as_table(shown))


@contextmanager
def status(text: str) -> Iterator[Callable[[str], None]]:
    """Show a status line on stderr, in a terminal, while the block runs. Yields a function that changes the line."""
    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(text)) as line:
        yield lambda new: line.update(Text(new))


def profile_table(profile: Profile) -> Table:
    """Return a table with one operator per row, the slowest in bold."""
    header, *rows = profile.cells()
    reported = profile.table().splitlines()[len(rows) + 1 :]
    costliest = max(profile.operators.values(), key=lambda figures: figures.seconds, default=None)
    operators = [figures for _, figures in sorted(profile.operators.items())]
    return table(header, rows, ["bold" * (figures is costliest) for figures in operators], reported)


def report_table(report: Report) -> Table:
    """Return a table of how workers spent their time, sorted by time, with the rest of the report below."""
    total = sum(line.seconds for line in report.workers_time) or 1.0
    rows = [(str(line), f"{line.seconds:.3f}", f"{line.seconds / total:.0%}") for line in report.workers_time]
    reported = str(replace(report, workers_time=())).splitlines()
    return table(("workers", "seconds", "share"), rows, ["bold"], reported)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = (), reported: Sequence[str] = (),
    title: str | None = None,
) -> Table:  # fmt: skip
    """Return a table with a left-aligned first column. ``styles``: for the first rows. ``reported``: the caption."""
    from rich.table import Table
    from rich.text import Text

    made = Table(
        title=title, title_justify="left", caption=Text(printable("\n".join(reported))), caption_justify="left"
    )
    for at, name in enumerate(header):
        made.add_column(Text(one_line(name)), justify="right" if at else "left")
    for row, style in zip(rows, chain(styles, repeat("")), strict=False):
        made.add_row(*map(Text, map(one_line, row)), style=style)
    return made
