"""The bytes of functions are the same on every executor: BLAS, FFT, torch, classes, numba, C; and plans that change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.digest_functions import FUNCTIONS
from benchmarks.digests import RUNS
from tests.how_much import LONG

ROOT = Path(__file__).resolve().parents[2]
SOME = ["gemm", "torch_product", "spectrum", "Unseeded", "later"]
COMPILED = ("jitted", "parallel")  # by numba, for seconds in each process
SCRIPT = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np, torch
from benchmarks.digests import RUNS, digest, pipeline
from cedar.core.numeric import NumericEnvironment
import threadpoolctl

asked, threads = json.loads(sys.argv[1])
threadpoolctl.threadpool_limits(threads)  # as on a machine of more cores
torch.set_num_threads(threads)
torch.set_flush_denormal(threads > 1)
expect = NumericEnvironment.of_caller()
found = {name: {run: digest(RUNS[run](pipeline(name, 12))) for run in runs} for name, runs in asked.items()}
counts = sorted({lib["num_threads"] for lib in threadpoolctl.threadpool_info()}), torch.get_num_threads()
print(json.dumps([found, counts, NumericEnvironment.of_caller() == expect]))
"""


def digests_with(threads: int, asked: dict[str, list[str]]) -> Any:
    """Digests by function and run, in a program whose libraries have so many threads."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([asked, threads])], cwd=ROOT, env=environment,
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    found, counts, same = json.loads(done.stdout)
    assert counts == [[threads], threads], "the trainer's own numbers of threads changed"
    assert same
    return found


@pytest.mark.heavy
def test_every_function_has_one_digest() -> None:
    """All functions on threads and in processes, some of them everywhere."""
    asked = {name: ["2 threads", "processes"] for name in FUNCTIONS if LONG or name not in COMPILED}
    everywhere = [run for run in RUNS if LONG or run != "dask"]
    asked |= dict.fromkeys(FUNCTIONS if LONG else SOME, everywhere)
    found = digests_with(2, asked)
    assert {name: digests for name, digests in found.items() if len(set(digests.values())) > 1} == {}
