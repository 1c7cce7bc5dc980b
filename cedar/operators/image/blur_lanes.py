"""The inner loops of blurring in LLVM vector instructions: weighted sums of float32 lines, several lines at once."""

# ruff: noqa: ARG001 - numba passes these arguments to every intrinsic
from __future__ import annotations

import itertools
from typing import Any

from cedar.operators.jit import numba, part

LANES = 32  # values of a line that are summed together, so that their sums stay in registers
ROWS = 4  # lines that are summed together
_PART = 8  # values per register; longer loads would cross cache lines more often

_nb = numba()
_ir, _cgutils = part("llvmlite.ir"), part("numba.core.cgutils")
_I32, _I64, _F32 = _ir.IntType(32), _ir.IntType(64), _ir.FloatType()
_LINE = _ir.VectorType(_F32, _PART)
_void = _nb.core.types.void


def _number(value: int) -> Any:
    return _ir.Constant(_I64, value)


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def _splat(builder: Any, address: Any) -> Any:
    nothing = _ir.Constant(_LINE, _ir.Undefined)
    first = builder.insert_element(nothing, _load(builder, address, _F32), _ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, nothing, _ir.Constant(_ir.VectorType(_I32, _PART), [0] * _PART))


def _summed(builder: Any, rows: int, count: Any, target: Any, pitch: Any, chunks: Any, each: Any) -> None:
    """Generate code that sums lines. ``each(chunk, k)`` returns step k's weights and parts of lines for each row."""
    fma = _cgutils.get_or_insert_function(builder.module, _ir.FunctionType(_LINE, [_LINE] * 3), f"llvm.fma.v{_PART}f32")
    parts = LANES // _PART
    with _cgutils.for_range(builder, chunks) as along:
        place = builder.mul(along.index, _number(4 * LANES))
        totals = [[_cgutils.alloca_once(builder, _LINE) for _ in range(parts)] for _ in range(rows)]
        for total in itertools.chain(*totals):
            builder.store(_ir.Constant(_LINE, [0.0] * _PART), total)
        with _cgutils.for_range(builder, count) as loop:
            weights, lines = each(place, loop.index)
            for row in range(rows):
                for total, line in zip(totals[row], lines[row], strict=True):
                    builder.store(builder.call(fma, [line, weights[row], builder.load(total)]), total)
        for row in range(rows):
            begin = builder.add(builder.add(target, place), builder.mul(pitch, _number(row)))
            for i, total in enumerate(totals[row]):
                at = builder.inttoptr(builder.add(begin, _number(4 * _PART * i)), _LINE.as_pointer())
                builder.store(builder.load(total), at, align=4)


def _parts(builder: Any, begin: Any) -> list[Any]:
    return [_load(builder, builder.add(begin, _number(4 * i)), _LINE) for i in range(0, LANES, _PART)]


@_nb.extending.intrinsic  # type: ignore[untyped-decorator]
def sum_down(
    typing: Any, source: Any, offsets: Any, weights: Any, count: Any, target: Any, pitch: Any, chunks: Any
) -> Any:
    """Write ROWS lines of ``chunks`` times LANES float32 to ``target``, ``pitch`` bytes between them.

    Line i is the sum over k < ``count`` of ``weights[k - i]`` times the line at ``source`` + ``offsets[k]`` bytes, by
    fused multiply-add in ascending k. The array arguments are addresses: ``offsets`` of int64, the others of float32.
    ``weights`` has ROWS - 1 extra entries on both sides.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, offsets, weights, count, target, pitch, chunks = args

        def each(place: Any, k: Any) -> Any:
            shift = _load(builder, builder.add(offsets, builder.mul(k, _number(8))), _I64)
            line = _parts(builder, builder.add(builder.add(source, place), shift))
            own = builder.add(weights, builder.mul(k, _number(4)))
            return [_splat(builder, builder.sub(own, _number(4 * row))) for row in range(ROWS)], [line] * ROWS

        _summed(builder, ROWS, count, target, pitch, chunks, each)
        return context.get_dummy_value()

    return _void(source, offsets, weights, count, target, pitch, chunks), generate


@_nb.extending.intrinsic  # type: ignore[untyped-decorator]
def sum_across(
    typing: Any, source: Any, stride: Any, weights: Any, count: Any, target: Any, pitch: Any, chunks: Any
) -> Any:
    """Write two lines of ``chunks`` times LANES float32 to ``target``, ``pitch`` bytes between them.

    Value x is the sum over k < ``count`` of ``weights[k]`` times value x + k of the same line of ``source``, by fused
    multiply-add in ascending k. ``stride`` is the number of bytes between lines of ``source``.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, stride, weights, count, target, pitch, chunks = args

        def each(place: Any, k: Any) -> Any:
            shift = builder.mul(k, _number(4))
            weight = _splat(builder, builder.add(weights, shift))
            begin = builder.add(builder.add(source, place), shift)
            return [weight] * 2, [_parts(builder, begin), _parts(builder, builder.add(begin, stride))]

        _summed(builder, 2, count, target, pitch, chunks, each)
        return context.get_dummy_value()

    return _void(source, stride, weights, count, target, pitch, chunks), generate
