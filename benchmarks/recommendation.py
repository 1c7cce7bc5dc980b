"""All figures of recommendation, with one command: python -m benchmarks.recommendation [--form] [--only PART ...]

| part | what | module |
|---|---|---|
| storage | files, reader, Criteo | recommendation_storage |
| dedup | groups: building them, predicted factors, ``dedup("auto")`` where it cannot pay | dedup |
| formats | predicted and achieved factor of every reader's format | recommendation_formats |
| training | steps, memory, exactness, ranks | recommendation_training |
| hot | frequent rows in memory, or on every rank, against whole tables, emulated | recommendation_hot |
| quality | AUC against the planted model; sessions against rows shuffled globally | recommendation_quality |
| whole | rows per second from files to weights, against DataLoader with torch, with torchrec | recommendation_whole |

Each part runs in its own process: none inherits threads, caches or memory of another.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness import ROOT, Figure, Form, add_form, environment, show, write

PARTS = {
    "storage": "recommendation_storage", "dedup": "dedup", "formats": "recommendation_formats",
    "training": "recommendation_training", "hot": "recommendation_hot", "quality": "recommendation_quality",
    "whole": "recommendation_whole",
}  # fmt: skip
SEPARATE = ("storage", "training")  # have their own command: the tiny form leaves them to it


def measured(part: str, form: Form) -> list[Figure]:
    """The figures of a part, measured in this process."""
    module = importlib.import_module(f"benchmarks.{PARTS[part]}")
    if hasattr(module, "figures"):
        return list(module.figures(form))
    return [figure for name in module.PARTS for figure in getattr(module, name)(form)]


def apart(part: str, form: Form) -> list[Figure]:
    """The same, measured in its own process.

    Raises:
        RuntimeError: the part failed; its own error is on stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.recommendation", "--measure", part, str(path)]
        code = subprocess.run(command + form.option, cwd=ROOT, env=environment(), check=False).returncode
        if code:
            raise RuntimeError(f"the part {part!r} ended with code {code}")
        return [Figure(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table a part, write benchmarks/out/recommendation.json; 1 if a target was missed, 2 if a part
    failed.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_form(parser, "small inputs, few rounds: minutes")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--measure", nargs=2, metavar=("PART", "FILE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.measure:
        part, path = chosen.measure
        Path(path).write_text(json.dumps([asdict(f) for f in measured(part, chosen.form)]), encoding="utf-8")
        return 0
    every = tuple(PARTS)
    parts = tuple(chosen.only or chosen.form.pick(every, every, tuple(p for p in every if p not in SEPARATE)))
    figures: list[Figure] = []
    failed = []
    for part in parts:
        began = time.perf_counter()
        try:
            found = apart(part, chosen.form)
        except RuntimeError as error:
            failed.append(part)
            print(f"error: {error}", file=sys.stderr)
            continue
        took = time.perf_counter() - began
        show(f"recommendation, {part}{chosen.form.label}, {took:.0f} s", found)
        figures += found
        name = "recommendation" if parts == every else "recommendation_part"
        path = write(name, figures)  # after each part: what was measured is not lost
    if figures:
        met = [figure.met for figure in figures if figure.met is not None]
        print(f"{sum(met)} of {len(met)} targets were met; {path}")
    return 2 if failed else int(chosen.form is not Form.TINY and any(figure.met is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
