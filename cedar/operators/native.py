"""Compiled kernels: stored on disk as machine code, loaded without the compiler, called without the GIL.

Importing numba takes 0.4 s, and so does loading numba's own cache; an object file needs only LLVM's linker. A cache
entry contains the kernels of one module, each as an object file with the symbol to call and its arguments.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from types import SimpleNamespace
from typing import Any

import numpy as np

from cedar.core.library_pages import release_idle
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
    threading.Thread(target=release_idle, args=("libllvmlite",), name="cedar-pages", daemon=True).start()
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
        kind, _, dims = argument[:-1].partition("[")
        return _array_argument(kernel, np.dtype(kind), int(dims)), [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
            *[ctypes.c_int64] * (2 * int(dims)),
        ]  # fmt: skip
    kind, _, times = argument.partition("*")
    of = float if kind.startswith("float") else int
    if not times:
        return lambda value, flat: flat.append(of(value)), [_SCALARS[kind]]
    return _tuple_argument(kernel, of, int(times)), [_SCALARS[kind]] * int(times)


def _array_argument(kernel: str, kind: np.dtype[Any], dims: int) -> Callable[[Any, list[Any]], None]:
    def give(value: Any, flat: list[Any]) -> None:
        if value.dtype != kind or value.ndim != dims or not value.flags.c_contiguous:
            raise TypeError(f"{kernel} takes contiguous {kind}[{dims}], not {value.dtype}{list(value.shape)}")
        place = value.__array_interface__["data"][0]
        flat += (None, None, value.size, value.itemsize, place, *value.shape, *value.strides)

    return give


def _tuple_argument(kernel: str, of: Callable[[Any], Any], times: int) -> Callable[[Any, list[Any]], None]:
    def give(value: Any, flat: list[Any]) -> None:
        if len(value) != times:
            raise TypeError(f"{kernel} takes a tuple of {times}, not {value!r}")
        flat += map(of, value)

    return give
