"""Compiled kernels: stored on disk as machine code, loaded without the compiler, called without the GIL.

Importing numba takes 0.4 s, and so does loading numba's own cache; an object file needs only LLVM's linker. A cache
entry contains the kernels of one module, each as an object file with the symbol to call and its arguments. If a module
has no entry, a separate process compiles it while the run continues. Until then, operators use a slower implementation
with bit-identical results.
"""

from __future__ import annotations

import atexit
import ctypes
import glob
import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from types import SimpleNamespace
from typing import IO, Any

import numpy as np

from cedar.core.errors import invalid_call
from cedar.core.process import Lock, release_library_pages
from cedar.store.entry import Entry
from cedar.store.folder import Folder
from cedar.store.keep import load as load_entry
from cedar.store.keep import save, user_place
from cedar.store.place import Place, name_of

_SCALARS = {"int64": ctypes.c_int64, "float32": ctypes.c_float, "float64": ctypes.c_double, "bool": ctypes.c_int8}
_ignored = (ctypes.c_char * 64)()  # receives a kernel's return value and exception, which are unused
_engines: list[Any] = []  # references to LLVM engines, which keep the code of kernels in memory


@dataclass(frozen=True)
class MachineCode:
    """A stored kernel.

    Args:
        symbol: the symbol of numba's native function, not of its Python wrapper.
        arguments: the type of each argument: "int64", "float32", "float64" or "bool"; the suffix "*3" makes it a tuple
            of three, and "[2]" a contiguous array of two dimensions.
        object: the object file, in the format of the system's linker.
    """

    symbol: str
    arguments: tuple[str, ...]
    object: bytes


def load(module: str) -> Any:
    """Return an object with a module's stored kernels as attributes; None if none match this source code and machine.

    Raises:
        ImportError: llvmlite or numba is not installed, or cannot be loaded.
        Exception: the stored object files cannot be linked.
    """
    codes = _load_stored(module)
    if codes is None:
        return None
    found = SimpleNamespace(**{name: _linked(name, code) for name, code in codes.items()})
    threading.Thread(target=release_library_pages, args=("libllvmlite",), name="cedar-pages", daemon=True).start()
    return found


def kept(module: str) -> bool:
    """Return whether ``load`` would find kernels of the module."""
    return _load_stored(module) is not None


def keep(module: str, codes: dict[str, MachineCode], sources: str) -> None:
    """Store kernels for ``load``.

    Args:
        sources: the result of ``sources_of`` before the kernels were compiled.

    Raises:
        OSError: no folder can be written, or the source code changed after ``sources_of``.
    """
    if sources != sources_of(module):
        raise OSError("the kernels' source code changed while they were compiled")

    def write(sink: Any) -> dict[str, Any]:
        about = {}
        for name, code in codes.items():
            start = sink.tell()
            sink.write(code.object)
            about[name] = [code.symbol, code.arguments, start, sink.tell()]
        return about

    name = _name(module)
    if not any(save(place, name, write, {"sources": sources}) for place in _places(module)):
        raise OSError("kernels can be stored neither next to their source code nor in the user's cache folder")


@contextmanager
def turn(module: str) -> Iterator[None]:
    """Acquire a file lock, so that only one process compiles a module; there is no lock if no file can be written."""
    with ExitStack() as stack:
        for place in _places(module):
            stack.enter_context(place.alone(_name(module)))
        yield


def _load_stored(module: str) -> dict[str, MachineCode] | None:
    """Return the stored kernels; None if they are missing, incomplete, or compiled from different source code."""
    name, versions = _name(module), {"sources": sources_of(module)}
    return next((found for place in _places(module) if (found := load_entry(place, name, _codes, versions))), None)


def _codes(entry: Entry) -> dict[str, MachineCode]:
    return {
        name: MachineCode(symbol, tuple(arguments), bytes(entry.body[start:stop]))
        for name, (symbol, arguments, start, stop) in entry.about.items()
    }


def _name(module: str) -> str:
    """Return the entry's name, which depends on the module, this machine's CPU and the compiler's versions."""
    from llvmlite import __version__
    from llvmlite.binding import get_host_cpu_features, get_host_cpu_name

    features = ""
    with suppress(RuntimeError):  # raised if LLVM does not know this CPU's features
        features = get_host_cpu_features().flatten()
    with open(os.path.join(os.path.dirname(_origin("numba")), "_version.py"), "rb") as file:
        numba = hashlib.sha256(file.read()).hexdigest()
    facts = [_origin(module), sys.version, numba, __version__, get_host_cpu_name(), features]
    return name_of("kernels", facts)


def _places(module: str) -> list[Place]:
    """Return the folders for stored kernels: first next to the source code, then the user's cache folder."""
    user = user_place()
    beside = Folder(os.path.join(os.path.dirname(_origin(module)), "__pycache__"), shared=True)
    return [beside] if user is None else [beside, user]


