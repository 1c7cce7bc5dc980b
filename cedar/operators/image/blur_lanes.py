"""The inner loop of blurring, written in LLVM's vectors: weighted sums of lines of float32."""

# ruff: noqa: ARG001 - what numba hands to every intrinsic
from __future__ import annotations

from typing import Any

from cedar.operators.image.pixels_jit import numba, part

LANES = 32  # numbers of a line that are worked on at once: their sums stay in registers

_nb = numba()
_ir, _cgutils = part("llvmlite.ir"), part("numba.core.cgutils")
_I32, _I64, _F32 = _ir.IntType(32), _ir.IntType(64), _ir.FloatType()
_LINE = _ir.VectorType(_F32, LANES)


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


@_nb.extending.intrinsic  # type: ignore[untyped-decorator]
def sum_lines(typing: Any, source: Any, offsets: Any, weights: Any, count: Any, target: Any, chunks: Any) -> Any:
    """``chunks`` times LANES float32 at ``target``: the sum over k of ``weights[k]`` times what lies ``offsets[k]``
    bytes after ``source``, by fused multiply and add, k ascending. All are addresses, of int64 and of float32.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, offsets, weights, count, target, chunks = args
        kind = _ir.FunctionType(_LINE, [_LINE] * 3)
        fma = _cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        with _cgutils.for_range(builder, chunks) as along:
            place = builder.mul(along.index, _ir.Constant(_I64, 4 * LANES))
            begin = builder.add(source, place)
            total = _cgutils.alloca_once(builder, _LINE)
            builder.store(_ir.Constant(_LINE, [0.0] * LANES), total)
            with _cgutils.for_range(builder, count) as loop:
                shift = _load(builder, builder.add(offsets, builder.mul(loop.index, _ir.Constant(_I64, 8))), _I64)
                weight = _load(builder, builder.add(weights, builder.mul(loop.index, _ir.Constant(_I64, 4))), _F32)
                nothing = _ir.Constant(_LINE, _ir.Undefined)
                spread = builder.insert_element(nothing, weight, _ir.Constant(_I32, 0))
                zeros = _ir.Constant(_ir.VectorType(_I32, LANES), [0] * LANES)
                spread = builder.shuffle_vector(spread, nothing, zeros)
                line = _load(builder, builder.add(begin, shift), _LINE)
                builder.store(builder.call(fma, [line, spread, builder.load(total)]), total)
            at = builder.inttoptr(builder.add(target, place), _LINE.as_pointer())
            builder.store(builder.load(total), at, align=4)
        return context.get_dummy_value()

    return _nb.core.types.void(source, offsets, weights, count, target, chunks), generate
