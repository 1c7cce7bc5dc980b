"""``cedar bench``: compares cedar with the other loaders that are installed in this environment.

Its benchmarks are only in a checkout of the repository, not in the installed package.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import cedar
from cedar import CedarError
from cedar.cli.arguments import command, count

if TYPE_CHECKING:
    from cedar.cli.arguments import Adder


def add(adder: Adder) -> None:
    """Register the command."""
    about = """Compare with the peers that are installed in this environment. Needs a checkout of the project;
`make bench` gives every peer its own environment."""
    examples = ["--only clicklog,python_map", "--peers cedar,dataloader --data my_photos"]
    bench = command(adder, "bench", "compare with the other loaders that are installed", bench_here, examples, about)
    bench.add_argument("--only", metavar="A,B", help="only these workloads")
    bench.add_argument("--peers", metavar="A,B", help="only these entries; limits measures single parts alone")
    bench.add_argument("--rounds", type=count, metavar="N", help="runs of each workload (default: 2, with --full 5)")
    bench.add_argument("--full", action="store_true", help="more rows, more rounds, every setting")
    bench.add_argument("--data", metavar="DIR", help="your own .jpg, .wav, .flac and .txt files")
    bench.add_argument("--out", metavar="DIR", help="folder for results and inputs (default: benchmarks/out/peers)")
    bench.add_argument("--list", action="store_true", help="list workloads and peers")


def bench_here(chosen: argparse.Namespace) -> int:
    """``cedar bench``. Exit status 1: a loader returned an incorrect row; 2: an argument is invalid."""
    root = checkout()
    command = [sys.executable, "-m", "benchmarks.peers", "--here", "--all-settings"]
    for name in ("only", "peers", "rounds"):
        if (value := getattr(chosen, name)) is not None:
            command += [f"--{name}", str(value)]
    for name in ("data", "out"):
        if (value := getattr(chosen, name)) is not None:
            command += [f"--{name}", str(Path(value).resolve())]
    command += [f"--{name}" for name in ("full", "list") if getattr(chosen, name)]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": path}, check=False).returncode  # noqa: S603


def checkout() -> Path:
    """Return the folder that contains the package and its benchmarks.

    Raises:
        CedarError: the package is installed without benchmarks.
    """
    root = Path(cedar.__file__).resolve().parents[1]
    if not (root / "benchmarks" / "peers" / "__main__.py").is_file():
        raise CedarError(
            f"cedar bench needs a checkout: there is no benchmarks/peers next to {Path(cedar.__file__).parent}",
            fix="clone the project, then `pip install -e .` and `cedar bench` there, or `make bench` for every peer",
        )
    return root
