"""What every benchmark shares: contenders in their own processes, interleaved rounds, medians, JSON, a table.

Figures of two runs cannot be compared, so contenders are run in turns, round by round, and a ratio is the median of the
ratios within the rounds. CPU seconds stand next to wall time: they tell work saved from work spread over cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

ROOT = Path(__file__).resolve().parents[1]
OUT = Path(os.environ.get("CEDAR_BENCHMARKS_OUT") or ROOT / "benchmarks" / "out")
How = Literal["measured", "emulated", "simulated"]
T = TypeVar("T")

# ---- how much is measured --------------------------------------------------------------------------------------------


class Form(IntEnum):
    """How much a benchmark measures: everything; less, in minutes; or just enough, in seconds, to show that it runs."""

    FULL, QUICK, TINY = 0, 1, 2

    def pick(self, full: T, quick: T, tiny: T | None = None) -> T:
        """A size of this form; the tiny form takes that of the quick one unless it has its own."""
        return (full, quick, quick if tiny is None else tiny)[self]

    @property
    def option(self) -> list[str]:
        """What the command line says for it."""
        return ["--" + self.name.lower()] * bool(self)

    @property
    def label(self) -> str:
        """For a title."""
        return f" ({self.name.lower()})" * bool(self)


def add_form(parser: argparse.ArgumentParser, quick: str = "") -> None:
    """``--quick``, described by ``quick`` where the benchmark has such a form, and ``--tiny``; gives ``form``."""
    how: dict[str, Any] = {"action": "store_const", "dest": "form", "default": Form.FULL}
    if quick:
        parser.add_argument("--quick", const=Form.QUICK, help=quick, **how)
    parser.add_argument("--tiny", const=Form.TINY, help="seconds, to see whether everything runs: exits with 0", **how)


# ---- figures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A row of the result: the median of what was measured, its range, and the target."""

    what: str
    target: str | None
    measured: float
    unit: str
    met: bool | None
    how: How = "measured"
    low: float | None = None
    high: float | None = None
    note: str = ""


def at_most(
    what: str, limit: float, values: Sequence[float], unit: str, *, how: How = "measured", note: str = ""
) -> Figure:
    """A figure that should stay at or below ``limit``."""
    middle = statistics.median(values)
    return Figure(what, f"<= {limit:g}", middle, unit, middle <= limit, how, min(values), max(values), note)


def at_least(
    what: str, limit: float, values: Sequence[float], unit: str, *, how: How = "measured", note: str = ""
) -> Figure:
    """A figure that should reach ``limit``."""
    middle = statistics.median(values)
    return Figure(what, f">= {limit:g}", middle, unit, middle >= limit, how, min(values), max(values), note)


def reported(what: str, values: Sequence[float], unit: str, *, how: How = "measured", note: str = "") -> Figure:
    """A figure without a target."""
    return Figure(what, None, statistics.median(values), unit, None, how, min(values), max(values), note)


# ---- contenders in their own processes ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """One run: wall and CPU seconds (children of the process included), and what the contender says of it."""

    wall: float
    cpu: float
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Rows per second."""
        return float(self.result["rows"]) / self.wall


class Contender:
    """A function in its own process, called repeatedly: imports and warm-up cost the first call only.

    Args:
        target: ``module:function``; called once with ``arguments`` it prepares and returns the function to be timed,
            which returns a dict.
        arguments: plain JSON.
        cores: how many cores the process may use; None for all.
    """

    def __init__(self, target: str, *arguments: Any, cores: int | None = None) -> None:
        self.target = target
        command = [sys.executable, "-m", "benchmarks.child", target, json.dumps(arguments), json.dumps(cores)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> None:
        """Begin a run; ``finish`` waits for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"run\n")
        self.process.stdin.flush()

    def finish(self) -> Sample:
        """The run that was started.

        Raises:
            RuntimeError: the process ended without an answer; its own error is on stderr.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.target} ended with code {self.process.wait()}")
        return Sample(**json.loads(line))

    def run(self) -> Sample:
        self.start()
        return self.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()


def environment() -> dict[str, str]:
    """This process's, with the project importable, and no ranks."""
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(path)}


def interleaved(runs: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 1) -> dict[str, list[Any]]:
    """What each function returns in each round; the order turns from round to round, and warm-up rounds are dropped."""
    names = list(runs)
    results: dict[str, list[Any]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            result = runs[name]()
            if number >= warm_up:
                results[name].append(result)
    return results


def timed(fn: Callable[[], Any]) -> Sample:
    """A call in this process."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = fn()
    found = result if isinstance(result, dict) else {}
    return Sample(time.perf_counter() - wall, time.process_time() - cpu, found)


def ratios(upper: Sequence[float], lower: Sequence[float]) -> list[float]:
    """Of each round."""
    return [a / b for a, b in zip(upper, lower, strict=True)]


# ---- results ---------------------------------------------------------------------------------------------------------


def write(name: str, figures: Sequence[Figure]) -> Path:
    """``benchmarks/out/<name>.json``, a list of rows; the machine goes to ``<name>.machine.json``."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps([asdict(f) for f in figures], indent=1) + "\n", encoding="utf-8")
    (OUT / f"{name}.machine.json").write_text(json.dumps(machine(), indent=1) + "\n", encoding="utf-8")
    return path


def finish(title: str, name: str, figures: Sequence[Figure], form: Form) -> int:
    """Print and write the figures; the exit code: 1 if a target was missed, but in the tiny form."""
    show(title + form.label, figures)
    print(write(name, figures))
    return int(form is not Form.TINY and any(figure.met is False for figure in figures))


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else [],
        "packages": {name: _version(name) for name in ("cedar-data", "numpy", "pyarrow", "polars", "torch")},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def show(title: str, figures: Sequence[Figure]) -> None:
    """The figures as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading, side in (
        ("what", "left"),
        ("target", "right"),
        ("measured", "right"),
        ("range", "right"),
        ("", "left"),
    ):
        table.add_column(heading, justify="left" if side == "left" else "right", overflow="fold")
    table.add_column("how, note", overflow="fold", style="dim")
    for f in figures:
        mark = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[f.met]
        spread = "" if f.low is None or f.high is None or f.low == f.high else f"{_short(f.low)} to {_short(f.high)}"
        told = f"{_short(f.measured)} {f.unit}"
        table.add_row(f.what, f.target or "", told, spread, mark, f.how + (f"; {f.note}" if f.note else ""))
    Console().print(table)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
