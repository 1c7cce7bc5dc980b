"""Convert a report to JSON values, which traces store, and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cedar.control.timeline import Line
from cedar.watch.report import Report


def to_json(report: Report) -> dict[str, Any]:
    """Return the report as values that ``json.dumps`` accepts.

    Examples:
        >>> import cedar
        >>> report = cedar.from_items([{"x": 1}]).loader(executor="inline").report()
        >>> from_json(to_json(report)) == report
        True
    """
    values = {each.name: getattr(report, each.name) for each in fields(report) if each.name != "metrics"}
    return values | {"workers_time": [[line.label, line.seconds, line.shares] for line in report.workers_time]}


def from_json(saved: Any) -> Report:
    """Rebuild a report from the output of ``to_json``. The values may come from an untrusted file.

    Raises:
        ValueError: the values are not a valid report.
    """
    try:
        lines = tuple(Line(str(a), float(b), _shares(c)) for a, b, c in saved["workers_time"])
        recovery = saved["recovery"]
        return Report(
            workers_time=lines,
            recovery=None if recovery is None else float(recovery),
            notes=tuple(map(str, saved["notes"])),
            deaths=tuple(map(str, saved["deaths"])),
            graph=_graph(saved["graph"]),
            history=tuple((float(a), int(b), float(c), int(d)) for a, b, c, d in saved["history"]),
            **_plain(saved),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"invalid report: {type(error).__name__}: {error}") from error


def _plain(saved: Any) -> dict[str, Any]:
    """Return the fields with plain types: numbers, strings, and numbers by name."""
    kinds: dict[Any, Any] = {"int": int, "float": float, "str": str}
    kinds |= dict.fromkeys(("dict[str, float]", "dict[str, int]"), _shares)
    return {each.name: kinds[each.type](saved[each.name]) for each in fields(Report) if each.type in kinds}


def _shares(saved: Any) -> dict[str, Any]:
    return {str(name): value + 0 for name, value in saved.items()}


def _graph(saved: Any) -> tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...]:
    graph = tuple((str(label), tuple(map(int, inputs)), tuple(map(str, notes))) for label, inputs, notes in saved)
    if any(not 0 <= i < at for at, (_, inputs, _) in enumerate(graph) for i in inputs):
        raise ValueError("an operator has an input after itself")
    return graph
