"""What control groups leave of the machine, what processes use, and pages that are let go and read again."""

from __future__ import annotations

import copy
import mmap
import os
import pickle
import subprocess
import sys
import threading
from typing import Any

import pyarrow as pa
import pytest

from cedar.core import process
from cedar.core.process import (
    Lock,
    call_fresh_processes_by,
    cores,
    in_fresh_process_after_fork,
    lost_polars,
    memory,
    release_library_pages,
)


def root_with(tmp_path, cgroup, **files):
    """A file system with this process's control groups; double underscores stand for slashes."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path)


def test_a_quota_of_version_2_counts_also_from_above(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "affinity_cores", lambda: 16)
    files = {"job__cpu_dot_max": "350000 100000\n", "job__task__cpu_dot_max": "max 100000\n"}
    assert cores(root_with(tmp_path, "0::/job/task\n", **files)) == 4


def test_a_quota_of_version_1_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "affinity_cores", lambda: 16)
    files = {"cpu__job__cpu_dot_cfs_quota_us": "200000\n", "cpu__job__cpu_dot_cfs_period_us": "100000\n"}
    assert cores(root_with(tmp_path, "3:cpu,cpuacct:/job\n", **files)) == 2


def test_no_quota_leaves_the_affinity(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "affinity_cores", lambda: 3)
    files = {"cpu__cpu_dot_cfs_quota_us": "-1\n", "cpu__cpu_dot_cfs_period_us": "100000\n"}
    assert cores(root_with(tmp_path, "3:cpu:/\n", **files)) == 3
    assert cores(str(tmp_path / "nowhere")) == 3


@pytest.mark.parametrize(
    ("cgroup", "name"),
    [("0::/job\n", "job__memory_dot_max"), ("4:memory:/job\n", "memory__job__memory_dot_limit_in_bytes")],
)
def test_a_limit_of_memory_counts(tmp_path, cgroup, name):
    assert memory(root_with(tmp_path, cgroup, **{name: "1048576\n"})) == 1048576


def test_without_a_limit_it_is_the_memory_of_the_machine(tmp_path):
    assert memory(root_with(tmp_path, "0::/job\n", job__memory_dot_max="max\n")) == memory(str(tmp_path / "nowhere"))


def test_what_is_taken_is_seen() -> None:
    if not os.path.exists("/proc/self/status"):
        pytest.skip("there is no /proc")
    before = process.memory_by_process()[os.getpid()]
    size = 64 << 20
    with mmap.mmap(-1, size) as pages:  # an array might be put where this process has memory to spare
        pages.write(bytes([1]) * size)
        assert process.memory_by_process()[os.getpid()] - before > (48 << 20)
        assert process.resident() >= size


def test_pages_of_files_are_counted_once_and_processes_that_ended_not_at_all(monkeypatch: Any) -> None:
    sizes = {os.getpid(): (5, 30), 7: (2, 40)}
    monkeypatch.setattr(process, "_process_bytes", lambda pid: sizes.get(pid, (1, 20)))  # another test's may run
    found = process.memory_by_process()
    assert {pid: found[pid] for pid in (os.getpid(), process.FILES)} == {os.getpid(): 5, process.FILES: 30}

    def gone(_: int) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr(process, "_process_bytes", gone)
    assert process.memory_by_process() == {}
    assert process.resident() == 0


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def nb():
    return pytest.importorskip("numba")


LOADED = """
import threading
import numpy as np
from cedar.core.process import release_library_pages
from cedar.operators import image, native
image.gaussian_blur(3, sigma=1.0)(np.zeros((9, 9, 3), np.uint8))
assert native._loaded
for thread in threading.enumerate():
    if thread.name == "cedar-pages":
        thread.join()
print(release_library_pages("libllvmlite"))
"""


def compile_something(nb, number):
    assert nb.njit(lambda x: x * number)(3) == 3 * number


@on_linux
def test_what_is_let_go_is_read_again(nb):
    compile_something(nb, 2)
    assert release_library_pages("libllvmlite") > 10 << 20
    assert release_library_pages("libllvmlite") < 1 << 20
    compile_something(nb, 3)
    assert release_library_pages("libllvmlite") > 5 << 20


@on_linux
@pytest.mark.heavy
def test_while_another_thread_compiles(nb):
    done = threading.Event()

    def compile_some():
        for number in range(4, 12):
            compile_something(nb, number)
        done.set()

    thread = threading.Thread(target=compile_some, daemon=True)
    thread.start()
    while not done.wait(0.01):
        release_library_pages("libllvmlite")
    thread.join(60)


@on_linux
def test_a_library_that_is_not_there():
    assert release_library_pages("libunheard") == 0


@on_linux
def test_once_kernels_are_loaded_the_linker_is_let_go(nb):
    command = [sys.executable, "-c", LOADED]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) < 8 << 20


def free(lock: Lock) -> bool:
    """Whether another thread can take it."""
    got: list[bool] = []

    def take() -> None:
        got.append(lock._lock.acquire(blocking=False))
        if got[0]:
            lock._lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return got[0]


def test_a_lock_is_taken_again_by_who_has_it_and_by_nobody_else() -> None:
    lock = Lock()
    with lock, lock:
        assert not free(lock)
        for other in (pickle.loads(pickle.dumps(lock)), copy.copy(lock)):
            assert free(other), "a copy is not a worker's"
    assert free(lock)


def test_a_lock_that_is_renewed_is_free_whoever_held_it() -> None:
    lock = Lock()
    lock.__enter__()
    assert not free(lock)
    lock.renew()
    assert free(lock)


def test_a_process_that_lost_polars_has_it_done_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def fresh(fn: Any, *args: Any) -> str:
        sent.append((fn.__name__, args))
        return "in_fresh_process_after_fork"

    @in_fresh_process_after_fork
    def double(x: int) -> int:
        return 2 * x

    monkeypatch.setattr(process, "_fresh_process_calls", [])
    call_fresh_processes_by(fresh)
    assert (lost_polars(), double(3), sent) == (False, 6, [])
    monkeypatch.setattr(process, "_polars_lost", True)
    assert (lost_polars(), double(3), sent) == (True, "in_fresh_process_after_fork", [("double", (3,))])


def forked_pool() -> str:
    """The allocator of Arrow in a process forked now."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, pa.default_memory_pool().backend_name.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as name:
        return name.read()


def test_arrow_allocates_with_malloc_after_a_fork_beside_other_threads() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)  # mimalloc's lock could be this thread's at the fork
    thread.start()
    try:
        assert forked_pool() == "system"
    finally:
        end.set()
        thread.join()


def test_arrow_keeps_its_allocator_after_a_fork_without_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert forked_pool() == pa.default_memory_pool().backend_name
