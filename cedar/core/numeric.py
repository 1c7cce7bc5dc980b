"""NumericEnvironment: the settings that numeric results depend on, and code that applies them in all workers.

A sum computed by four threads differs from one computed by one thread. So the functions of a pipeline run in the same
environment in every process and thread. OpenMP (and with it torch), MKL and denormals have settings per thread, which
cedar sets for a task and restores after it. The thread count of OpenBLAS belongs to the process: see ``hold_threads``.
Settings that cannot be changed temporarily (polars' thread pool, torch's matmul precision) are read in the caller's
process and applied in worker processes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from types import ModuleType
from typing import Any, TypeVar

from cedar.core import process
from cedar.core.packages import loaded, spec_of
from cedar.core.process import Lock

T = TypeVar("T")
_BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_PRECISIONS = ("highest", "high", "medium")


@dataclass(frozen=True)
class NumericEnvironment:
    """The numeric settings of a run.

    Args:
        blas, openmp: threads per call of BLAS, and per call of OpenMP, torch and numba. Both are 1 unless
            ``OMP_NUM_THREADS``, ``OPENBLAS_NUM_THREADS`` or ``MKL_NUM_THREADS`` is set.
        polars: threads of polars' pool, as in the caller's process.
        flush: True if denormal numbers are flushed to zero, as in the caller's thread.
        matmul: torch's precision of float32 matrix products, as in the caller's process.

    Examples:
        >>> print(NumericEnvironment(polars=4))
        1 thread of BLAS, 1 of OpenMP and torch, 4 of polars, denormals kept, float32 products "highest"
    """

    blas: int = 1
    openmp: int = 1
    polars: int = 1
    flush: bool = False
    matmul: str = "highest"

    @staticmethod
    def of_caller() -> NumericEnvironment:
        """Return the settings for a run that starts now in this thread."""
        torch, polars = loaded("torch"), loaded("polars")
        pool = getattr(polars, "thread_pool_size", None)
        precision = getattr(torch, "get_float32_matmul_precision", None)
        return NumericEnvironment(
            blas=_threads_from_environment(*_BLAS, "OMP_NUM_THREADS") or 1,
            openmp=_threads_from_environment("OMP_NUM_THREADS") or 1,
            polars=pool() if pool is not None else _threads_from_environment("POLARS_MAX_THREADS") or process.cores(),
            flush=flushes(),
            matmul=precision() if precision is not None else "highest",
        )

    @staticmethod
    def of_json(decoded: Any) -> NumericEnvironment:
        """Return the environment that ``to_json`` saved.

        Raises:
            ValueError: ``decoded`` is not such an environment.
        """
        known: dict[str, type] = {name: type(value) for name, value in NumericEnvironment().to_json().items()}
        if not isinstance(decoded, dict) or set(decoded) != set(known):
            raise ValueError(f"{decoded!r:.100} is not a numeric environment")
        for name, kind in known.items():
            value = decoded[name]
            if type(value) is not kind or (type(value) is int and not 1 <= value <= 4096):
                raise ValueError(f"{name} is {value!r:.40} in a numeric environment")
        if decoded["matmul"] not in _PRECISIONS:
            raise ValueError(f"matmul is {decoded['matmul']!r:.40} in a numeric environment")
        return NumericEnvironment(**decoded)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def again(self, caller: NumericEnvironment) -> NumericEnvironment:
        """Return this saved environment with the caller's values for settings that a process cannot change."""
        return replace(self, polars=caller.polars, matmul=caller.matmul)

    def missing(self, caller: NumericEnvironment) -> str:
        """Describe the settings that this process cannot restore, and how to set them; empty if there are none."""
        problems = []
        if self.polars != caller.polars:
            fix = f"set POLARS_MAX_THREADS={self.polars} before Python starts"
            problems.append(f"polars had {self.polars} thread(s) and has {caller.polars} here ({fix})")
        if self.matmul != caller.matmul:
            fix = f"call torch.set_float32_matmul_precision({self.matmul!r})"
            problems.append(f"float32 products had precision {self.matmul!r} and have {caller.matmul!r} here ({fix})")
        return "; ".join(problems)

    def __str__(self) -> str:
        return (
            f"{self.blas} thread{'s' * (self.blas != 1)} of BLAS, {self.openmp} of OpenMP and torch, {self.polars} of "
            f'polars, denormals {"are zero" if self.flush else "kept"}, float32 products "{self.matmul}"'
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, tuple(getattr(self, field.name) for field in fields(self))

    # ---- in a thread -------------------------------------------------------------------------------------------------

    def run(self, work: Callable[[], T], again: bool = True) -> T:
        """Run ``work`` in this environment and return its result.

        Args:
            work: a function. If it loads a library that has its own thread count, ``work`` is called a second time.
            again: False if ``work`` must not be called twice.
        """
        with self.entered():
            before = arrived()
            result = work()
            if again and arrived() != before and self.set():
                result = work()
        return result

    def entered(self) -> AbstractContextManager[None]:
        """Apply this environment in this thread inside a ``with`` block. A worker's thread keeps it afterward."""
        return _Entered(self)

    def set(self) -> list[Callable[[], object]]:
        """Apply the settings that differ in this thread, and return the functions that restore them."""
        undo: list[Callable[[], object]] = []
        if flushes() != self.flush and _set_flush(self.flush):
            undo.append(lambda: _set_flush(not self.flush))
        torch = loaded("torch")
        if torch is not None:
            torch.get_num_threads()  # a thread's first call copies torch's thread count: do this before changing it
            if self in _received and torch.get_float32_matmul_precision() != self.matmul:
                torch.set_float32_matmul_precision(self.matmul)
        for library in _libraries():
            wanted = self.blas if library.blas else self.openmp
            if not library.of_process and library.get() != wanted:
                undo.append(library.set(wanted))
        numba: Any = _numba()
        if numba is not None:
            wanted, had = min(self.openmp, numba.config.NUMBA_NUM_THREADS), numba.get_num_threads()
            if wanted != had:
                numba.set_num_threads(wanted)
                undo.append(lambda: numba.set_num_threads(had))
        return undo


_received: set[NumericEnvironment] = set()  # received by this worker process from the caller's process
_thread = threading.local()


def _unpickled(*values: Any) -> NumericEnvironment:
    environment = NumericEnvironment(*values)
    _received.add(environment)
    return environment


def keep_in_this_thread() -> None:
    """Mark this thread as one that only runs tasks, so that it keeps the environment of the last task."""
    _thread.ours = True


def _threads_from_environment(*variables: str) -> int | None:
    """Return the number of threads in the first of these variables that is set to one."""
    for name in variables:
        text = os.environ.get(name, "").partition(",")[0].strip()
        if text.isdigit() and int(text):
            return int(text)
    return None


# ---- libraries -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Library:
    """A library's thread count, per thread or per process. ``set`` returns a function that restores the old count."""

    name: str
    get: Callable[[], int]
    set: Callable[[int], Callable[[], object]]
    blas: bool = False
    of_process: bool = False


_search_lock = Lock()
_loaded_libraries: tuple[_Library, ...] = ()
_seen_modules: frozenset[str] = frozenset()  # modules that were loaded at the last search for libraries
_module_count = -1  # number of modules loaded at the last search


def arrived() -> tuple[Any, ...]:
    """Return a value that changes when a library that has its own threads is loaded."""
    return len(_libraries()), loaded("torch") is None, _numba() is None


def _libraries() -> tuple[_Library, ...]:
    """Return the loaded libraries. They are searched again after imports of native modules."""
    global _loaded_libraries, _seen_modules, _module_count  # noqa: PLW0603 - loaded libraries belong to the process
    if len(sys.modules) != _module_count:
        with _search_lock:
            _module_count = len(sys.modules)
            now = dict(sys.modules)
            new_modules = [module for name, module in now.items() if name not in _seen_modules]
            first = not _seen_modules
            _seen_modules = frozenset(now)
            origins = [str(getattr(spec_of(module), "origin", None)) for module in new_modules]
            if first or any(origin.endswith((".so", ".pyd", ".dylib")) for origin in origins):
                _loaded_libraries = _find_libraries()
    return _loaded_libraries


def _find_libraries() -> tuple[_Library, ...]:
    from threadpoolctl import ThreadpoolController

    libraries = []
    for each in ThreadpoolController().lib_controllers:
        layer = getattr(each, "threading_layer", "")
        if each.internal_api == "mkl":
            libraries += _mkl(each.filepath, each.dynlib)
        elif each.user_api == "openmp" or layer not in ("openmp", "disabled"):  # other libraries use OpenMP's count
            blas = each.user_api == "blas"
            libraries.append(_Library(each.filepath, each.get_num_threads, partial(_set, each), blas, of_process=blas))
    torch = loaded("torch")
    if torch is not None:
        with suppress(OSError, IndexError):
            path = os.path.join(torch.__path__[0], "lib", "libtorch_cpu.so")
            libraries += _mkl(path, ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
    return tuple(libraries)


def _set(controller: Any, threads: int) -> Callable[[], object]:
    had = controller.get_num_threads()
    controller.set_num_threads(threads)
    return partial(controller.set_num_threads, had)


def _mkl(name: str, library: ctypes.CDLL) -> list[_Library]:
    """Return MKL's per-thread thread count, which overrides OpenMP's if it is not 0."""
    try:
        local, max_threads = library.MKL_Set_Num_Threads_Local, library.MKL_Get_Max_Threads
    except AttributeError:
        return []
    return [_Library(name, max_threads, lambda threads: partial(local, local(threads)), blas=True)]


def _numba() -> ModuleType | None:
    """Return numba if its threads are running. Calling numba before that would start them."""
    parallel = sys.modules.get("numba.np.ufunc.parallel")
    return sys.modules.get("numba") if getattr(parallel, "_is_initialized", False) else None


# ---- settings of the process -----------------------------------------------------------------------------------------


class _Holders:
    """The number of tasks and runs that need fixed BLAS thread counts in this process, and the counts to restore."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.number = 0
        self.before: dict[str, tuple[Callable[[], object], Callable[[], int], int]] = {}  # by library


_holders = _Holders()


def hold_threads(environment: NumericEnvironment | None) -> AbstractContextManager[None]:
    """Set process-wide BLAS thread counts to the environment's until the last task or run that needs them ends.

    A run that uses threads keeps the counts until it ends, so that a trainer that computes with NumPy in this process
    has the same counts between all batches. torch's counts are per thread, so this function does not change them.
    """
    return nullcontext() if environment is None else _Holding(environment)


class _Holding(AbstractContextManager[None]):
    """Keeps thread counts fixed in a ``with`` block. A generator instead of a class would be slower than the change."""

    def __init__(self, environment: NumericEnvironment) -> None:
        self._environment, self._holders = environment, _holders

    def __enter__(self) -> None:
        holders, threads = self._holders, self._environment.blas
        with holders.lock:
            holders.number += 1
        try:
            for library in _libraries():
                if library.of_process and library.get() != threads:
                    with holders.lock:
                        put_back = library.set(threads)
                        first = holders.before.get(library.name, (put_back,))[0]
                        holders.before[library.name] = first, library.get, threads
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        holders = self._holders
        with holders.lock:
            holders.number -= 1
            if not holders.number:
                for put_back, get, given in holders.before.values():
                    if get() == given:  # no other code has changed it since
                        put_back()
                holders.before.clear()


class _Entered(_Holding):
    """Keeps the process's thread counts fixed, and applies the environment in this thread."""

    def __enter__(self) -> None:
        super().__enter__()
        keep_settings = getattr(_thread, "ours", False) or self._environment in _received
        try:
            undo = self._environment.set()
        except BaseException:
            self.__exit__()
            raise
        self._undo = [] if keep_settings else undo

    def __exit__(self, *_: object) -> None:
        try:
            for put_back in reversed(getattr(self, "_undo", ())):
                put_back()
        finally:
            super().__exit__()


def _after_fork() -> None:
    """Restore the thread counts in a forked child, where no task needs them."""
    global _holders
    before, _holders = _holders.before, _Holders()
    for put_back, *_ in before.values():
        put_back()


os.register_at_fork(after_in_child=_after_fork)


# ---- denormals -------------------------------------------------------------------------------------------------------

_SMALLEST = 2.2250738585072014e-308  # the smallest normal number


def flushes() -> bool:
    """Whether denormal results are flushed to zero in this thread."""
    return _SMALLEST * 0.5 == 0.0


def _set_flush(flush: bool) -> bool:
    """Turn flushing of denormals on or off, like torch.set_flush_denormal; return whether it worked."""
    libm = _libm()
    if libm is None:
        torch = loaded("torch")
        return torch is not None and bool(torch.set_flush_denormal(flush))
    state = ctypes.create_string_buffer(256)
    if libm.fegetenv(state):
        return False
    place, bits = (28, 0x8040) if platform.machine() == "x86_64" else (0, 1 << 24)  # MXCSR; FPCR
    (word,) = struct.unpack_from("<I", state, place)
    struct.pack_into("<I", state, place, word | bits if flush else word & ~bits)
    return libm.fesetenv(state) == 0 and flushes() == flush


@cache
def _libm() -> Any:
    """Return the C library, which sets floating-point modes; None if the layout of its state is unknown."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return None
    try:
        return ctypes.CDLL("libm.so.6")
    except OSError:
        return None