def sources_of(module: str) -> str:
    """Return a hash of the source files in the module's folder and of ``jit.py``, which compiles them."""
    here, found = os.path.dirname(os.path.abspath(__file__)), hashlib.sha256()
    with os.scandir(os.path.dirname(_origin(module))) as entries:
        paths = sorted(entry.path for entry in entries if entry.name.endswith(".py") and entry.is_file())
    for path in [*paths, os.path.join(here, "jit.py")]:
        with open(path, "rb") as file:
            found.update(hashlib.sha256(file.read()).digest())
    return found.hexdigest()


def _origin(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(f"there is no module {module}")
    return spec.origin


# ---- linking and calling ---------------------------------------------------------------------------------------------


def _linked(name: str, code: MachineCode) -> Callable[..., None]:
    """Link a kernel and return it as a callable."""
    import llvmlite.binding as llvm

    if not _engines:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        for symbol, address in _allocator().c_helpers.items():
            llvm.add_symbol(f"NRT_{symbol}", address)
    machine = llvm.Target.from_default_triple().create_target_machine(codemodel="jitdefault", jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)  # one per kernel: helper names clash
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.object))
    engine.finalize_object()
    _engines.append(engine)
    return _callable(name, engine.get_function_address(code.symbol), code.arguments)


def _allocator() -> Any:
    """Load numba's memory allocator, which kernels need, without importing the rest of numba."""
    name = "_nrt_python"
    folder = os.path.join(os.path.dirname(_origin("numba")), "core", "runtime")
    (path,) = glob.glob(os.path.join(glob.escape(folder), f"{name}.*.so"))
    loader = ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _callable(name: str, address: int, arguments: Sequence[str]) -> Callable[..., None]:
    """Return a function that checks its arguments, raises TypeError if they do not fit, and calls the kernel."""
    types: list[Any] = [ctypes.c_void_p, ctypes.c_void_p]  # addresses for the result and the exception
    givers = []
    for argument in arguments:
        giver, own = _argument(name, argument)
        givers.append(giver)
        types += own
    call = ctypes.CFUNCTYPE(ctypes.c_int32, *types)(address)
    ignored = ctypes.addressof(_ignored)

    def run(*values: Any) -> None:
        flat: list[Any] = [ignored, ignored + 32]
        for give, value in zip(givers, values, strict=True):
            give(value, flat)
        if call(*flat):
            raise MemoryError(f"the kernel {name} could not allocate memory")  # kernels raise no other error

    return run


def _argument(kernel: str, argument: str) -> tuple[Callable[[Any, list[Any]], None], list[Any]]:
    """Return how to pass an argument, and its C types: numba passes an array as several values."""
    if argument.endswith("]"):
        name, _, rank = argument[:-1].partition("[")
        dtype, dims = np.dtype(name), int(rank)

        def give_array(value: Any, flat: list[Any]) -> None:
            if value.dtype != dtype or value.ndim != dims or not value.flags.c_contiguous:
                raise TypeError(f"{kernel} takes contiguous {dtype}[{dims}], not {value.dtype}{list(value.shape)}")
            place = value.__array_interface__["data"][0]
            flat += (None, None, value.size, value.itemsize, place, *value.shape, *value.strides)

        sizes = [ctypes.c_int64, ctypes.c_int64]
        return give_array, [ctypes.c_void_p, ctypes.c_void_p, *sizes, ctypes.c_void_p, *sizes * dims]
    name, _, count = argument.partition("*")
    of = float if name.startswith("float") else int
    if not count:
        return lambda value, flat: flat.append(of(value)), [_SCALARS[name]]

    def give_tuple(value: Any, flat: list[Any]) -> None:
        if len(value) != int(count):
            raise TypeError(f"{kernel} takes a tuple of {count}, not {value!r}")
        flat += map(of, value)

    return give_tuple, [_SCALARS[name]] * int(count)


# ---- compiling in the background -------------------------------------------------------------------------------------


VARIABLE = "CEDAR_KERNELS"  # "wait": operators wait for compiled kernels instead of using the slower path
_SILENT_SECONDS = 2.0  # seconds of compiling before a message is printed
_POLL_SECONDS = 0.02
_COMPILE_SCRIPT = (
    "import sys; sys.path[:] = {path!r}; from cedar.operators.native import make; make({module!r}, {names!r}, {parent})"
)
_log = logging.getLogger("cedar")
_loaded: dict[str, Any] = {}


def kernels(module: str, *names: str) -> Any:
    """Return an object with a module's kernels as attributes; None while they compile or if compilation failed.

    Args:
        module: the module's full name; only the compiling process imports the module.
        names: the names of the kernels.
    """
    loaded = _loaded.get(module)
    if loaded is not None:
        return loaded
    with _lock:
        if module not in _loaded and module not in _compile_queue.known:
            _load(module)
            if module not in _loaded and module not in _compile_queue.known:
                _compile_queue.enqueue(module, names)
    if os.environ.get(VARIABLE) == "wait":
        if (thread := _compile_queue.thread) is not None:
            thread.join()
        if module in _compile_queue.failed:
            raise invalid_call(f"kernels are not available: {_compile_queue.failed[module]}")
    return _loaded.get(module)


