"""``cedar doctor`` and ``cedar bench``: report versions and resources, and compare the loaders installed here."""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import cedar
from cedar import CedarError
from cedar.cli import tables
from cedar.cli.arguments import command, count
from cedar.core import process
from cedar.store.files import private_folder

if TYPE_CHECKING:
    from cedar.cli.arguments import Adder


_REQUIREMENT = re.compile(r"([\w.-]+)[^<>=!~;]*(?:(>=|==) *([\d.]+))?")
_EXTRA = re.compile(r"""extra == ["']([^"']+)""")
_NO_EXTRAS = ("all", "dev", "browser")  # extras to leave out: combinations of other extras, and test dependencies
_SHM = "/dev/shm"  # noqa: S108 - nothing is written to it
_FEW_FILES, _SMALL_SHM = 1024, 256 << 20


def add(adder: Adder) -> None:
    """Register the commands."""
    command(adder, "doctor", "print versions, extras, cores, limits and GPUs", doctor, [""])

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


def doctor(_: argparse.Namespace) -> None:
    """``cedar doctor``."""
    print(f"cedar {cedar.__version__} in {os.path.dirname(cedar.__file__)}")
    print(f"Python {platform.python_version()}, {platform.platform()}")
    groups = _groups()
    for name, found in sorted(groups.items()):
        wrong = any(" " not in each or each.endswith(")") for each in found)
        state = "incomplete" if wrong and any(" " in each for each in found) else "missing" if wrong else "ok"
        print(f"  {name or 'required':<16} {state:<11} {', '.join(found)}")
    print("`pip install 'cedar-data[NAME]'` adds an extra; in a clone, `pip install '.[NAME]'`")
    with tables.status("importing torch"):
        facts = [*_machine(), *_gpus()]
    for what, fact, advice in facts:
        print(f"  {what:<16} {fact}" + (f"\n  {'':<16} ! {advice}" if advice else ""))


def _groups() -> dict[str, list[str]]:
    """Return each extra's requirements, as "name version" if installed; key "": those that are always required."""
    groups: dict[str, list[str]] = {}
    try:
        requirements = metadata.requires("cedar-data") or []
    except metadata.PackageNotFoundError:  # cedar runs from a checkout without being installed
        return groups
    for requirement in requirements:
        match, extra = _REQUIREMENT.match(requirement), _EXTRA.search(requirement)
        group = extra[1] if extra else ""
        if match is None or group in _NO_EXTRAS:
            continue
        name, relation, wanted = match.groups()
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            groups.setdefault(group, []).append(name)
            continue
        have, want = _numbers(version), _numbers(wanted or "")
        fits = have[: len(want)] == want if relation == "==" else have >= want
        groups.setdefault(group, []).append(f"{name} {version}" + ("" if fits else f" (needs {relation}{wanted})"))
    return groups


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def _machine() -> Iterator[tuple[str, str, str]]:
    """Yield each of the machine's resources as (name, amount, advice)."""
    yield "cores", f"{process.cores()} of {os.cpu_count()}", ""
    yield "memory", f"{process.memory() / 2**30:.1f} GiB", ""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = 0 <= files < _FEW_FILES
    yield "open files", f"{files:,}", "worker processes may need more: ulimit -n 4096" if low else ""
    if os.path.isdir(_SHM):
        free = shutil.disk_usage(_SHM).free
        small = free < _SMALL_SHM and not hasattr(os, "memfd_create")
        advice = "worker processes pass blocks through it: docker run --shm-size=1g" if small else ""
        yield _SHM, f"{free / 2**30:.1f} GiB free", advice
    if folder := private_folder():
        yield "cache folder", f"{folder}, {shutil.disk_usage(folder).free / 2**30:.1f} GiB free", ""
    else:
        yield "cache folder", "none", "measurements are not kept: set XDG_CACHE_HOME to a private folder"


def _gpus() -> Iterator[tuple[str, str, str]]:
    try:
        import torch
    except ImportError as error:
        yield "GPU", f"not looked for: torch cannot be imported ({error})", ""
        return
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(i)
            yield f"GPU {i}", f"{device.name}, {device.total_memory / 2**30:.1f} GiB, CUDA {torch.version.cuda}", ""
        return
    hidden = os.path.exists("/dev/nvidiactl")
    advice = "the machine has an NVIDIA driver: install a torch build with its CUDA version" if hidden else ""
    yield "GPU", f"torch {torch.__version__} sees none", advice


def bench_here(chosen: argparse.Namespace) -> int:
    """``cedar bench``. Exit status 1: a loader returned an incorrect row; 2: an argument is invalid."""
    root = Path(cedar.__file__).resolve().parents[1]
    if not (root / "benchmarks" / "peers" / "__main__.py").is_file():
        raise CedarError(
            f"cedar bench needs a checkout: {root} has no benchmarks/peers",
            fix="clone the project, then `pip install -e .` and `cedar bench` there, or `make bench` for every peer",
        )
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
