"""Render a report as HTML: in a notebook, as a page in a file, and as the live page of a running loader."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import pairwise

from cedar.control.timeline import DATA, NO_OPERATORS
from cedar.core.printable import escape
from cedar.profile.figures import byte_size
from cedar.watch.picture import Box, svg
from cedar.watch.report import Report
from cedar.watch.trace import Shown

_STYLE = (
    ".cedar{font:14px/1.5 system-ui,sans-serif;color:#111;background:#fff;max-width:75em}"
    ".cedar table{border-collapse:collapse}.cedar td,.cedar th{text-align:left;padding:1px 12px 1px 0}"
    ".cedar td.n{text-align:right;font-variant-numeric:tabular-nums}.cedar figure{margin:0;overflow-x:auto}"
    ".cedar i{display:block;height:9px;background:#b45309}"
    "#cedar-lanes{border:1px solid #666;max-height:70vh;overflow-y:auto}#cedar-lanes:focus{outline:3px solid #1d4ed8}"
)
_WIDE, _HIGH = 720, 120  # width and height of a chart in pixels
_MAX_SPANS = 100_000  # max spans to show on a page; the latest are kept
_RATE, _WAIT, _MEMORY = "#1d4ed8", "#b91c1c", "#15803d"


def page(report: Report, spans: Sequence[Shown] = ()) -> str:
    """Return a self-contained page. If spans were recorded, it includes a timeline.

    Examples:
        >>> import cedar
        >>> loader = cedar.from_items([{"x": 1}]).loader(executor="inline")
        >>> page(loader.report()).startswith("<!doctype html>")
        True
    """
    shown = view(report)
    return _html_page(f"cedar: {report.rows:,} rows", shown + (_timeline(spans) if spans else ""))


def live(report: Report) -> str:
    """Return the live page of a served run; the page requests ``/report`` every second."""
    return _html_page(
        f"cedar: rank {report.rank} of {report.world}",
        f'<p class="cedar" role="status" id="cedar-state">running</p><div id="cedar-live">{view(report)}</div>'
        f"<script>{_script('live.js')}</script>",
    )


def _html_page(title: str, shown: str) -> str:
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,"><main>{shown}</main></html>'
    )


def _script(name: str) -> str:
    return files("cedar.watch").joinpath(name).read_text(encoding="utf-8")


def view(report: Report) -> str:
    """Return a report as HTML without the timeline."""
    others = [line for line in report.workers_time if line.label in NO_OPERATORS]
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    rest = Box(f"{others[0].label}{more} (no operators)" if others else "", ())
    seconds = report.operators | {rest.label: sum(line.seconds for line in others)}
    total = sum(seconds.values()) or 1.0
    graph = [*(Box(*each) for each in report.graph), *([rest] if others else [])]
    picture = svg(graph, {label: part / total for label, part in seconds.items()}) if report.graph else ""
    workers = sum(line.seconds for line in report.workers_time) or 1.0
    where = (
        f"rank {report.rank} of {report.world}, epoch {report.epoch}, step {report.step}, executor {report.executor}, "
        f"{report.workers} worker(s); plan: {report.plan}; restarts: {report.restarts}"
    )
    facts = [
        where,
        *([f"memory: {byte_size(report.memory)}, of this process and all that it started"] if report.memory else []),
        *(f"skipped {count:,} row(s) in {label}" for label, count in report.skipped.items()),
        *(f"skipped of {url} {lost}" for url, lost in report.skipped_files.items()),
        *(f"{names}: each row held once for {factor:.3g}" for names, factor in report.dedup.items()),
        *report.notes,
        *report.deaths,
    ]
    return (
        f'<div class="cedar"><style>{_STYLE}</style><h1>{report.rows:,} rows, {report.seconds:.2f} s</h1>'
        f"<p><b>{escape(report.summary)}</b></p><figure>{picture}"
        f"<figcaption>Percentages are shares of the {total:.2f} s in which workers worked; idle time is left out. What "
        "belongs to no operator, such as imports, is a box by itself. Operators that ran as one may have none."
        "</figcaption></figure>"
        + _chart(report)
        + _table("The trainer and its loader", report.loader_time.items(), report.seconds or 1.0)
        + _table("The workers", ((str(line), line.seconds) for line in report.workers_time), workers)
        + f"<h2>What else</h2><ul>{''.join(f'<li>{escape(fact)}</li>' for fact in facts)}</ul></div>"
    )


def _table(title: str, rows: Iterable[tuple[str, float]], total: float) -> str:
    cells = "".join(
        f'<tr><td>{escape(label)}</td><td class="n">{seconds:.3f} s</td><td class="n">{seconds / total:.0%}</td>'
        f'<td><i style="width:{200 * min(seconds / total, 1.0):.0f}px"></i></td></tr>'
        for label, seconds in rows
    )
    return f"<h2>{title}</h2><table><tr><th>what</th><th>time</th><th>share</th></tr>{cells}</table>"


def _chart(report: Report) -> str:
    """Return a chart of three figures over time: rows per second, the share of time spent waiting, and memory."""
    spans = [(a, b) for a, b in pairwise(report.history) if b[0] > a[0]]
    if not spans:
        return ""
    end = spans[-1][1][0]
    rates = [(b[0], (b[1] - a[1]) / (b[0] - a[0])) for a, b in spans]
    waits = [(b[0], min((b[2] - a[2]) / (b[0] - a[0]), 1.0)) for a, b in spans]
    memory_used = [(b[0], float(b[3])) for _, b in spans]
    most = max(rate for _, rate in rates) or 1.0
    top = max(size for _, size in memory_used)

    def line(points: list[tuple[float, float]], whole: float, color: str) -> str:
        points = [(spans[0][0][0], points[0][1]), *points]
        reported = " ".join(f"{x / end * _WIDE:.1f},{_HIGH - y / whole * (_HIGH - 4):.1f}" for x, y in points)
        return f'<polyline points="{reported}" fill="none" stroke="{color}" stroke-width="1.5"/>'

    memory = f'; <span style="color:{_MEMORY}">memory, up to {byte_size(int(top))}</span>' if top else ""
    return (
        f'<h2>Over time</h2><p><span style="color:{_RATE}">rows/s, up to {most:,.0f}</span>; '
        f'<span style="color:{_WAIT}">share of time that the trainer waited, up to 100%</span>{memory}; {end:.1f} s</p>'
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="rows per second, waiting and memory over '
        f'time" width="{_WIDE}" height="{_HIGH}">{line(rates, most, _RATE)}{line(waits, 1.0, _WAIT)}'
        f"{line(memory_used, top, _MEMORY) if top else ''}</svg>"
    )


def _timeline(shown: Sequence[Shown]) -> str:
    """Return a timeline with a lane per thread, worker and trainer, and a script that draws its visible part."""
    names: dict[str, int] = {}
    lanes: dict[str, int] = {}
    zero = min(span[2] for span in shown)
    spans: list[tuple[int, int, int, int]] = []  # lane, start, name and duration; times in microseconds
    for lane, name, start, seconds in sorted(shown, key=lambda span: span[2])[-_MAX_SPANS:]:
        numbers = lanes.setdefault(lane, len(lanes)), names.setdefault(name, len(names))
        spans.append((numbers[0], round((start - zero) * 1e6), numbers[1], round(seconds * 1e6)))
    spans.sort()
    flat = [n for span in spans for n in span]
    reported = json.dumps(
        {"names": list(names), "lanes": list(lanes), "waiting": DATA, "spans": flat}, separators=(",", ":")
    ).replace("<", "\\u003c")
    return (
        '<div class="cedar"><h2>Timeline</h2><p>Arrow keys move, + and - zoom, Home shows all; with a mouse drag, and '
        "turn the wheel with Ctrl.</p>"
        f'<div id="cedar-lanes" tabindex="0" role="application" aria-label="timeline of {len(spans):,} spans in '
        f'{len(lanes)} threads" aria-describedby="cedar-at"><canvas></canvas></div><p id="cedar-at" role="status"></p>'
        f'<script type="application/json" id="cedar-spans">{reported}</script>'
        f"<script>{_script('timeline.js')}</script></div>"
    )
