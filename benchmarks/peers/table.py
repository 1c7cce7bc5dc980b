"""Runs to lines of a table: medians with ranges, ratios within rounds, Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.harness import Figure
from benchmarks.peers.rounds import Run

OURS = "cedar"


@dataclass(frozen=True)
class Line:
    """A contestant of a workload. ``rates`` and ``cpu_rates`` are by round."""

    entry: str
    setting: str
    limit: bool = False
    problem: str = ""
    rates: Mapping[int, float] = field(default_factory=dict)
    cpu_rates: Mapping[int, float] = field(default_factory=dict)
    first_epoch_rate: float = 0.0
    first_from_iter: float = 0.0
    first_from_start: float = 0.0
    resident: float = 0.0
    proportional: float = 0.0
    size: float | None = None

    @property
    def rate(self) -> float:
        return statistics.median(self.rates.values()) if self.rates else 0.0

    @property
    def cpu_rate(self) -> float:
        return statistics.median(self.cpu_rates.values()) if self.cpu_rates else 0.0

    @property
    def title(self) -> str:
        return f"{self.entry}, {self.setting}" if self.setting else self.entry


def line(runs: Sequence[Run], *, limit: bool = False, wrong: str = "", size: float | None = None) -> Line:
    """A contestant's runs. A run that failed, or rows that are wrong, make it no contestant."""
    problem = next((run.answer.problem for run in runs if run.answer.problem), "") or (
        f"wrong: {wrong}" if wrong else ""
    )
    good = [run for run in runs if not run.answer.problem]
    if not good:
        return Line(runs[0].entry, runs[0].setting, limit, problem, size=size)
    answers = [run.answer for run in good]
    middle = statistics.median
    return Line(
        entry=good[0].entry,
        setting=good[0].setting,
        limit=limit,
        problem=problem,
        rates={run.round: run.rate for run in good},
        cpu_rates={run.round: run.cpu_rate for run in good},
        first_epoch_rate=middle(a.first_epoch_rows / a.first_epoch_wall for a in answers),
        first_from_iter=middle(a.first_from_iter for a in answers),
        first_from_start=middle(a.first_from_start for a in answers),
        resident=middle(run.resident for run in good),
        proportional=middle(run.proportional for run in good),
        size=size,
    )


def matched(upper: Mapping[int, float], lower: Mapping[int, float]) -> list[float]:
    """The ratio of each round that both have; of the medians where they share none."""
    shared = [upper[turn] / lower[turn] for turn in upper if lower.get(turn)]
    return shared or [statistics.median(upper.values()) / statistics.median(lower.values())]


HEADINGS = (
    "contestant", "rate", "vs DataLoader", "vs cedar", "per CPU second", "first epoch", "first batch s (iter / start)",
    "peak RSS / PSS MB", "install MB", "",
)  # fmt: skip


def against_dataloader(title: str, unit: str, lines: Sequence[Line]) -> str:
    """One line: our rate, and how many times that of DataLoader with two workers as documented and with its best."""
    found = {x.setting: x for x in lines if x.entry == "DataLoader" and x.rates and not x.problem}
    ours = next((x for x in lines if x.entry == OURS and x.setting == "auto" and x.rates and not x.problem), None)
    if ours is None:
        return f"- {title}: cedar did not run"
    told = [
        f"{_against(ours, found[setting])} times DataLoader {how} ({_number(found[setting].rate)})"
        for setting, how in (("2 workers", "with 2 workers"), ("tuned", "tuned"))
        if setting in found
    ]
    return f"- {title}: cedar {_number(ours.rate)} {unit}/s; " + (", ".join(told) or "DataLoader did not run")


def markdown(title: str, unit: str, lines: Sequence[Line]) -> str:
    """The table of a workload, fastest first; what failed comes last."""
    loaders = [x for x in lines if x.entry == "DataLoader" and not x.problem]
    loader = max(loaders, key=lambda x: x.rate, default=None)
    ours = next((x for x in lines if x.entry == OURS and x.setting == "auto" and not x.problem), None)
    rows = [
        f"## {title} ({unit}/s)",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
    ]
    for x in sorted(lines, key=lambda x: (bool(x.problem), -x.rate)):
        name = f"**{x.title}**" if x.entry == OURS else x.title
        if not x.rates:
            rows.append(f"| {name} |" + " |" * 6 + f" {_size(x)} | {x.problem} |".replace("|  |", "| |"))
            continue
        rows.append(
            "| "
            + " | ".join(
                (
                    name,
                    _range(x.rates),
                    _against(x, loader),
                    _against(x, ours),
                    _number(x.cpu_rate),
                    _number(x.first_epoch_rate),
                    "-" if x.limit else f"{x.first_from_iter:.2f} / {x.first_from_start:.2f}",
                    f"{x.resident:,.0f} / {x.proportional:,.0f}",
                    _size(x),
                    x.problem,
                )
            )
            + " |"
        )
    return "\n".join(rows) + "\n"


def figures_markdown(figures: Sequence[Figure]) -> str:
    """The figures that ours should reach."""
    rows = ["## Figures", "", "| what | target | measured | range | |", "|---|---|---|---|---|"]
    for f in figures:
        mark = {True: "pass", False: "miss", None: ""}[f.met]
        spread = "" if f.low is None or f.high is None or f.low == f.high else f"{f.low:,.3g} to {f.high:,.3g}"
        rows.append(f"| {f.what} | {f.target or ''} | {f.measured:,.3g} {f.unit} | {spread} | {mark} |")
    return "\n".join(rows) + "\n"


def _against(x: Line, other: Line | None) -> str:
    return "-" if other is None else f"{statistics.median(matched(x.rates, other.rates)):.2f}"


def _range(values: Mapping[int, float]) -> str:
    middle = _number(statistics.median(values.values()))
    return middle if len(values) == 1 else f"{middle} ({_number(min(values.values()))}-{_number(max(values.values()))})"


def _size(x: Line) -> str:
    return "-" if x.size is None else f"{x.size:,.0f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
