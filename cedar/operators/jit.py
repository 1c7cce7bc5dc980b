"""Compiles Python loops with numba to machine code that runs without the GIL.

Runs do not import this module. They load compiled kernels (``cedar.operators.native``). If kernels are missing, another
process compiles them (``cedar.operators.native``).
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from cedar.operators.native import MachineCode

F = TypeVar("F", bound=Callable[..., Any])

_compiling_to_store = False  # True in a process that compiles kernels without Python wrappers, to store them on disk


def numba() -> Any:
    """Import and return numba."""
    return importlib.import_module("numba")


def part(name: str) -> Any:
    """Import and return a submodule of numba by its full name."""
    return importlib.import_module(name)


def kernel(signature: str | None = None) -> Callable[[F], F]:
    """Compile a function to machine code that runs without the GIL.

    Args:
        signature: the argument types, for which the kernel is compiled immediately; None compiles on first call.
    """
    nb, signatures = numba(), () if signature is None else (signature,)
    how: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True} if _compiling_to_store else {"cache": True}
    return nb.njit(*signatures, nogil=True, error_model="numpy", **how)  # type: ignore[no-any-return]


def compile_for_storage(module: str, names: Sequence[str]) -> dict[str, MachineCode]:
    """Import a module and return its kernels for ``native.keep``; each must have one signature and return nothing.

    Raises:
        Exception: any exception that importing the module raises.
    """
    global _compiling_to_store  # noqa: PLW0603 - this process does nothing else
    _compiling_to_store = True
    made = importlib.import_module(module)
    return {name: _code(getattr(made, name)) for name in names}


def _code(dispatcher: Any) -> MachineCode:
    (compiled,) = dispatcher.overloads.values()
    signature = compiled.signature
    if signature.return_type != numba().void:
        raise TypeError(f"{dispatcher.__name__} returns {signature.return_type}: a stored kernel must return nothing")
    arguments = tuple(map(_argument, signature.args))
    whole = compiled.library._final_module
    system = ctypes.CDLL(None)  # LLVM, numba's allocator and the system libraries provide functions
    names = [each.name for each in (*whole.functions, *whole.global_variables) if each.is_declaration]
    unknown = [name for name in names if not name.startswith(("llvm.", "NRT_")) and not hasattr(system, name)]
    if unknown:
        raise TypeError(f"{dispatcher.__name__} calls {', '.join(unknown)}, which is not available without numba")
    if compiled.library.has_dynamic_globals:
        raise TypeError(f"{dispatcher.__name__} holds addresses of the process that compiles it")
    return MachineCode(compiled.fndesc.llvm_func_name, arguments, compiled.library._get_compiled_object())


def _argument(kind: Any) -> str:
    """Return the type of a kernel's argument in the notation of ``native.MachineCode``."""
    types = numba().core.types
    if isinstance(kind, types.Array) and kind.layout == "C" and kind.mutable:
        return f"{kind.dtype}[{kind.ndim}]"
    if isinstance(kind, types.UniTuple):
        return f"{kind.dtype}*{kind.count}"
    if kind in (types.int64, types.float32, types.float64, types.boolean):
        return str(kind)
    raise TypeError(f"a stored kernel cannot take an argument of type {kind}")
