"""This process: the cores and memory that it may use and uses, pages that it can release, its rank, what a fork lacks.

A forked process has only one thread. polars' threads are missing, so code that waits for them waits forever, and a
copied thread pool accepts work that never runs. A forked process therefore runs polars functions in a fresh process.
Another thread may have held a lock of Arrow's allocator at the fork, so Arrow allocates with malloc from then on.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa

from cedar.core.errors import PipelineError, Site
from cedar.core.limits import as_int
from cedar.core.packages import loaded


def affinity_cores() -> int:
    """Return the number of cores that the system lets this process run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores(root: str = "/") -> int:
    """Return the cores that this process may use: the minimum of its affinity and its CPU quota, rounded up."""
    quotas = [quota / period for quota, period in _numbers(root, "cpu", "cpu.max")]
    periods = _numbers(root, "cpu", "cpu.cfs_period_us")
    for (quota,), (period,) in zip(_numbers(root, "cpu", "cpu.cfs_quota_us"), periods, strict=False):
        if quota > 0:
            quotas.append(quota / period)
    return max(1, min([affinity_cores(), *map(math.ceil, quotas)]))


def memory(root: str = "/") -> int:
    """Return the bytes that this process may use: the minimum of the machine's memory and its groups' limits."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [*_numbers(root, "memory", "memory.max"), *_numbers(root, "memory", "memory.limit_in_bytes")]
    return int(min([installed, *(limit for limit, *_ in limits if limit > 0)]))


def _numbers(root: str, controller: str, name: str) -> Iterator[list[float]]:
    """Yield the numbers in a file of each of this process's control groups, innermost first, except "max"."""
    for path in group_files(root, controller, name):
        with contextlib.suppress(OSError, ValueError):
            with open(path, encoding="ascii") as file:
                words = file.read().split()
            if words and words[0] != "max":
                yield [float(word) for word in words]


@functools.cache
def group_files(root: str, controller: str, name: str) -> tuple[str, ...]:
    """Return the paths of a file in this process's control groups and their parents. Each loader needs them."""
    mounted = os.path.join(root, "sys/fs/cgroup")
    try:
        with open(os.path.join(root, "proc/self/cgroup"), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return ()
    found: list[str] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tops = [os.path.join(mounted, name) for name in {controllers, controller}] if controllers else [mounted]
        parts = [part for part in path.split("/") if part and part != ".."]
        for top in filter(os.path.isdir, tops):
            paths = [os.path.join(top, *parts[:depth], name) for depth in range(len(parts), -1, -1)]
            found += filter(os.path.exists, paths)
    return tuple(found)


FILES = 0  # the key for pages of mapped files, such as libraries


def memory_by_process() -> dict[int, int]:
    """Return the bytes of this process and each descendant, by process id, and of ``FILES``; empty without /proc.

    Processes share pages of the same files. They are counted once: ``FILES`` has the maximum over the processes.

    Examples:
        >>> memory_by_process().get(os.getpid(), 0) >= 0
        True
    """
    sizes: dict[int, int] = {}
    files, pending = 0, [os.getpid()]
    while pending:
        process = pending.pop()
        with contextlib.suppress(OSError, ValueError, IndexError):  # the process may have ended
            own, mapped = _process_bytes(process)
            sizes[process], files = own, max(files, mapped)
            for thread in os.listdir(f"/proc/{process}/task") if process == os.getpid() else [str(process)]:
                with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
                    pending += map(int, file.read().split())
    return {**sizes, FILES: files} if sizes else {}


def resident() -> int:
    """Return the bytes of this process and all its descendants, with pages of files counted once; 0 without /proc.

    Examples:
        >>> resident() >= 0
        True
    """
    return sum(memory_by_process().values())


def _process_bytes(process: int) -> tuple[int, int]:
    """Return the bytes of a process without file pages, and the bytes of the file pages that it has mapped."""
    own = files = 0
    with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith(("RssAnon:", "RssShmem:")):
                own += int(line.split()[1]) << 10
            elif line.startswith("RssFile:"):
                files = int(line.split()[1]) << 10
    return own, files


_DONT_NEED = 4  # MADV_DONTNEED on every Linux
_HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+\s*(.*)$")


def release_library_pages(library: str) -> int:
    """Release the pages of a library's code and constants; the system reads them again if they are needed.

    Pages that this process has written to, such as relocated addresses, are kept. Only works on Linux.

    Args:
        library: the prefix of its file name.

    Returns:
        The bytes that were released.

    Examples:
        >>> release_library_pages("libunheard")
        0
    """
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
            clean = list(_clean_mappings(library, lines))
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return 0
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return sum(resident for start, stop, resident in clean if advise(start, stop - start, _DONT_NEED) == 0)


def _clean_mappings(library: str, lines: Iterator[str]) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, resident bytes) of the library's read-only mappings that were never written to."""
    start = stop = resident = 0
    of_library = written = False
    for line in lines:
        if head := _HEAD.match(line):
            start, stop = int(head[1], 16), int(head[2], 16)
            of_library, written = "w" not in head[3] and head[4].rpartition("/")[2].startswith(library), False
        elif of_library and line.startswith("Rss:"):
            resident = int(line.split()[1]) << 10
        elif of_library and line.startswith(("Anonymous:", "Swap:")):
            written |= int(line.split()[1]) > 0
        elif of_library and line.startswith("VmFlags:") and resident and not written:  # the last line of a mapping
            yield start, stop, resident


