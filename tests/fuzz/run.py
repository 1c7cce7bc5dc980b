"""Fuzzing: ``python -m tests.fuzz.run --minutes 10`` with atheris where it is installed, guided by coverage.

``--cases N`` changes files of the corpus at random instead, N in all, which needs nothing: the same N every time.
Either runs in their own processes; where one dies or hangs, the target and the number of the case are told.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import inspect
import mmap
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence

from benchmarks.mutated_thrift import change, footer_of, parsed, with_footer, written
from tests.fuzz.targets import TARGETS, Target, corpus

SECONDS = 10  # that one input may take
MEMORY = 3 << 30  # that a process may hold: the account of a split is 64 MiB here, the libraries hold the rest
SHARES = {"footer": 12, "image": 6, "audio": 4, "cache": 4, "state": 0.5, "plan": 2, "checkpoint": 0.5}  # others 1
_STATE = struct.Struct("<qq")  # the number of the current case, findings


class Hung(BaseException):
    """An input takes too long."""


def _hung(*_: object) -> None:
    raise Hung


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A changed copy: bits, bytes, numbers, parts left out, doubled, moved or cut off; the ends most of all."""
    made = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 2, 4])):
        if not made:
            break
        size = len(made)
        near = rng.random()
        at = rng.randrange(min(size, 200)) if near < 0.35 else size - 1 - rng.randrange(min(size, 600))
        at = rng.randrange(size) if near > 0.7 else at
        long = rng.randint(1, 24)
        match rng.randrange(8):
            case 0 | 1:
                made[at] ^= 1 << rng.randrange(8)
            case 2:
                made[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x5B, 0x7B, 0x2C, 0x0A])
            case 3:
                made[at : at + long] = rng.randbytes(long)
            case 4:
                del made[at : at + long]
            case 5:
                made[at:at] = made[at : at + long] * rng.choice([1, 2, 50])
            case 6:
                number = rng.choice([0, 1, -1, 1 << 31, (1 << 31) - 1, 1 << 62, -(1 << 63), size])
                made[at : at + 8] = struct.pack("<q" if rng.random() < 0.7 else ">q", max(-(1 << 63), number))[
                    : rng.choice([2, 4, 8])
                ]
            case _:
                del made[rng.randrange(size) :]
    return bytes(made)


def case(name: str, seeds: Sequence[bytes], number: int) -> bytes:
    """Input ``number`` of a target; the corpus itself comes first."""
    if number < len(seeds):
        return seeds[number]
    rng = random.Random(f"{name} {number}")
    data = rng.choice(seeds)
    if name in ("parquet", "footer") and rng.random() < 0.5:  # by the field
        value, begin = footer_of(data) if name == "parquet" else (parsed(data)[0], 0)
        value = copy.deepcopy(value)
        for _ in range(rng.randint(1, 2)):
            change(value, rng)
        return with_footer(data, begin, value) if name == "parquet" else written(value)
    return mutated(data, rng)


def attempt(target: Target, data: bytes) -> str | None:
    """What is wrong with how a target takes an input, or None."""
    signal.alarm(SECONDS)
    try:
        target(data)
    except Hung:
        return f"takes more than {SECONDS} s"
    except Exception as error:  # noqa: BLE001 - what is looked for
        return f"{type(error).__name__}: {str(error)[:120]}"
    finally:
        signal.alarm(0)
    return None


def shared(names: Sequence[str], cases: int) -> list[tuple[str, int]]:
    """How many of all cases each target gets."""
    whole = sum(SHARES.get(name, 1) for name in names)
    return [(name, int(cases * SHARES.get(name, 1) / whole)) for name in names]


