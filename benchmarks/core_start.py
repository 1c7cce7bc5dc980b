"""How long until something comes: the import, and the first batch from a cold process and from a warm loader."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import OUT, ROOT, Figure, Form, at_most, environment, interleaved, reported

_HEAVY = ("torch", "dask", "distributed", "polars", "pandas")

_IMPORT = """
import sys, time
start = time.perf_counter()
import cedar
print(time.perf_counter() - start, *(name for name in {heavy!r} if name in sys.modules))
"""

_FIRST = """
import sys, time
import cedar
from cedar import col
pipeline = cedar.read_parquet(sys.argv[1])
{steps}
loader = pipeline.batch(100).loader(executor="threads")
next(iter(loader))
cold = time.time()
warm = []
for _ in range(5):
    start = time.perf_counter()
    next(iter(loader))
    warm.append(time.perf_counter() - start)
print(cold, *warm)
"""

_PIPELINES = {
    "batch": "",
    "expression, shuffle, map, batch": (
        'pipeline = pipeline.filter(col("label") >= 0).with_columns(x=col("x").log1p()).shuffle()\n'
        'pipeline = pipeline.map(lambda n: n + 1, "n")'
    ),
}


def measure(form: Form) -> list[Figure]:
    path = _small_file()
    runs: dict[str, Callable[[], tuple[float, str]]] = {
        "nothing": _bare,
        "import": lambda: _child(_IMPORT.format(heavy=_HEAVY)),
    }
    for name, steps in _PIPELINES.items():
        runs[name] = partial(_child, _FIRST.format(steps=steps), path)
    found = interleaved(runs, rounds=form.pick(11, 3, 1))
    imports = [float(answer.split()[0]) for _, answer in found["import"]]
    heavy = sorted({name for _, answer in found["import"] for name in answer.split()[1:]})
    rows = [
        at_most("import cedar", 0.2, imports, "s", note=f"a bare python starts in {_middle(found['nothing']):.3f} s"),
        at_most("import cedar: heavy modules imported", 0, [len(heavy)], "modules", note=", ".join(heavy) or "none"),
    ]
    for name in _PIPELINES:
        answers = [(began, [float(word) for word in answer.split()]) for began, answer in found[name]]
        cold = [words[0] - began for began, words in answers]
        warm = [seconds for _, words in answers for seconds in words[1:]]
        rows.append(
            at_most(f"first batch from process start: {name}", 0.8, cold, "s", note="1,000 Parquet rows, threads")
        )
        rows.append(at_most(f"first batch, warm loader: {name}", 0.05, warm, "s", note="1,000 Parquet rows, threads"))
    rows.append(reported("python starts and imports pyarrow.parquet, numpy", [s for s, _ in _arrow(form)], "s"))
    return rows


def _arrow(form: Form) -> list[tuple[float, str]]:
    """What any loader of Parquet pays."""
    code = "import time, numpy, pyarrow.parquet; print(time.time())"
    answers = [_child(code) for _ in range(form.pick(5, 2, 1))]
    return [(float(answer) - began, "") for began, answer in answers]


def _bare() -> tuple[float, str]:
    began, answer = _child("import time; print(time.time())")
    return float(answer) - began, answer


def _middle(answers: list[tuple[float, str]]) -> float:
    return sorted(seconds for seconds, _ in answers)[len(answers) // 2]


def _child(code: str, *arguments: str) -> tuple[float, str]:
    """When a fresh process was started, and what it printed."""
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return began, done.stdout.strip()


def _small_file() -> str:
    path = Path(OUT) / "data" / "small.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    table = pa.table({"label": rng.integers(0, 2, 1000), "x": rng.random(1000), "n": np.arange(1000)})
    pq.write_table(table, path)
    return str(path)