def is_compiling() -> bool:
    """Return whether kernels are compiling, so that operators use the much slower implementation."""
    return _compile_queue.thread is not None


def _load(module: str) -> None:
    """Load a module's compiled kernels if they are on disk. The caller must hold ``_lock``."""
    try:
        found = load(module)
    except ImportError as error:
        raise invalid_call(
            f"kernels of images and sound need numba: {error}",
            fix="pip install 'cedar-data[images]', or 'cedar-data[audio]'",
        ) from error
    except Exception as error:  # noqa: BLE001 - after any linker error, operators use the slower implementation
        _compile_queue.record_failure(module, f"the stored kernels cannot be linked: {error}")
        return
    if found is not None:
        _loaded[module] = found


class _CompileQueue:
    """A queue of modules. Another process compiles each in turn, and this process then loads the kernels."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.failed: dict[str, str] = {}
        self._waiting: deque[tuple[str, Sequence[str]]] = deque()
        self.thread: threading.Thread | None = None  # while modules are compiled

    def enqueue(self, module: str, names: Sequence[str]) -> None:
        """Add a module to the queue. The caller must hold ``_lock``."""
        self.known.add(module)
        self._waiting.append((module, names))
        if self.thread is None:
            thread = threading.Thread(target=self._run, name="cedar-kernels", daemon=True)
            thread.start()
            self.thread = thread

    def record_failure(self, module: str, why: str) -> None:
        """Record that a module cannot be compiled, and log it."""
        self.known.add(module)
        self.failed[module] = why
        _log.warning("compiled kernels are not available, so rows take many times as long: %s", why)

    def _run(self) -> None:
        began, reported = time.perf_counter(), False
        while wanted := self._next():
            module, names = wanted
            try:
                with tempfile.TemporaryFile() as errors:
                    process = _process(module, names, errors)
                    while process.poll() is None:
                        time.sleep(_POLL_SECONDS)
                        if not reported and time.perf_counter() - began > _SILENT_SECONDS:
                            reported = True
                            say("compiling kernels in the background, once on this machine; rows are slow until then")
                    with _lock:
                        _load(module)
                    why = f"they could not be compiled: {_reason(errors)}"
            except Exception as error:  # noqa: BLE001 - a failed compilation must not end the run
                why = f"they could not be compiled: {error}"
            if module not in _loaded and module not in self.failed:
                self.record_failure(module, why)
        if reported and not self.failed:
            say(f"kernels are compiled, after {time.perf_counter() - began:.0f} s")

    def _next(self) -> tuple[str, Sequence[str]] | None:
        with _lock:
            if self._waiting:
                return self._waiting.popleft()
            self.thread = None
            return None


def say(text: str) -> None:
    """Print a message if a user can see it (a terminal or a notebook); otherwise log it."""
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        print(f"cedar: {text}", file=sys.stderr, flush=True)  # noqa: T201 - progress for a waiting user
    else:
        _log.info("%s", text)


def _reason(errors: IO[bytes]) -> str:
    """Return the exception line of the last traceback in a process's stderr; without a traceback, the first line."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").splitlines()
    inside = [i for i, line in enumerate(lines) if line.startswith("  File ")]
    behind = [line for line in lines[inside[-1] if inside else 0 :] if line and not line.startswith(" ")]
    return behind[0] if behind else "the compiler printed nothing"


def _process(
    module: str, names: Sequence[str], errors: IO[bytes] | int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a process that compiles a module and stores the kernels on disk for this and later processes."""
    path = [each for each in sys.path if isinstance(each, str)]  # as Python, ignore other entries
    code = _COMPILE_SCRIPT.format(path=path, module=module, names=tuple(names), parent=os.getpid())
    command = [sys.executable, "-P", "-c", code]
    nothing: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    env = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}  # the result is shared
    process = subprocess.Popen(command, process_group=0, stderr=errors, env=env, **nothing)  # noqa: S603 - Python
    atexit.register(process.kill)
    return process


def make(module: str, names: Sequence[str], parent: int) -> None:
    """Compile a module unless its kernels are stored; this function runs in the process that ``_process`` starts.

    That process ends with its parent. It has normal priority, because compiled kernels are ten times as fast.
    """
    from cedar.operators.jit import compile_for_storage

    def exit_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()
    with turn(module):
        if not kept(module):
            sources = sources_of(module)
            keep(module, compile_for_storage(module, names), sources)


def _reset_after_fork() -> None:
    """Replace the queue in a forked process, because the compiling thread does not exist there."""
    global _compile_queue  # noqa: PLW0603
    _compile_queue = _CompileQueue()


slow_path_lock = Lock()  # lets only one thread at a time run a slow implementation, so that the compiler gets a core
_lock = Lock()
_compile_queue = _CompileQueue()
os.register_at_fork(after_in_child=_reset_after_fork)