def _child(names: Sequence[str], cases: int, first: int, progress: str) -> None:
    """The cases of all targets from number ``first`` on."""
    os.environ["CEDAR_MAX_SPLIT_BYTES"] = os.environ["CEDAR_MAX_LINE_BYTES"] = str(64 << 20)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _hung)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries write what they think of a file
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(progress, "r+b") as file, mmap.mmap(file.fileno(), _STATE.size) as place:
        found = number = 0
        for name, mine in shared(names, cases):
            target, seeds = TARGETS[name], corpus(name)
            for own in range(max(0, first - number), mine):
                _STATE.pack_into(place, 0, number + own, found)
                why = attempt(target, case(name, seeds, own))
                if why is not None:
                    found += 1
                    print(f"{name} {own}: {why}", flush=True)
            number += mine
            held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            if held > MEMORY:
                found += 1
                print(f"{name}, or one before: the process held {held >> 20:,} MiB", flush=True)
        _STATE.pack_into(place, 0, number, found)


def run(names: Sequence[str], cases: int, progress: str) -> tuple[int, int]:
    """Inputs of all targets, in processes that may die: how many, and the number of findings."""
    whole = sum(mine for _, mine in shared(names, cases))
    first = findings = 0
    while first < whole:
        with open(progress, "wb") as file:
            file.write(_STATE.pack(first, 0))
        command = [sys.executable, "-m", "tests.fuzz.run", "--child", str(cases), str(first), progress, *names]
        done = subprocess.run(command, check=False)
        with open(progress, "rb") as file:
            first, found = _STATE.unpack(file.read())
        findings += found
        if first < whole:
            findings += 1
            print(f"input {first} ended the process: {done.returncode}", flush=True)
            first += 1
    return whole, findings


def guided(name: str, seconds: int) -> int:
    """A target under atheris for so long; the number of findings (0 or 1: it stops at the first)."""
    folder = os.path.join(tempfile.gettempdir(), "cedar-fuzz", name)
    os.makedirs(folder, exist_ok=True)
    from tests.fuzz.targets import CORPUS

    command = [sys.executable, "-m", "tests.fuzz.run", "--atheris", name, folder, os.path.join(CORPUS, name)]
    limits = [f"-max_total_time={seconds}", f"-timeout={SECONDS}", "-rss_limit_mb=4096", f"-artifact_prefix={folder}/"]
    done = subprocess.run([*command, *limits], check=False)
    print(f"{name}: {'a finding, in ' + folder if done.returncode else 'nothing found'}", flush=True)
    return int(done.returncode != 0)


def _under_atheris(name: str, arguments: list[str]) -> None:
    import atheris

    target = TARGETS[name]
    for data in corpus(name):
        target(data)  # what is imported late is there then
    for module in [m for key, m in sys.modules.items() if key.partition(".")[0] in ("cedar", "tarfile")]:
        for thing in list(vars(module).values()):
            for function in [thing, *vars(thing).values()] if isinstance(thing, type) else [thing]:
                if inspect.isfunction(function) and function.__module__ == module.__name__:
                    with contextlib.suppress(Exception):  # a few are too odd for it
                        atheris.instrument_func(function)
    warnings.simplefilter("ignore")
    atheris.Setup([name, *arguments], target)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=None, help="change the corpus at random so many times")
    parser.add_argument("--minutes", type=float, default=5.0, help="under atheris, for all targets together")
    parser.add_argument("--only", nargs="*", choices=list(TARGETS), default=list(TARGETS))
    given = parser.parse_args()
    cases = given.cases
    if cases is None and importlib.util.find_spec("atheris") is None:
        print("atheris is not installed (pip install atheris): files are changed at random instead", flush=True)
        cases = int(given.minutes * 20_000)
    if cases is None:
        seconds = max(1, int(given.minutes * 60 / len(given.only)))
        return min(1, sum(guided(name, seconds) for name in given.only))
    progress = os.path.join(tempfile.gettempdir(), f"cedar-fuzz-{os.getpid()}")
    began = time.perf_counter()
    try:
        tried, findings = run(given.only, cases, progress)
    finally:
        if os.path.exists(progress):
            os.remove(progress)
    print(f"{tried:,} inputs, {findings} findings, {time.perf_counter() - began:.0f} s", flush=True)
    return min(1, findings)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[5:], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    elif sys.argv[1:2] == ["--atheris"]:
        _under_atheris(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
