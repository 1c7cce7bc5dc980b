"""Run the tests by tier: ``make test`` (fast), ``test-all``, ``test-changed``, ``test-load`` and ``coverage``.

Tests marked ``heavy`` are left out of the fast tier. Each tier runs in four shards, so that a worker collects only its
own part. Tests marked ``waits`` spend their time waiting for other processes; they run with more workers than cores.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARDS = {
    "data": ["core", "store", "conformance", "control", "datasets", "operators", "profile", "tasks"],
    "engine": ["engine", "executors", "optimizer", "pipeline", "plan", "fuzz"],
    "docs": ["docs"],  # and the examples in the docstrings of cedar/
    "users": [],  # everything else: the tests of the command line, trainers, reports, ...
}
FAST, HEAVY, ALL = "not heavy", "heavy", "heavy or not heavy"
CHANGED = "8 hours ago"
CHANGED_MINUTES = 15
LEFT_OUT = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cedar-tests" / "left-out"


def shard(name: str) -> list[str]:
    """Paths of one shard."""
    taken = [each for other in SHARDS.values() for each in other]
    folders = SHARDS[name] or [each.name for each in sorted((ROOT / "tests").iterdir()) if each.name not in taken]
    paths = [each for each in folders if (ROOT / "tests" / each).is_dir() or each.startswith("test_")]
    return [f"tests/{each}" for each in paths if each != "__pycache__"] + ["cedar"] * (name == "docs")


def pytest(paths: Iterable[str], marks: str, workers: int, extra: list[str]) -> bool:
    """Whether all passed; a shard without such tests passes."""
    options = ["-q", "-n", str(workers), "--dist", "worksteal", "-m", marks, *extra]
    return subprocess.run([sys.executable, "-m", "pytest", *options, *paths], cwd=ROOT, check=False).returncode in (
        0,
        5,
    )


def run(marks: str, shards: Iterable[str], extra: list[str]) -> bool:
    passed = True
    for name in shards:
        began = time.monotonic()
        ok = pytest(shard(name), f"({marks}) and not waits", 3 if marks == FAST else 2, extra)
        if marks != FAST:  # tests that wait are heavy, too
            ok &= pytest(shard(name), f"({marks}) and waits", 6, extra)
        print(f"shard {name}: {'passed' if ok else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
        passed &= ok
    return passed


# ---- tests of what changed -------------------------------------------------------------------------------------------


def imports(path: Path) -> set[str]:
    """Modules of this repository that a file names, at its top or inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return found


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def closures() -> dict[str, set[str]]:
    """Test file -> the files of the repository that it imports, directly or not."""
    files = [each for top in ("cedar", "tests", "benchmarks", "examples") for each in (ROOT / top).rglob("*.py")]
    names = {
        str(each.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__"): each for each in files
    }
    direct = {each: {names[name] for name in imports(each) if name in names} for each in files}
    found = {}
    for test in (each for each in files if each.name.startswith("test_")):
        seen, todo = {test}, [test]
        while todo:
            new = direct[todo.pop()] - seen
            seen |= new
            todo += new
        found[str(test.relative_to(ROOT))] = {str(each.relative_to(ROOT)) for each in seen}
    return found


def mirrored(test: str, changed: set[str]) -> bool:
    """Whether the test itself changed, or the module whose name it has."""
    module = test.replace("tests/", "cedar/", 1).replace("/test_", "/")
    return test in changed or module in changed


def by_specificity(changed: set[str]) -> list[str]:
    """Test files that import a changed file: first those left out last time, then mirrors, then small closures."""
    left = LEFT_OUT.read_text().split() if LEFT_OUT.exists() else []
    found = closures()
    touched = [test for test, files in found.items() if files & changed or test in left]
    return sorted(touched, key=lambda test: (test not in left, not mirrored(test, changed), len(found[test]), test))


def test_changed(extra: list[str]) -> bool:
    command = ["git", "log", f"--since={CHANGED}", "--name-only", "--format="]
    changed = set(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split())
    heavy = [test for test in by_specificity(changed) if "mark.heavy" in (ROOT / test).read_text()]
    print(
        f"{len(changed)} files changed since {CHANGED}: {len(heavy)} files of heavy tests import one of them",
        flush=True,
    )
    until, passed, left = time.monotonic() + CHANGED_MINUTES * 60, True, list(heavy)
    while left and time.monotonic() < until:
        part, left = left[:8], left[8:]
        passed &= pytest(part, HEAVY, 2, extra)
    LEFT_OUT.parent.mkdir(parents=True, exist_ok=True)
    LEFT_OUT.write_text("\n".join(left))
    print(f"left out for want of time, run first the next time: {' '.join(left) or 'none'}", flush=True)
    return passed


# ---- coverage --------------------------------------------------------------------------------------------------------


def lines_run(marks: str, extra: list[str]) -> set[tuple[str, int]]:
    """Lines of cedar/ that these tests run, in the processes of pytest."""
    from coverage import CoverageData

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "coverage"
        os.environ["COVERAGE_FILE"] = str(data)
        run(marks, SHARDS, ["--cov=cedar", "--cov-append", "--cov-report=", "--cov-config=/dev/null", *extra])
        found = CoverageData(str(data))
        found.read()
        return {(file, line) for file in found.measured_files() for line in found.lines(file) or ()}


def coverage(extra: list[str]) -> bool:
    fast, heavy = lines_run(FAST, extra), lines_run(HEAVY, extra)
    share = len(fast) / len(fast | heavy)
    print(f"lines of cedar/ run: {len(fast | heavy):,}; by the fast tests: {len(fast):,}, {share:.1%} (at least 92%)")
    return share >= 0.92


# ---- under load ------------------------------------------------------------------------------------------------------

_HOG = """
import time
held = bytearray(4 << 30)
while True:
    held[::4096] = bytes(len(held) // 4096)
    time.sleep(0.1)
"""


@contextmanager
def load() -> Iterator[None]:
    """Two busy loops, and four GiB of memory that are written again and again."""
    hogs = [subprocess.Popen([sys.executable, "-c", code]) for code in ("while True: pass", "while True: pass", _HOG)]
    try:
        yield
    finally:
        for each in hogs:
            each.kill()
            each.wait()


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tier", choices=["fast", "all", "heavy", "changed", "load", "coverage"])
    parser.add_argument("--shard", choices=list(SHARDS), action="append", default=[])
    chosen, extra = parser.parse_known_args()
    shards = chosen.shard or list(SHARDS)
    if chosen.tier == "changed":
        return test_changed(extra)
    if chosen.tier == "coverage":
        return coverage(extra)
    if chosen.tier == "load":
        with load():
            return sum(run(FAST, shards, extra) for _ in range(3)) == 3
    return run({"fast": FAST, "heavy": HEAVY, "all": ALL}[chosen.tier], shards, extra)


if __name__ == "__main__":
    sys.exit(not main())
