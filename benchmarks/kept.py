"""Long benchmarks in parts: what was measured is kept at once, and a benchmark that was stopped continues from there.

Single results are lines of ``benchmarks/out/<name>_runs.jsonl``, the figures of a part ``<name>.<part>.json``. The
table at the end holds all parts that were ever measured here, in the order of the benchmark; ``--fresh`` forgets them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Figure, Form


class Kept:
    """Results by their names.

    Args:
        name: of the benchmark.
        fresh: forget what is there.
        minutes: after so many nothing new is begun.
    """

    def __init__(self, name: str, *, fresh: bool = False, minutes: float = float("inf")) -> None:
        harness.OUT.mkdir(parents=True, exist_ok=True)
        self.path = harness.OUT / f"{name}_runs.jsonl"
        if fresh:
            self.path.unlink(missing_ok=True)
        self.end = time.monotonic() + 60 * minutes
        self.found: dict[str, Any] = {}
        for plain in whole_lines(self.path):
            self.found[plain["what"]] = plain["result"]

    @property
    def over(self) -> bool:
        """No time is left."""
        return time.monotonic() > self.end

    def get(self, what: str, make: Callable[[], Any]) -> Any:
        """The result of that name, which is JSON; made now if it is not there."""
        if what not in self.found:
            self.found[what] = json.loads(json.dumps(make()))
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"what": what, "result": self.found[what]}) + "\n")
        return self.found[what]

    def some(self, makes: Mapping[str, Callable[[], Any]]) -> list[Any]:
        """The results of these names that are there, or can be made before time is up; at least one."""
        found: list[Any] = []
        for what, make in makes.items():
            if what in self.found or not found or not self.over:
                found.append(self.get(what, make))
        return found


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON that is about to be appended to; one that was cut off is taken out of it."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if not text.endswith("\n") and text:
        text = text[: text.rfind("\n") + 1]
        path.write_text(text, encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; the tiny form shows that everything runs now, so nothing of it is kept."""
    chosen = parser.parse_args(arguments)
    chosen.fresh = chosen.fresh or chosen.form is Form.TINY
    return chosen


def suffix(form: Form) -> str:
    """Of the names of files with figures of this form."""
    return f"_{form.name.lower()}" * bool(form)


def add_arguments(parser: argparse.ArgumentParser, parts: Sequence[str], name: str) -> None:
    """What every benchmark in parts takes."""
    harness.add_form(parser, "fewer and smaller runs: minutes")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, metavar="PART", help=", ".join(parts))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing new after so many")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before, as --tiny always does")
    parser.add_argument("--name", default=name, help="of the files in benchmarks/out")


def measure(
    title: str, name: str, parts: Mapping[str, Callable[[], Sequence[Figure]]], only: Sequence[str], *,
    form: Form = Form.FULL, fresh: bool = False,
) -> int:  # fmt: skip
    """Measure parts, keep each, print the table of all; 1 if a target was missed.

    Args:
        title: of the table.
        name: of the files.
        parts: all there are, in the order of the table.
        only: which of them are measured now.
        form: its figures are kept separately from those of other forms.
        fresh: forget the figures of the other parts.
    """
    name += suffix(form)
    harness.OUT.mkdir(parents=True, exist_ok=True)
    rows: list[Figure] = []
    for part, work in parts.items():
        path = harness.OUT / f"{name}.{part}.json"
        if fresh:
            path.unlink(missing_ok=True)
        if part in only:
            start = time.perf_counter()
            path.write_text(json.dumps([asdict(figure) for figure in work()], indent=1) + "\n", encoding="utf-8")
            print(f"{part}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        if path.exists():
            rows += [Figure(**plain) for plain in json.loads(path.read_text(encoding="utf-8"))]
    return harness.finish(title, name, rows, form)
