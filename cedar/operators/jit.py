"""Loops as machine code: compiled by numba, run without the GIL.

Runs do not import this: they load what was compiled (``cedar.operators.native``), by another process where need be
(``cedar.operators.beside``).
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from cedar.operators.native import MachineCode

F = TypeVar("F", bound=Callable[..., Any])

_to_keep = False  # kernels are compiled to be kept: no Python function calls them


def numba() -> Any:
    """The numba module."""
    return importlib.import_module("numba")


def part(name: str) -> Any:
    """A module of numba's, by its full name."""
    return importlib.import_module(name)


def kernel(signature: str | None = None) -> Callable[[F], F]:
    """Compile a function to machine code that runs without the GIL.

    Args:
        signature: compiled at once for it, and takes no other types; None waits for the first call.
    """
    nb, signatures = numba(), () if signature is None else (signature,)
    how: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True} if _to_keep else {"cache": True}
    return nb.njit(*signatures, nogil=True, error_model="numpy", **how)  # type: ignore[no-any-return]


def compile_to_keep(module: str, names: Sequence[str]) -> dict[str, MachineCode]:
    """Kernels of a module that was not imported yet, for ``native.keep``; each has one signature and returns nothing.

    Raises:
        Exception: what importing the module raises.
    """
    global _to_keep  # noqa: PLW0603 - of the process, which does nothing else
    _to_keep = True
    made = importlib.import_module(module)
    return {name: _code(getattr(made, name)) for name in names}


def _code(dispatcher: Any) -> MachineCode:
    (compiled,) = dispatcher.overloads.values()
    signature = compiled.signature
    if signature.return_type != numba().void:
        raise TypeError(f"{dispatcher.__name__} returns {signature.return_type}: what is kept returns nothing")
    arguments = tuple(map(_argument, signature.args))
    whole = compiled.library._final_module
    names = [each.name for each in (*whole.functions, *whole.global_variables) if each.is_declaration]
    unknown = [name for name in names if not _found(name)]
    if unknown:
        raise TypeError(f"{dispatcher.__name__} calls {', '.join(unknown)}, which is not there without numba")
    if compiled.library.has_dynamic_globals:
        raise TypeError(f"{dispatcher.__name__} holds addresses of the process that compiles it")
    return MachineCode(compiled.fndesc.llvm_func_name, arguments, compiled.library._get_compiled_object())


def _found(symbol: str) -> bool:
    """LLVM, numba's allocator or the system's libraries have a function."""
    return symbol.startswith(("llvm.", "NRT_")) or hasattr(ctypes.CDLL(None), symbol)


def _argument(kind: Any) -> str:
    """As ``native.MachineCode`` has it."""
    types = numba().core.types
    if isinstance(kind, types.Array) and kind.layout == "C" and kind.mutable:
        return f"{kind.dtype}[{kind.ndim}]"
    if isinstance(kind, types.UniTuple):
        return f"{kind.dtype}*{kind.count}"
    if kind in (types.int64, types.float32, types.float64, types.boolean):
        return str(kind)
    raise TypeError(f"no kernel that is kept takes {kind}")
