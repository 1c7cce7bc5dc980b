"""The two inner loops of resizing in LLVM vector instructions: weighted sums of pixels and of lines.

Pixels of three bytes are read as four bytes, so that they fill four vector lanes. This is several times as fast as the
code that compilers generate for a plain loop.
"""

# ruff: noqa: ARG001 - numba passes these arguments to every intrinsic
from __future__ import annotations

from typing import Any

from cedar.operators.jit import numba, part

BITS = 22  # fractional bits of a weight, as in Pillow: 32 bits minus 8 for the pixel and 2 for overflow
LINE = 32  # bytes of a line that are processed together
GROUP = 4  # rows that are processed together
_UNROLLED = 6  # maximum number of inputs per output for which the loop is unrolled

_nb = numba()
_ir, _cgutils = part("llvmlite.ir"), part("numba.core.cgutils")
_I8, _I32, _I64 = _ir.IntType(8), _ir.IntType(32), _ir.IntType(64)
_PIXEL = _ir.VectorType(_I8, 4)


def _number(value: int) -> Any:
    return _ir.Constant(_I64, value)


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


def _splat(builder: Any, value: Any, kind: Any) -> Any:
    nothing = _ir.Constant(kind, _ir.Undefined)
    first = builder.insert_element(nothing, value, _ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, nothing, _ir.Constant(_ir.VectorType(_I32, kind.count), [0] * kind.count))


def _start(builder: Any, lanes: int) -> Any:
    kind = _ir.VectorType(_I32, lanes)
    total = _cgutils.alloca_once(builder, kind)
    builder.store(_ir.Constant(kind, [1 << (BITS - 1)] * lanes), total)
    return total


def _add(builder: Any, total: Any, values: Any, weight: Any) -> None:
    kind = total.type.pointee
    product = builder.mul(builder.zext(values, kind), _splat(builder, weight, kind))
    builder.store(builder.add(builder.load(total), product), total)


def _round_and_clamp(builder: Any, total: Any) -> Any:
    """Round non-negative sums to integers, and clamp them to 255."""
    kind = total.type.pointee
    whole = builder.lshr(builder.load(total), _ir.Constant(kind, [BITS] * kind.count))
    top = _ir.Constant(kind, [255] * kind.count)
    return builder.select(builder.icmp_unsigned(">", whole, top), top, whole)


def _joined(builder: Any, first: Any, second: Any) -> Any:
    lanes = first.type.count * 2
    return builder.shuffle_vector(first, second, _ir.Constant(_ir.VectorType(_I32, lanes), list(range(lanes))))


@_nb.extending.intrinsic  # type: ignore[untyped-decorator]
def weigh_pixels(  # noqa: PLR0913 - compiled functions take plain arrays and numbers
    typing: Any, source: Any, stride: Any, target: Any, pitch: Any, step: Any, columns: Any, lefts: Any, count: Any,
    weights: Any, spacing: Any,
) -> Any:  # fmt: skip
    """Compute output pixels of GROUP rows as sums of ``count`` weighted pixels; four bytes per pixel are accessed.

    Distances in bytes: ``stride`` between source rows, ``pitch`` between target rows, ``step`` between pixels,
    ``spacing`` between the weights of two outputs. ``lefts`` is the address of each output's int64 source offset.
    """

    def pixel(builder: Any, args: Any, x: Any, count: Any) -> None:
        source, stride, target, pitch, step, _, lefts, _, weights, spacing = args
        totals = [_start(builder, 4) for _ in range(GROUP)]
        begin = builder.add(source, _load(builder, builder.add(lefts, builder.mul(x, _number(8))), _I64))
        own_weights = builder.add(weights, builder.mul(x, spacing))

        def tap(k: Any) -> None:
            source_pixel = builder.add(begin, builder.mul(k, step))
            weight = _load(builder, builder.add(own_weights, builder.mul(k, _number(4))), _I32)
            for row, total in enumerate(totals):
                address = builder.add(source_pixel, builder.mul(stride, _number(row)))
                _add(builder, total, _load(builder, address, _PIXEL), weight)

        if isinstance(count, int):
            for k in range(count):
                tap(_number(k))
        else:
            with _cgutils.for_range(builder, count) as loop:
                tap(loop.index)
        rounded = [_round_and_clamp(builder, total) for total in totals]
        pairs = [_joined(builder, *rounded[:2]), _joined(builder, *rounded[2:])]
        packed = builder.trunc(_joined(builder, *pairs), _ir.VectorType(_I8, 4 * GROUP))
        packed = builder.bitcast(packed, _ir.VectorType(_I32, GROUP))
        target_pixel = builder.add(target, builder.mul(x, step))
        for row in range(GROUP):
            value = builder.extract_element(packed, _ir.Constant(_I32, row))
            _store(builder, value, builder.add(target_pixel, builder.mul(pitch, _number(row))))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        columns, count = args[5], args[7]
        done = builder.append_basic_block("done")
        general = builder.append_basic_block("general")
        choice = builder.switch(count, general)
        for taps in range(1, _UNROLLED + 1):
            block = builder.append_basic_block(f"taps{taps}")
            choice.add_case(_number(taps), block)
            builder.position_at_end(block)
            with _cgutils.for_range(builder, columns) as loop:
                pixel(builder, args, loop.index, taps)
            builder.branch(done)
        builder.position_at_end(general)
        with _cgutils.for_range(builder, columns) as loop:
            pixel(builder, args, loop.index, count)
        builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    kinds = (source, stride, target, pitch, step, columns, lefts, count, weights, spacing)
    return _nb.core.types.void(*kinds), generate


@_nb.extending.intrinsic  # type: ignore[untyped-decorator]
def weigh_lines(
    typing: Any, ring: Any, stride: Any, slots: Any, first: Any, count: Any, weights: Any, target: Any, chunks: Any
) -> Any:
    """Write ``chunks`` times LINE bytes: the weighted sum of ``count`` lines of the ring buffer, from ``first`` on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ring, stride, slots, first, count, weights, target, chunks = args
        line = _ir.VectorType(_I8, LINE)
        with _cgutils.for_range(builder, chunks) as along:
            position = builder.mul(along.index, _number(LINE))
            total = _start(builder, LINE)
            with _cgutils.for_range(builder, count) as loop:
                slot = builder.add(first, loop.index)
                slot = builder.select(builder.icmp_signed(">=", slot, slots), builder.sub(slot, slots), slot)
                source = builder.add(builder.add(ring, builder.mul(slot, stride)), position)
                weight = _load(builder, builder.add(weights, builder.mul(loop.index, _number(4))), _I32)
                _add(builder, total, _load(builder, source, line), weight)
            _store(builder, builder.trunc(_round_and_clamp(builder, total), line), builder.add(target, position))
        return context.get_dummy_value()

    kinds = (ring, stride, slots, first, count, weights, target, chunks)
    return _nb.core.types.void(*kinds), generate
