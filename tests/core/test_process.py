"""What control groups leave of the machine, what processes use, and pages that are let go and read again."""

from __future__ import annotations

import copy
import mmap
import os
import pickle
import subprocess
import sys
import threading
import types
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cedar.core import process
from cedar.core.errors import PipelineError, Site
from cedar.core.process import (
    Lock,
    Rank,
    call_fresh_processes_by,
    cores,
    find_rank,
    in_fresh_process_after_fork,
    lost_polars,
    memory,
    refuse_workers,
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


SITE = Site("user.py", 3)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("RANK", "WORLD_SIZE", "SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_")):
            monkeypatch.delenv(name)


def test_arguments_come_before_the_environment_and_that_before_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_rank(None, None, False, SITE) == Rank(0, 1, "default")
    assert find_rank(np.int64(1), 2, False, SITE) == Rank(1, 2, "arguments")
    monkeypatch.setenv("RANK", "3")
    assert find_rank(3, 4, False, SITE) == Rank(3, 4, "arguments"), "half of it does not matter next to them"
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert find_rank(None, None, False, SITE) == Rank(3, 4, "RANK and WORLD_SIZE")
    assert find_rank(0, 2, True, SITE) == Rank(0, 2, "arguments"), "a group inside the job"
    with pytest.raises(PipelineError, match="0 of 2 by arguments, 3 of 4 by RANK and WORLD_SIZE") as caught:
        find_rank(0, 2, False, SITE)
    assert "subgroup=True" in str(caught.value.fix)
    assert caught.value.site == SITE


@pytest.mark.parametrize(
    ("rank", "world", "environment", "says"),
    [
        (2, 2, {}, "rank 2 of 2 .from arguments.: a rank is between"),
        (-1, 2, {}, "a rank is between"),
        (0, None, {}, "give both or neither"),
        (0.0, 2, {}, "are not integers"),
        (True, 2, {}, "are not integers"),
        (None, None, {"RANK": "0"}, "RANK='0' is set in the environment and WORLD_SIZE is not"),
        (None, None, {"WORLD_SIZE": "2"}, "WORLD_SIZE='2' is set in the environment and RANK is not"),
        (None, None, {"RANK": "a", "WORLD_SIZE": "2"}, "are not integers"),
    ],
)
def test_what_is_no_rank_is_refused(
    rank: Any, world: Any, environment: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PipelineError, match=says):
        find_rank(rank, world, False, SITE)


STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}
MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "job"}


@pytest.mark.parametrize(
    ("environment", "rank", "world", "origin"),
    [
        (STEP | {"SLURM_NTASKS": "16"}, 3, 8, "SLURM_PROCID and SLURM_STEP_NUM_TASKS"),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, 3, 8, "SLURM_PROCID and SLURM_STEP_NUM_TASKS"),
        ({"SLURM_STEP_ID": "12", "SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, 3, 8, "SLURM_PROCID and SLURM_NTASKS"),
        (STEP | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"}, 0, 1, "SLURM_"),  # --pty bash
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, 0, 1, "default"),  # a batch script
        (STEP | {"SLURM_STEP_ID": "4294967291"}, 0, 1, "default"),  # and where it says so
        (STEP | {"SLURM_STEP_ID": "4294967290"}, 0, 1, "default"),  # an interactive shell
        ({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}, 0, 1, "default"),  # salloc
        (MPI, 2, 4, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1, 2, "PMI_RANK and PMI_SIZE"),
        (MPI | STEP, 2, 4, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"),  # mpirun starts its daemons by srun
        (TORCHRUN | STEP, 5, 8, "RANK and WORLD_SIZE"),  # which numbers as it likes
        ({"RANK": "5", "WORLD_SIZE": "16"} | STEP, 5, 16, "RANK and WORLD_SIZE"),  # two ranks a task
        ({"WORLD_SIZE": "8"} | STEP, 3, 8, "SLURM_PROCID and SLURM_STEP_NUM_TASKS"),
        ({"RANK": "3"} | STEP, 3, 8, "SLURM_PROCID and SLURM_STEP_NUM_TASKS"),
    ],
)
def test_what_launchers_set(
    environment: dict[str, str], rank: int, world: int, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = find_rank(None, None, False, SITE)
    assert (found.rank, found.world) == (rank, world)
    assert found.origin.startswith(origin)
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        assert find_rank(1, 3, False, SITE) == Rank(1, 3, "arguments"), "no matter how many this process stands for"


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "3"}, ["SLURM_PROCID='3'", "SLURM_STEP_NUM_TASKS is not"]),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}, ["SLURM_STEP_NUM_TASKS='1'", "SLURM_PROCID is not"]),
        (STEP | {"SLURM_PROCID": "8"}, ["rank 8 of 8", "SLURM_PROCID and SLURM_STEP_NUM_TASKS"]),
        (STEP | {"SLURM_STEP_NUM_TASKS": "8(x2)"}, ["SLURM_STEP_NUM_TASKS='8(x2)'", "integers"]),
        ({"OMPI_COMM_WORLD_RANK": "2"}, ["OMPI_COMM_WORLD_RANK='2'", "OMPI_COMM_WORLD_SIZE is not"]),
        ({"PMI_SIZE": "2"}, ["PMI_SIZE='2'", "PMI_RANK is not"]),
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, ["PMI_RANK='x'", "integers"]),
        (MPI | {"OMPI_COMM_WORLD_RANK": "-1"}, ["rank -1 of 4", "OMPI_COMM_WORLD_RANK"]),
        ({"WORLD_SIZE": "1"} | STEP, ["WORLD_SIZE='1'", "RANK is not", "3 of 8", "SLURM_PROCID"]),
        ({"RANK": "0"} | STEP, ["RANK='0'", "WORLD_SIZE is not", "3 of 8", "SLURM_PROCID"]),
        ({"RANK": "0", "WORLD_SIZE": "8"} | STEP, ["set twice", "RANK and WORLD_SIZE", "SLURM_PROCID"]),
        ({"RANK": "0", "WORLD_SIZE": "4"} | MPI, ["set twice", "RANK and WORLD_SIZE", "OMPI_COMM_WORLD_RANK"]),
    ],
)
def test_halves_and_contradictions_of_launchers_are_refused_by_the_names_of_variables(
    environment: dict[str, str], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PipelineError) as caught:
        find_rank(None, None, False, SITE)
    assert all(name in str(caught.value) for name in names)


def test_workers_of_a_dataloader_are_refused_unless_arguments_say_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Any = types.SimpleNamespace(id=1, num_workers=2)
    monkeypatch.setitem(sys.modules, "torch.utils.data", types.SimpleNamespace(get_worker_info=lambda: worker))
    with pytest.raises(PipelineError, match="worker 1 of 2 of a torch DataLoader"):
        refuse_workers(Rank(0, 1, "default"), SITE)
    refuse_workers(Rank(0, 1, "arguments"), SITE)
    worker.num_workers = 1
    refuse_workers(Rank(0, 1, "default"), SITE)
