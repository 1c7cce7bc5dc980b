"""A report as HTML: in a notebook, and as a page of its own."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from cedar.engine.metrics import Report
from cedar.report.picture import Box, svg

_STYLE = (
    ".cedar{font:14px/1.5 system-ui,sans-serif;color:#111;background:#fff;max-width:75em}"
    ".cedar table{border-collapse:collapse}.cedar td,.cedar th{text-align:left;padding:1px 12px 1px 0}"
    ".cedar td.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".cedar i{display:block;height:9px;background:#b45309}"
)
_WIDE, _HIGH = 720, 120  # pixels of a curve


def view(report: Report) -> str:
    """All of a report; needs nothing from a network."""
    total = sum(report.operators.values()) or 1.0
    shares = {label: seconds / total for label, seconds in report.operators.items()}
    workers = sum(line.seconds for line in report.workers_time) or 1.0
    where = (
        f"rank {report.rank} of {report.world}, epoch {report.epoch}, executor {report.executor}, "
        f"{report.workers} worker(s); plan: {report.plan}; restarts: {report.restarts}"
    )
    facts = [
        where,
        *(f"skipped {count:,} row(s) in {label}" for label, count in report.skipped.items()),
        *(f"{names}: each row held once for {factor:.3g}" for names, factor in report.dedup.items()),
        *report.notes,
        *report.deaths,
    ]
    return (
        f'<div class="cedar"><style>{_STYLE}</style><h2>{report.rows:,} rows, {report.seconds:.2f} s</h2>'
        f"<p><b>{escape(report.summary)}</b></p>"
        + (svg([Box(label, inputs) for label, inputs in report.graph], shares) if report.graph else "")
        + _curve(report)
        + _table("The trainer and its loader", report.loader_time.items(), report.seconds or 1.0)
        + _table("The workers", ((str(line), line.seconds) for line in report.workers_time), workers)
        + f"<ul>{''.join(f'<li>{escape(fact)}</li>' for fact in facts)}</ul></div>"
    )


def _table(title: str, rows: Iterable[tuple[str, float]], total: float) -> str:
    cells = "".join(
        f'<tr><td>{escape(label)}</td><td class="n">{seconds:.3f} s</td><td class="n">{seconds / total:.0%}</td>'
        f'<td><i style="width:{200 * min(seconds / total, 1.0):.0f}px"></i></td></tr>'
        for label, seconds in rows
    )
    return f"<h3>{title}</h3><table><tr><th>what<th>time<th>share<th></tr>{cells}</table>"


def _curve(report: Report) -> str:
    """Rows per second over time, and below it the share of time in which the trainer waited."""
    spans = [(a, b) for a, b in zip(report.history, report.history[1:], strict=False) if b[0] > a[0]]
    if not spans:
        return ""
    end = spans[-1][1][0]
    rates = [(b[0], (b[1] - a[1]) / (b[0] - a[0])) for a, b in spans]
    waits = [(b[0], min((b[2] - a[2]) / (b[0] - a[0]), 1.0)) for a, b in spans]
    most = max(rate for _, rate in rates) or 1.0

    def line(points: list[tuple[float, float]], whole: float, color: str) -> str:
        told = " ".join(f"{x / end * _WIDE:.1f},{_HIGH - y / whole * (_HIGH - 4):.1f}" for x, y in points)
        return f'<polyline points="{told}" fill="none" stroke="{color}" stroke-width="1.5"/>'

    return (
        f'<h3>Over time</h3><p><span style="color:#1d4ed8">rows/s, up to {most:,.0f}</span>; '
        f'<span style="color:#b91c1c">share of time that the trainer waited, up to 100%</span>; {end:.1f} s</p>'
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="rows per second and waiting over time" '
        f'width="{_WIDE}" height="{_HIGH}">{line(rates, most, "#1d4ed8")}{line(waits, 1.0, "#b91c1c")}</svg>'
    )
