"""Two threads on a Python function that releases the GIL, against inline."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cedar
from benchmarks.harness import Contender, Figure, Form, at_least, interleaved, ratios, reported

_DATA = bytes(512 * 1024)


def measure(form: Form) -> list[Figure]:
    rows = form.pick(4000, 1000, 100)
    contenders = {
        name: Contender(f"benchmarks.core_threads:{target}", rows, *arguments, cores=2)
        for name, target, *arguments in (
            ("inline", "hashes", "inline"), ("threads", "hashes", "threads"), ("plain", "plain_threads"),
        )
    }  # fmt: skip
    try:
        found = interleaved({name: c.run for name, c in contenders.items()}, rounds=form.pick(7, 3, 1))
    finally:
        for contender in contenders.values():
            contender.__exit__()
    inline, threads, plain = ([s.rate for s in found[name]] for name in ("inline", "threads", "plain"))
    busy = [s.cpu / s.wall for s in found["threads"]]
    note = f"sha256 of 512 KiB a row; {min(busy):.2f} to {max(busy):.2f} cores were available"
    return [
        at_least(
            "2 threads on a function that releases the GIL / inline", 1.8, ratios(threads, inline), "x", note=note
        ),
        reported(
            "2 plain threads on the same function / inline", ratios(plain, inline), "x", note="what the cores allow"
        ),
        reported("a function that releases the GIL, inline", inline, "rows/s"),
    ]


def plain_threads(rows: int) -> Callable[[], dict[str, Any]]:
    """The most that two threads can do here."""
    pool = ThreadPoolExecutor(2)

    def run() -> dict[str, Any]:
        return {"rows": len(list(pool.map(_digest, range(rows))))}

    return run


def hashes(rows: int, executor: Any) -> Callable[[], dict[str, Any]]:
    pipeline = cedar.from_items([{"n": n} for n in range(rows)]).map(_digest, "n", dtype=int)
    loader = pipeline.batch(50).loader(executor=executor, workers=2)

    def run() -> dict[str, Any]:
        return {"rows": sum(len(batch["n"]) for batch in loader)}

    return run


def _digest(n: int) -> int:
    digest = hashlib.sha256(_DATA)
    digest.update(n.to_bytes(8, "little"))
    return digest.digest()[0]
