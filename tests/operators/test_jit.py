"""Kernels where numba is missing, or may keep nothing on disk; in threads and in other processes."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.core.errors import PipelineError
from cedar.operators import jit
from cedar.operators.image.blur import GaussianBlur


def test_without_numba_the_error_names_the_extra(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(jit.importlib, "import_module", missing)
    with pytest.raises(PipelineError, match="numba") as caught:
        jit.numba()
    assert "cedar-data[images]" in str(caught.value)


def test_where_no_cache_can_be_written_it_compiles_all_the_same(monkeypatch):
    asked = []

    def njit(*signature, cache=False, **options):
        def compiled(fn):
            asked.append(cache)
            if cache:
                raise RuntimeError("cannot cache function: no locator available")
            return fn

        return compiled

    monkeypatch.setattr(jit, "numba", lambda: SimpleNamespace(njit=njit))
    assert jit.kernel()(abs) is abs
    assert jit.kernel("int64(int64)")(len) is len
    assert asked == [True, False, True, False]


@pytest.mark.parametrize("terminal", [True, False])
def test_compilation_that_takes_seconds_is_told_once(monkeypatch, capsys, caplog, terminal):
    def njit(*signature, **options):
        def compiled(fn):
            now[0] += 1.5
            stats = SimpleNamespace(cache_misses={"int64": 1})
            return SimpleNamespace(stats=stats, compile=str, disable_compile=str)

        return compiled

    now = [0.0]
    monkeypatch.setattr(jit, "numba", lambda: SimpleNamespace(njit=njit))
    monkeypatch.setattr(jit, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(jit, "_spent", 0.0)
    monkeypatch.setattr(jit.sys.stderr, "isatty", lambda: terminal)
    with caplog.at_level("INFO", logger="cedar"):
        told = []
        for _ in range(4):
            jit.kernel("int64(int64)")(len)
            told.append(capsys.readouterr().err if terminal else "".join(caplog.messages))
            caplog.clear()
    assert [bool(text) for text in told] == [False, True, False, False]
    assert "once on this machine" in told[1]


TORN = """
import glob, os, sys
import numpy as np
from cedar.operators.jit import kernel
@kernel("int64(int64)")
def doubled(x):
    return 2 * x
@kernel()
def tripled(x):
    return np.full(x, 3).sum()
print(doubled(21), tripled(14), sum(doubled.stats.cache_hits.values()) + sum(tripled.stats.cache_hits.values()))
print("numba.cpython.listobj" in sys.modules)  # what numba compiles with
"""


def test_torn_kernels_on_disk_are_compiled_anew(tmp_path):
    (tmp_path / "kernels.py").write_text(TORN)

    def run() -> subprocess.CompletedProcess[str]:
        env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kept"), "PYTHONPATH": ":".join(sys.path)}
        command = [sys.executable, str(tmp_path / "kernels.py")]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120)

    assert run().stdout == "42 42 0\nTrue\n"
    for pattern in ("*doubled*.nbi", "*tripled*.nbc"):  # an index, and a kernel
        (path,) = (tmp_path / "kept").rglob(pattern)
        path.write_bytes(path.read_bytes()[:-20])
    told = run()
    assert told.stdout == "42 42 0\nTrue\n"
    assert told.stderr.count("compiled anew") == 1
    assert run().stdout == "42 42 2\nFalse\n"


def blurred(seed):
    image = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    return GaussianBlur(9, 1.5)(image).tobytes()


def test_threads_and_processes_make_the_same():
    wanted = [blurred(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(blurred, range(8), timeout=60)) == wanted
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as processes:
        assert list(processes.map(blurred, range(8), timeout=100)) == wanted
