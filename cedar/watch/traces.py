"""Read trace files, show them as a page, and merge several with a common clock."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from cedar.core.errors import PipelineError, writing
from cedar.watch.page import page
from cedar.watch.saved import from_json
from cedar.watch.trace import BASE, spans_of

_WRITES = "loader(trace=FILE) writes one"


def view_trace(path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> str:
    """Write a run's trace as a self-contained HTML page, like that of ``loader.report().html``.

    Args:
        path: the file from ``loader(trace=path)`` or ``cedar trace``.
        out: the page to write; by default, the trace's path with the extension ``.html``.

    Returns:
        The page's path.

    Raises:
        PipelineError: the file cannot be read or is not a cedar trace, or the page cannot be written.

    Examples:
        >>> import cedar
        >>> with cedar.from_items([{"x": 1}]).batch(1).loader(trace="run.json") as loader:
        ...     rows = list(loader)
        >>> cedar.view_trace("run.json")
        'run.html'
    """
    path = os.fspath(path)
    trace = _read(path)
    try:
        shown = page(from_json(trace.get("cedar")), spans_of(trace["traceEvents"]))
    except ValueError as error:
        raise PipelineError(f"{path} is not a trace of cedar: {error}", fix=_WRITES) from error
    out = f"{os.path.splitext(path)[0]}.html" if out is None else os.fspath(out)
    with writing(out), open(out, "w", encoding="utf-8", errors="xmlcharrefreplace") as file:
        file.write(shown)
    return out


def merge_traces(out: str | os.PathLike[str], paths: Sequence[str | os.PathLike[str]]) -> None:
    """Merge traces into one file with a common clock, for Perfetto.

    Args:
        out: the file to write.
        paths: traces of cedar and of ``torch.profiler`` (``export_chrome_trace``), all from one machine.

    Raises:
        PipelineError: a trace cannot be read or lacks its base time or an event's time, or the file cannot be
            written.

    Examples:
        >>> import cedar
        >>> for name in "ab":
        ...     with cedar.from_items([{"x": 1}]).batch(1).loader(trace=f"{name}.json") as loader:
        ...         rows = list(loader)
        >>> cedar.merge_traces("both.json", ["a.json", "b.json"])
    """
    base, events = None, []
    for path in [os.fspath(each) for each in paths]:
        trace = _read(path)
        began = trace.get(BASE)
        if not isinstance(began, int):
            raise PipelineError(f"{path} has no base time", fix=f"use a trace that has {BASE!r}")
        base = began if base is None else base
        try:
            later = (began - base) / 1000
            events += [
                event | {"ts": event["ts"] + later} if "ts" in event else event for event in trace["traceEvents"]
            ]
        except (TypeError, OverflowError) as error:
            raise PipelineError(f"{path} has an event with no time: {error}", fix="ts must be a number") from error
    with writing(os.fspath(out)), open(out, "w", encoding="utf-8") as file:
        json.dump({"displayTimeUnit": "ms", BASE: base, "traceEvents": events}, file)


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise PipelineError(f"{path} cannot be read: {error}", fix="expected a JSON file") from error
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise PipelineError(f"{path} is not a trace", fix=_WRITES)
    return dict(trace)
