"""What numba lacks: loads and stores at addresses, which need not be aligned."""

# ruff: noqa: ARG001 - numba passes these arguments to every intrinsic
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cedar.operators.jit import numba, part

_types = numba().core.types
_ir = part("llvmlite.ir")
_byte, _half, _word = (_ir.IntType(bits) for bits in (8, 32, 64))


def _load(kind: Any) -> Callable[..., Any]:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], kind.as_pointer()), align=1)

    return generate


@numba().extending.intrinsic  # type: ignore[untyped-decorator]
def load_word(typing: Any, address: Any) -> Any:
    """Return the eight bytes at an address as uint64."""
    return _types.uint64(_types.int64), _load(_word)


@numba().extending.intrinsic  # type: ignore[untyped-decorator]
def load_half(typing: Any, address: Any) -> Any:
    """Return the four bytes at an address as uint32."""
    return _types.uint32(_types.int64), _load(_half)


@numba().extending.intrinsic  # type: ignore[untyped-decorator]
def store_word(typing: Any, address: Any, value: Any) -> Any:
    """Write eight bytes at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], _word.as_pointer()), align=1)
        return context.get_dummy_value()

    return _types.void(_types.int64, _types.uint64), generate


@numba().extending.intrinsic  # type: ignore[untyped-decorator]
def copy_words(typing: Any, target: Any, source: Any) -> Any:
    """Copy 16 bytes between addresses."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = _ir.VectorType(_byte, 16).as_pointer()
        value = builder.load(builder.inttoptr(args[1], words), align=1)
        builder.store(value, builder.inttoptr(args[0], words), align=1)
        return context.get_dummy_value()

    return _types.void(_types.int64, _types.int64), generate


@numba().extending.intrinsic  # type: ignore[untyped-decorator]
def as_pointer(typing: Any, address: Any) -> Any:
    """Return an address as a pointer, for ``carray``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], _byte.as_pointer())

    return _types.voidptr(_types.int64), generate
