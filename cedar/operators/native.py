"""Kernels as machine code: kept on disk, loaded without the compiler, called without the GIL.

numba takes 0.4 s to import, and as long again to load what it keeps by itself; an object file needs nothing but LLVM's
linker. What is kept is of one module: its kernels, each as an object file, with the symbol to call and the arguments.
"""

from __future__ import annotations

import base64
import ctypes
import fcntl
import glob
import hashlib
import importlib.util
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from types import SimpleNamespace
from typing import Any

import numpy as np

from cedar.core.library_pages import let_go
from cedar.store.private_folder import ours, private_folder

_VERSION = 1
_DIGEST = hashlib.sha256().digest_size
_SCALARS = {"int64": ctypes.c_int64, "float32": ctypes.c_float, "float64": ctypes.c_double, "bool": ctypes.c_int8}
_ignored = (ctypes.c_char * 64)()  # where a call says what it returns, which is nothing, and what it raises
_engines: list[Any] = []  # hold the code of all kernels, which nobody unloads


@dataclass(frozen=True)
class Code:
    """A kernel as it is kept.

    Args:
        symbol: of the function: numba's own, not the one that Python calls.
        arguments: "int64", "float32", "float64" or "bool"; with "*3" behind it a tuple of three, with "[2]" a
            contiguous array of two dimensions.
        object: the file, in the format of the system's linker.
    """

    symbol: str
    arguments: tuple[str, ...]
    object: bytes


def load(module: str) -> Any:
    """The kernels of a module, as attributes; None where none are kept, or those are of other code or another machine.

    Raises:
        ImportError: llvmlite or numba is not installed, or does not load.
        Exception: what is kept cannot be linked.
    """
    for path in _paths(module):
        codes = _read(path, module)
        if codes is not None:
            found = SimpleNamespace(**{name: _linked(name, code) for name, code in codes.items()})
            threading.Thread(target=let_go, args=("libllvmlite",), name="cedar-pages", daemon=True).start()
            return found
    return None


def kept(module: str) -> bool:
    """``load`` would find them."""
    return any(_read(path, module) is not None for path in _paths(module))


def keep(module: str, codes: dict[str, Code], sources: str) -> None:
    """Write kernels to where ``load`` finds them.

    Args:
        sources: what ``sources_of`` said before they were compiled.

    Raises:
        OSError: there is no such place, or it cannot be written; or the code is another one by now.
    """
    if sources != sources_of(module):
        raise OSError("their code was changed while they were compiled")
    entries = {
        name: {"symbol": c.symbol, "arguments": c.arguments, "object": base64.b64encode(c.object).decode()}
        for name, c in codes.items()
    }
    text = json.dumps({"version": _VERSION, "sources": sources, "kernels": entries}).encode()
    failed: OSError | None = None
    for path in _paths(module):
        try:
            _write(path, hashlib.sha256(text).digest() + text)
            return
        except OSError as error:
            failed = error
    raise failed or OSError("this user has no folder of its own for kernels")


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    number, temporary = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".tmp")
    try:
        os.fchmod(number, 0o644)  # as code is: a folder of code may be for several users
        with os.fdopen(number, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


@contextmanager
def turn(module: str) -> Iterator[None]:
    """One process after the other that would compile the same; all at once where no file can be written."""
    with ExitStack() as stack:
        for path in _paths(module):
            with suppress(OSError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                file = stack.enter_context(open(f"{path}.lock", "w", encoding="ascii"))
                fcntl.flock(file, fcntl.LOCK_EX)
                break
        yield


def _read(path: str, module: str) -> dict[str, Code] | None:
    """What is kept; None where that is nothing, torn, or of other code."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
            return None
        saved = json.loads(data[_DIGEST:])
        if saved["version"] != _VERSION or saved["sources"] != sources_of(module):
            return None
        return {
            name: Code(entry["symbol"], tuple(entry["arguments"]), base64.b64decode(entry["object"]))
            for name, entry in saved["kernels"].items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _paths(module: str) -> list[str]:
    """Where kernels of this machine and these versions are kept: beside their code, or else in a folder of the user."""
    from llvmlite import __version__
    from llvmlite.binding import get_host_cpu_features, get_host_cpu_name

    origin, features = _origin(module), ""
    with suppress(RuntimeError):  # LLVM cannot tell
        features = get_host_cpu_features().flatten()
    with open(os.path.join(os.path.dirname(_origin("numba")), "_version.py"), "rb") as file:
        numba = file.read()
    facts = (origin, sys.version, numba, __version__, get_host_cpu_name(), features)
    name = f"{module.rpartition('.')[2]}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.kernels"
    temporary = os.path.join(tempfile.gettempdir(), f"cedar-kernels-{os.geteuid()}")
    folders = [os.path.join(os.path.dirname(origin), "__pycache__"), private_folder("kernels")]
    folders += [temporary] if ours(temporary) else []
    return [os.path.join(folder, name) for folder in folders if folder]


def sources_of(module: str) -> str:
    """Stands for what its kernels are made from: the code of its folder alone, and how that is compiled."""
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


def _linked(name: str, code: Code) -> Callable[..., None]:
    """A kernel that can be called."""
    import llvmlite.binding as llvm

    if not _engines:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        for symbol, address in _allocator().c_helpers.items():
            llvm.add_symbol(f"NRT_{symbol}", address)
    machine = llvm.Target.from_default_triple().create_target_machine(codemodel="jitdefault", jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)  # of its own: their helpers have equal names
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.object))
    engine.finalize_object()
    _engines.append(engine)
    return _callable(name, engine.get_function_address(code.symbol), code.arguments)


def _allocator() -> Any:
    """Numba's own, by which its kernels get memory, without the rest of numba."""
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
    """A function that takes what the kernel takes, and raises TypeError where that is something else."""
    types: list[Any] = [ctypes.c_void_p, ctypes.c_void_p]  # where results go, and what is raised
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
            raise MemoryError(f"the kernel {name} got no memory")  # it raises nothing else

    return run


def _argument(kernel: str, argument: str) -> tuple[Callable[[Any, list[Any]], None], list[Any]]:
    """How a value is given, and as what: numba's convention, in which an array is its parts."""
    if argument.endswith("]"):
        kind, _, dims = argument[:-1].partition("[")
        return _array(kernel, np.dtype(kind), int(dims)), [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
            *[ctypes.c_int64] * (2 * int(dims)),
        ]  # fmt: skip
    kind, _, times = argument.partition("*")
    of = float if kind.startswith("float") else int
    if not times:
        return lambda value, flat: flat.append(of(value)), [_SCALARS[kind]]
    return _several(kernel, of, int(times)), [_SCALARS[kind]] * int(times)


def _array(kernel: str, kind: np.dtype[Any], dims: int) -> Callable[[Any, list[Any]], None]:
    def give(value: Any, flat: list[Any]) -> None:
        if value.dtype != kind or value.ndim != dims or not value.flags.c_contiguous:
            raise TypeError(f"{kernel} takes contiguous {kind}[{dims}], not {value.dtype}{list(value.shape)}")
        place = value.__array_interface__["data"][0]
        flat += (None, None, value.size, value.itemsize, place, *value.shape, *value.strides)

    return give


def _several(kernel: str, of: Callable[[Any], Any], times: int) -> Callable[[Any, list[Any]], None]:
    def give(value: Any, flat: list[Any]) -> None:
        if len(value) != times:
            raise TypeError(f"{kernel} takes a tuple of {times}, not {value!r}")
        flat += map(of, value)

    return give