# ---- forks -----------------------------------------------------------------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")
START_FRESH = 'start the process by "spawn" or "forkserver", or fork it before cedar or polars is used'

_polars_lost = False
_other_threads = False  # whether other threads ran at the last fork
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_fresh_process_calls: list[Callable[..., Any]] = []


def lost_polars() -> bool:
    """Whether this process was forked from one that had loaded polars, so that polars' threads are missing here."""
    return _polars_lost


def call_fresh_processes_by(call: Callable[..., Any]) -> None:
    """Set the function that calls others in a fresh process: ``call(fn, *args)``."""
    _fresh_process_calls[:] = [call]


def in_fresh_process_after_fork(fn: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function that uses polars so that it runs in a fresh process if polars cannot work in this one."""

    @functools.wraps(fn)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if _polars_lost:
            return _fresh_process_calls[0](called, *args, **kwargs)  # type: ignore[no-any-return]
        return fn(*args, **kwargs)

    return called


class Lock:
    """A re-entrant lock that starts unlocked in a forked process and in an unpickled copy."""

    def __init__(self) -> None:
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return Lock, ()


def _before_fork() -> None:
    global _other_threads  # noqa: PLW0603 - the state belongs to the process
    _other_threads = threading.active_count() > 1


def _after_fork() -> None:
    global _polars_lost  # noqa: PLW0603 - the state belongs to the process
    _polars_lost = _polars_lost or "polars" in sys.modules
    if _other_threads:
        pa.set_memory_pool(pa.system_memory_pool())
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)

# ---- rank ------------------------------------------------------------------------------------------------------------

_SPECIAL_STEPS = 0xFFFF_FFF0  # SLURM uses step ids from here on for batch scripts, interactive shells and similar


@dataclass(frozen=True)
class Rank:
    """A rank, the world size, and where both were set."""

    rank: int
    world: int
    origin: str


def find_rank(rank: int | None, world: int | None, subgroup: bool, site: Site | None) -> Rank:
    """Return the rank from the arguments, else from torch.distributed, else from the launcher's variables, else 0 of 1.

    Raises:
        PipelineError: a rank outside its world, only one of rank and world, a value that is not an integer, or two
            sources that disagree (unless ``subgroup`` is True: the arguments then number a group inside the job).
    """
    claims: list[Rank] = []
    if rank is not None or world is not None:
        numbers = as_int(rank), as_int(world)
        if rank is None or world is None:
            raise PipelineError(f"rank={rank}, world={world}: give both or neither", site=site)
        if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
            raise PipelineError(
                f"rank={rank!r}, world={world!r} are not integers", site=site, fix="convert them: rank=int(...)"
            )
        claims.append(Rank(*numbers, "arguments"))
    distributed = loaded("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        claims.append(Rank(distributed.get_rank(), distributed.get_world_size(), "torch.distributed"))
    claims += _environment(bool(claims), site)
    if not claims:
        return Rank(0, 1, "default")
    first = claims[0]
    if not 0 <= first.rank < first.world:
        raise PipelineError(
            f"rank {first.rank} of {first.world} (from {first.origin}): a rank is between 0 and world - 1", site=site
        )
    for other in claims[1:]:
        if (other.rank, other.world) != (first.rank, first.world) and not (subgroup and first.origin == "arguments"):
            raise PipelineError(
                f"rank and world are set twice, differently: {first.rank} of {first.world} by {first.origin}, "
                f"{other.rank} of {other.world} by {other.origin}",
                site=site,
                done="nothing was read: two processes might have read the same rows",
                fix="set them in one place; if the arguments number a group inside the job (such as the data-parallel "
                "ranks), say so with subgroup=True",
            )
    return first


def refuse_workers(rank: Rank, site: Site | None) -> None:
    """Raise in one of several workers of a torch DataLoader, since each of them would read all rows of the rank.

    Raises:
        PipelineError: this is such a worker, and no arguments say which part of the rows it reads.
    """
    data = loaded("torch.utils.data")
    worker = data.get_worker_info() if data is not None else None
    if worker is not None and worker.num_workers > 1 and rank.origin != "arguments":
        raise PipelineError(
            f"a loader is iterated in worker {worker.id} of {worker.num_workers} of a torch DataLoader",
            site=site,
            done="nothing was read: each worker would read every row, unless arguments say which rows are its own",
            fix="iterate the loader itself, without the DataLoader: it has workers of its own. Or let each of them "
            "read a part, by loader(rank=worker.id, world=worker.num_workers, subgroup=True); or, where the pipeline "
            "is made of this worker's part already, loader(rank=0, world=1, subgroup=True)",
        )


def _environment(reported: bool, site: Site | None) -> list[Rank]:
    """Return the rank of the first launcher whose variables are set, and of the next one if both must agree.
    ``reported``: True if arguments or torch.distributed set rank and world.

    Only one of a launcher's two variables may be set if another launcher agrees with it. If RANK was not set by
    torchrun, the next launcher must agree: a script that sets one RANK for all tasks makes all of them the same rank.
    SLURM comes last: if MPI starts its ranks through ``srun``, SLURM's variables number machines. Batch scripts and
    interactive shells do not run in a SLURM step, so its variables are ignored there: there is only one process.
    """
    found: list[Rank] = []
    incomplete: list[tuple[str, str]] = []
    step, tasks = os.environ.get("SLURM_STEP_ID"), "SLURM_STEP_NUM_TASKS"
    in_step = tasks in os.environ if step is None else step.isdecimal() and int(step) < _SPECIAL_STEPS
    if tasks not in os.environ and "SLURM_NTASKS" in os.environ:
        tasks = "SLURM_NTASKS"
    mpi = [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")]
    launchers = [("RANK", "WORLD_SIZE"), *mpi, *([("SLURM_PROCID", tasks)] if in_step else [])]
    for names in launchers[: 1 if reported else None]:
        values = [os.environ.get(name) for name in names]
        if values[0] is not None and values[1] is not None:
            try:
                found.append(Rank(int(values[0]), int(values[1]), " and ".join(names)))
            except ValueError as error:
                numbers = ", ".join(f"{name}={os.environ[name]!r}" for name in names)
                raise PipelineError(f"{numbers} are not integers", site=site) from error
        elif values != [None, None] and not reported:
            incomplete.append(names)
    for names in incomplete:
        given, missing = names if names[0] in os.environ else names[::-1]
        first = found[0] if found else None
        if first is None or os.environ[given] != str(first.rank if given == names[0] else first.world):
            other = f", and {first.origin} say {first.rank} of {first.world}" if first else ""
            raise PipelineError(
                f"{given}={os.environ[given]!r} is set in the environment and {missing} is not{other}",
                site=site,
                done="nothing was read: every process would have read all rows, as rank 0 of 1",
                fix=f"set {missing} as well, or neither; or give loader(rank=, world=)",
            )
    set_manually = bool(found) and found[0].origin == "RANK and WORLD_SIZE" and "TORCHELASTIC_RUN_ID" not in os.environ
    return [each for each in found[: 1 + set_manually] if each.world == found[0].world]
