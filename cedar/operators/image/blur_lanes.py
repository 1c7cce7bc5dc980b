"""The inner loops of blurring in LLVM vector instructions: weighted sums of several float32 lines together."""

# ruff: noqa: ARG001 - numba passes these arguments to every intrinsic
from __future__ import annotations

import itertools
from typing import Any

from cedar.operators.jit import numba, part

LANES = 32  # values per line that are summed together, so that the sums stay in registers
ROWS = 4  # lines that are summed together
_REGISTER = 8  # values per register; longer loads would cross cache lines more often

_nb = numba()
_ir, _cgutils = part("llvmlite.ir"), part("numba.core.cgutils")
_I32, _I64, _F32 = _ir.IntType(32), _ir.IntType(64), _ir.FloatType()
_LINE = _ir.VectorType(_F32, _REGISTER)
_void = _nb.core.types.void


def _number(value: int) -> Any:
    return _ir.Constant(_I64, value)


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def _splat(builder: Any, address: Any) -> Any:
    nothing = _ir.Constant(_LINE, _ir.Undefined)
    first = builder.insert_element(nothing, _load(builder, address, _F32), _ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, nothing, _ir.Constant(_ir.VectorType(_I32, _REGISTER), [0] * _REGISTER))


def _generate_sums(builder: Any, rows: int, count: Any, target: Any, pitch: Any, chunks: Any, load_step: Any) -> None:
    """Generate code that sums lines; ``load_step(chunk, k)`` returns the weights and the parts of lines to add."""
    fma = _cgutils.get_or_insert_function(
        builder.module, _ir.FunctionType(_LINE, [_LINE] * 3), f"llvm.fma.v{_REGISTER}f32"
    )
    parts = LANES // _REGISTER
    with _cgutils.for_range(builder, chunks) as along:
        position = builder.mul(along.index, _number(4 * LANES))
        totals = [[_cgutils.alloca_once(builder, _LINE) for _ in range(parts)] for _ in range(rows)]
        for total in itertools.chain(*totals):
            builder.store(_ir.Constant(_LINE, [0.0] * _REGISTER), total)
        with _cgutils.for_range(builder, count) as loop:
            weights, lines = load_step(position, loop.index)
            for row in range(rows):
                for total, line in zip(totals[row], lines[row], strict=True):
                    builder.store(builder.call(fma, [line, weights[row], builder.load(total)]), total)
        for row in range(rows):
            begin = builder.add(builder.add(target, position), builder.mul(pitch, _number(row)))
            for i, total in enumerate(totals[row]):
                pointer = builder.inttoptr(builder.add(begin, _number(4 * _REGISTER * i)), _LINE.as_pointer())
                builder.store(builder.load(total), pointer, align=4)


def _parts(builder: Any, begin: Any) -> list[Any]:
    return [_load(builder, builder.add(begin, _number(4 * i)), _LINE) for i in range(0, LANES, _REGISTER)]


@_nb.extending.intrinsic  # type: ignore[untyped-decorator]
def sum_down(
    typing: Any, source: Any, offsets: Any, weights: Any, count: Any, target: Any, pitch: Any, chunks: Any
) -> Any:
    """Write ROWS lines, each of ``chunks`` times LANES float32, to ``target`` at distances of ``pitch`` bytes.

    Line i is the sum over k < ``count`` of ``weights[k - i]`` times the line at ``source`` + ``offsets[k]`` bytes, by
    fused multiply-add in ascending k. The array arguments are addresses: ``offsets`` of int64, the others of float32.
    ``weights`` has ROWS - 1 extra entries on both sides.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, offsets, weights, count, target, pitch, chunks = args

        def load_step(position: Any, k: Any) -> Any:
            shift = _load(builder, builder.add(offsets, builder.mul(k, _number(8))), _I64)
            line = _parts(builder, builder.add(builder.add(source, position), shift))
            weight_address = builder.add(weights, builder.mul(k, _number(4)))
            return [_splat(builder, builder.sub(weight_address, _number(4 * row))) for row in range(ROWS)], [
                line
            ] * ROWS

        _generate_sums(builder, ROWS, count, target, pitch, chunks, load_step)
        return context.get_dummy_value()

    return _void(source, offsets, weights, count, target, pitch, chunks), generate


@_nb.extending.intrinsic  # type: ignore[untyped-decorator]
def sum_across(
    typing: Any, source: Any, stride: Any, weights: Any, count: Any, target: Any, pitch: Any, chunks: Any
) -> Any:
    """Write two lines, each of ``chunks`` times LANES float32, to ``target`` at a distance of ``pitch`` bytes.

    Value x is the sum over k < ``count`` of ``weights[k]`` times value x + k of the same line of ``source``, by fused
    multiply-add in ascending k. ``stride`` is the number of bytes between lines of ``source``.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, stride, weights, count, target, pitch, chunks = args

        def load_step(position: Any, k: Any) -> Any:
            shift = builder.mul(k, _number(4))
            weight = _splat(builder, builder.add(weights, shift))
            begin = builder.add(builder.add(source, position), shift)
            return [weight] * 2, [_parts(builder, begin), _parts(builder, builder.add(begin, stride))]

        _generate_sums(builder, 2, count, target, pitch, chunks, load_step)
        return context.get_dummy_value()

    return _void(source, stride, weights, count, target, pitch, chunks), generate
