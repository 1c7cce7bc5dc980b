"""``python -m benchmarks.peers``: ours against every peer. docs/benchmarks.md tells how to read it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks.harness import OUT
from benchmarks.peers import entry as entries_module
from benchmarks.peers import workload as workloads_module
from benchmarks.peers.suite import Settings, measure

FORMS = {"tiny": 0, "quick": 1, "full": 2}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a row is wrong or a figure is missed."""
    chosen = parser().parse_args(arguments)
    known_workloads, known_entries = workloads_module.workloads(), entries_module.entries()
    problem = unknown("workload", chosen.only, known_workloads) or unknown("peer", chosen.peers, known_entries)
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    if chosen.list:
        print("workloads: " + ", ".join(known_workloads))
        print("peers: " + ", ".join(known_entries))
        return 0
    form = "full" if chosen.full else "tiny" if chosen.tiny else "quick"
    settings = Settings(
        form=FORMS[form],
        rounds=chosen.rounds or {"tiny": 1, "quick": 2, "full": 5}[form],
        seconds=chosen.seconds or {"tiny": 60.0, "quick": 60.0, "full": 300.0}[form],
        here=chosen.here,
        own_data=chosen.data,
        out=chosen.out,
        environments=chosen.environments,
        tuned_only=form == "quick" and not chosen.all_settings,
        page=chosen.page,
    )
    names = chosen.only or list(known_workloads)
    peers = chosen.peers or list(known_entries)
    return measure(
        {name: known_workloads[name] for name in names}, {name: known_entries[name] for name in peers}, settings
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.peers", description=__doc__)
    made.add_argument("--only", type=listed, metavar="A,B", help="these workloads")
    made.add_argument(
        "--peers", type=listed, metavar="A,B", help="these entries; cedar is ours, limits the parts alone"
    )
    made.add_argument("--rounds", type=int, help="how often each runs (default: 2, full 5)")
    made.add_argument("--full", action="store_true", help="more rows, more rounds, every setting")
    made.add_argument("--tiny", action="store_true", help="a few rows, to see whether all runs; targets do not count")
    made.add_argument("--all-settings", action="store_true", help="documented settings in the quick form, too")
    made.add_argument("--here", action="store_true", help="peers of this environment only; install nothing")
    made.add_argument("--data", type=Path, metavar="DIR", help="your own .jpg, .wav/.flac and .txt files")
    made.add_argument("--seconds", type=float, help="limit of a run")
    made.add_argument("--out", type=Path, default=OUT / "peers", help="where results, inputs and environments go")
    made.add_argument(
        "--environments", type=Path, metavar="DIR", help="where environments are kept (default: in --out)"
    )
    made.add_argument(
        "--page", type=Path, metavar="FILE", help="a page with a part for the tables: docs/benchmarks_tables.md"
    )
    made.add_argument("--list", action="store_true", help="name workloads and peers")
    return made


def listed(text: str) -> list[str]:
    return [name for name in text.replace(" ", ",").split(",") if name]


def unknown(what: str, given: Sequence[str] | None, known: Collection[str]) -> str:
    strange = [name for name in given or () if name not in known]
    return f"there is no {what} {strange[0]!r}; there are {', '.join(known)}" if strange else ""


if __name__ == "__main__":
    sys.exit(main())
