"""Kernels where numba is missing, or may keep nothing on disk; in threads and in other processes."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.errors import PipelineError
from cedar.operators import jit
from cedar.operators.image.blur import GaussianBlur


def test_without_numba_the_error_names_the_extra(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(jit.importlib, "import_module", missing)
    with pytest.raises(PipelineError, match="numba") as caught:
        jit.numba()
    assert "cedar[images]" in str(caught.value)


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


def blurred(seed):
    image = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    return GaussianBlur(9, 1.5)(image).tobytes()


def test_threads_and_processes_make_the_same():
    wanted = [blurred(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(blurred, range(8), timeout=60)) == wanted
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as processes:
        assert list(processes.map(blurred, range(8), timeout=100)) == wanted
