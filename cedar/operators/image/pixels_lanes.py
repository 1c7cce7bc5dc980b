"""Operations that numba lacks: fused multiply-add, rounding within float32, and pointers from addresses.

LLVM vectorizes loops over these operations, as it does for plain arithmetic.
"""

# ruff: noqa: ARG001 - numba passes these arguments to every intrinsic
from __future__ import annotations

from typing import Any

import numpy as np

from cedar.operators.jit import kernel, numba, part

_nb = numba()
_ir = part("llvmlite.ir")
_types = _nb.core.types


def _unary(name: str) -> Any:
    def declare(typing: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            float32 = _ir.FloatType()
            wanted = builder.module.declare_intrinsic(f"llvm.{name}", [float32])
            return builder.call(wanted, args)

        return (_types.float32(_types.float32), generate) if x == _types.float32 else None

    declare.__name__ = declare.__qualname__ = name
    return _nb.extending.intrinsic(declare)


floor32 = _unary("floor")
even32 = _unary("rint")  # rounds to the nearest integer; halves to even


@_nb.extending.intrinsic  # type: ignore[untyped-decorator]
def fma32(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x * y + z in float32, rounded once, as torch's ``z.add(x, alpha=y)`` does on processors with FMA."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    kind = _types.float32
    return (kind(kind, kind, kind), generate) if (x, y, z) == (kind, kind, kind) else None


def _pointer(kind: Any, element: Any) -> Any:
    def declare(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], element.as_pointer())

        return _types.CPointer(kind)(_types.int64), generate

    declare.__name__ = declare.__qualname__ = f"pointer_{kind}"
    return _nb.extending.intrinsic(declare)


pointer = _pointer(_types.uint8, _ir.IntType(8))  # converts an address to a pointer for ``numba.carray``
float_pointer = _pointer(_types.float32, _ir.FloatType())


@kernel()
def address(array: Any) -> Any:
    """Return the address of an array's data as int64; numba would convert sums of uint64 and int64 to float."""
    return np.int64(array.ctypes.data)
