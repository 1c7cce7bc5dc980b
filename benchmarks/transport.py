"""Executor "processes": its transport, its start and its end: ``python -m benchmarks.transport [--form]``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import transport_runs as runs
from benchmarks.harness import (
    Contender,
    Figure,
    Form,
    add_form,
    at_least,
    at_most,
    environment,
    finish,
    interleaved,
    ratios,
    reported,
)  # fmt: skip


def _child(code: str, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def transport(form: Form) -> list[Figure]:
    """Bytes per second to the consumer, side by side with threads; rows per second next to torch."""
    blocks, rows = form.pick((4000, 200_000), (1500, 30_000), (30, 1000))
    contenders = {
        name: Contender(f"benchmarks.transport_runs:{target}", *arguments)
        for name, target, *arguments in (
            ("processes", "blocks", blocks, "processes"), ("threads", "blocks", blocks, "threads"),
            ("cedar", "cheap_cedar", rows), ("torch", "cheap_torch", rows),
        )
    }  # fmt: skip
    try:
        found = interleaved({name: c.run for name, c in contenders.items()}, rounds=form.pick(7, 3, 1))
    finally:
        for contender in contenders.values():
            contender.__exit__()
    rate = {name: [s.rate for s in samples] for name, samples in found.items()}
    return [
        at_least("blocks of 1 MiB to the consumer", 2.0, [r / 1e9 for r in rate["processes"]], "GB/s"),
        reported("the same on threads, which share memory", [r / 1e9 for r in rate["threads"]], "GB/s"),
        at_least(
            "a cheap Python function / torch DataLoader workers", 1.3, ratios(rate["cedar"], rate["torch"]), "x",
            note="2 workers each, batches of 100 as tensors",
        ),
        reported("rows of the cheap function, processes", rate["cedar"], "rows/s"),
        reported("rows of the cheap function, torch", rate["torch"], "rows/s"),
    ]  # fmt: skip


def first(form: Form) -> list[Figure]:
    """Time to the first batch."""
    told = [_child(runs.FIRST).communicate()[0].split() for _ in range(form.pick(9, 3, 1))]
    cold, warm = [float(t[0]) for t in told], [float(word) for t in told for word in t[1:]]
    return [
        at_most("first batch, pool cold", 1.0, cold, "s", note="2 workers; the import of cedar is not in it"),
        at_most("first batch, pool warm", 0.05, warm, "s", note="a new loader each time"),
    ]


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _killed() -> tuple[list[int], float]:
    """A parent killed in the middle: its workers that live after 2 s, and the seconds until all were gone."""
    parent = _child(runs.BUSY.replace("{ends}", "False"))
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    parent.send_signal(signal.SIGKILL)
    start = time.perf_counter()
    while any(map(_alive, pids)) and time.perf_counter() - start < 2:
        time.sleep(0.005)
    took = time.perf_counter() - start
    parent.communicate()
    return [pid for pid in pids if _alive(pid)], took


def orphans(form: Form) -> list[Figure]:
    """Parents killed with SIGKILL while workers and shared memory are in use."""
    count = form.pick(100, 8, 1)
    before = set(os.listdir("/dev/shm"))
    ends = [_killed() for _ in range(count)]
    left = [name for name in set(os.listdir("/dev/shm")) - before if "cedar" in name]
    living = sum(len(pids) for pids, _ in ends)
    return [
        at_most(f"workers alive 2 s after SIGKILL of the parent, {count} times", 0, [living], "processes"),
        at_most("files of ours in /dev/shm after that", 0, [len(left)], "files", note="arenas have no name"),
        reported("from the kill until all workers are gone", [took for _, took in ends], "s"),
    ]


def abandoned(form: Form) -> list[Figure]:
    """Loaders made and forgotten in the middle; programs that end in the middle."""
    count = form.pick(1000, 60, 4)
    child = _child(runs.ABANDON, str(count))
    out, errors = child.communicate()
    exited = time.time()
    before, after, end = json.loads(out)
    names = ("threads", "descriptors", "arenas", "children", "files in /dev/shm")
    more = ", ".join(f"{name} {a} to {b}" for name, a, b in zip(names, before, after, strict=True))
    exits = [exited - end]
    for _ in range(form.pick(20, 3, 1)):
        child = _child(runs.BUSY.replace("{ends}", "True"))
        out, noise = child.communicate()
        exits.append(time.time() - float(out.split()[-1]))
        errors += noise
    grown = sum(max(0, b - a) for a, b in zip(before, after, strict=True))
    return [
        at_most(f"left by {count} create-and-abandon cycles", 0, [grown], "things", note=more),
        at_most("exit of a program that broke off in the middle", 1.0, exits, "s"),
        at_most("lines that it prints", 0, [len(errors.splitlines())], "lines"),
    ]


def small(_: Form) -> list[Figure]:
    """64 MiB of /dev/shm, with a consumer that keeps 300 MiB; once with memfd, once with files of /dev/shm."""
    figures = []
    for how, most in (("memfd", 0), ("file", 1)):
        mount = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh")
        child = _child(runs.SMALL, how, before=mount)
        out, errors = child.communicate()
        words = out.split()
        if child.returncode or len(words) != 2:
            note = f"not measured, a private mount needs root: {errors.strip()[-80:]}"
            figures.append(reported(f"/dev/shm of 64 MiB, {how}", [0], "batches", note=note))
            continue
        lines = len(errors.splitlines())
        figures += [
            at_least(f"/dev/shm of {words[1]} MiB, {how}: right batches of 300", 300, [int(words[0])], "batches"),
            at_most(f"/dev/shm of {words[1]} MiB, {how}: warnings", most, [lines], "lines"),
        ]
    return figures


PARTS: dict[str, Callable[[Form], list[Figure]]] = {
    "transport": transport, "first": first, "orphans": orphans, "abandoned": abandoned, "small": small,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/transport.json; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_form(parser, "fewer rounds: about a minute")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    options = parser.parse_args(arguments)
    figures: list[Figure] = []
    for part in options.only:
        start = time.perf_counter()
        figures += PARTS[part](options.form)
        print(f"{part}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    return finish("transport", "transport", figures, options.form)


if __name__ == "__main__":
    sys.exit(main())
