"""What a run comes to: a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def summary(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What to say of a metrics file: pairs of words.

    Example:
        >>> line = {"step": 0, "rows": 10, "loss": 0.5, "seconds": 2.0, "waited": 1.0, "looked_up": 40, "sent": {}}
        >>> summary([line | {"held_out": None}])[:3]
        [('steps', '1'), ('rows/s', '5'), ('waited for data', '50%')]
    """
    seconds = sum(line["seconds"] for line in lines) or 1.0
    last = lines[-min(20, len(lines)) :]
    found = [
        ("steps", f"{len(lines):,}"),
        ("rows/s", f"{sum(line['rows'] for line in lines) / seconds:,.0f}"),
        ("waited for data", f"{sum(line['waited'] for line in lines) / seconds:.0%}"),
        ("ids looked up in a step", f"{fmean(line['looked_up'] for line in lines):,.0f}"),
        (f"loss over the last {len(last)} steps", f"{fmean(line['loss'] for line in last):.4f}"),
    ]
    phases = list(dict.fromkeys(phase for line in lines for phase in line["sent"]))
    found += [
        (f"{phase}, kB a step", f"{fmean(line['sent'].get(phase, 0) for line in lines) / 1000:,.1f}")
        for phase in phases
    ]
    scores = next((line["held_out"] for line in reversed(lines) if line["held_out"]), None)
    if scores:
        found += [
            ("held out: loss", f"{scores['loss']:.4f}"),
            ("held out: AUC", f"{scores['auc']:.4f}"),
            ("held out: normalised entropy", f"{scores['entropy']:.4f}"),
        ]
    return found


def table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """The same, to be printed."""
    from rich.table import Table

    found = Table(show_header=False)
    found.add_column(justify="left")
    found.add_column(justify="right")
    for what, value in summary(lines):
        found.add_row(what, value)
    return found
