"""A virtual environment for each peer, from the package index, at pinned versions, made once.

``pins/NAME.txt`` holds every version of an environment; it is rebuilt when that file changes. Where there is no such
file (a new peer), the entry's requirements decide, and what came of them is written next to the environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.entry import Entry

PINS = Path(__file__).with_name("pins")
# What the workloads' functions need, the same versions in every environment unless a peer refuses one.
OPERATORS = (
    "numpy==2.4.6",
    "pyarrow==26.0.1",
    "opencv-python-headless==5.0.0.93",
    "simplejpeg==1.9.0",
    "soundfile==0.14.0",
    "soxr==1.1.0",
    "tokenizers==0.23.3",
    "pillow==13.0.0",
    "scipy==1.17.1",
)
INSTALL_LIMIT = 1800  # seconds
# What the environment that runs the benchmark says of itself, ranks, and what would have every run compile again.
DROPPED = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_NUM_THREADS",
    "PYTHONDONTWRITEBYTECODE",
)  # fmt: skip


@dataclass(frozen=True)
class Environment:
    """Where an entry runs: its interpreter, or why there is none."""

    python: str | None
    problem: str = ""


def here(entry: Entry) -> Environment:
    """The environment that runs the benchmark, if the entry's library is in it."""
    try:
        found = importlib.util.find_spec(entry.module) is not None
    except ModuleNotFoundError:
        found = False
    return Environment(sys.executable) if found else Environment(None, f"{entry.module} is not installed here")


def made(entry: Entry, folder: Path) -> Environment:
    """The entry's own environment; made if it is not there yet, which takes minutes."""
    if not entry.environment:
        return here(entry)
    place = folder / entry.environment
    python = place / "bin" / "python"
    stamp = place / "pins.txt"
    wanted = requirements(entry)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return Environment(str(python))
    print(f"making the environment of {entry.name} (once; a minute or more)", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    asked = folder / f"{entry.environment}.txt"
    asked.write_text(wanted, encoding="utf-8")
    steps = [
        [sys.executable, "-m", "venv", str(place)],
        [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-compile",
            "--disable-pip-version-check",
            "-r",
            str(asked),
        ],
        # what is imported now is compiled now: the first run is not to pay for it
        [str(python), "-c", f"import numpy, cv2, pyarrow.parquet, {entry.module}"],
    ]
    for step in steps:
        try:
            done = subprocess.run(
                step, capture_output=True, text=True, timeout=INSTALL_LIMIT, check=False, env=plain_variables()
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Environment(None, f"could not be installed: {error}")
        if done.returncode:
            last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no reason was given")
            return Environment(None, f"could not be installed: {last.strip()[:200]}")
    stamp.write_text(wanted, encoding="utf-8")
    return Environment(str(python))


def requirements(entry: Entry) -> str:
    """The requirements file of an entry's environment."""
    pins = PINS / f"{entry.environment}.txt"
    if pins.exists():
        return pins.read_text(encoding="utf-8")
    own = {name_of(line) for line in entry.requirements}
    return "\n".join([*(line for line in OPERATORS if name_of(line) not in own), *entry.requirements]) + "\n"


def name_of(requirement: str) -> str:
    return requirement.partition("==")[0].partition("[")[0].lower().replace("_", "-")


def plain_variables() -> dict[str, str]:
    """This process's environment variables, without what is its own."""
    return {name: value for name, value in os.environ.items() if name not in DROPPED}


def frozen(environment: Environment) -> str:
    """What is installed, as pins."""
    assert environment.python is not None
    command = [environment.python, "-m", "pip", "freeze", "--disable-pip-version-check"]
    # without this process's PYTHONPATH: a checkout on it is not in the environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=plain_variables())
    lines = done.stdout.splitlines()
    # a local version (+cpu) names a build of one index: the plain one is available everywhere
    return "\n".join(line.partition("+")[0] for line in lines if "==" in line) + "\n"


def install_size(environment: Environment, entry: Entry) -> float | None:
    """MB on disk of the entry's distributions and of all that they require, in its environment."""
    if environment.python is None or not entry.distributions:
        return None
    command = [environment.python, "-m", "benchmarks.peers.sizes", *entry.distributions]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    return float(json.loads(done.stdout)) if done.returncode == 0 else None
