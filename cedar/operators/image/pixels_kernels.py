"""The compiled pass over an image. It interprets a list of steps, so that new pipelines do not need compilation.

All steps run on a chunk of pixels, which fits the L1 cache, before the next chunk is read. A step that needs the whole
image (contrast, blur, warp) ends a sweep: channels are stored as uint8 planes, from which the next sweep continues.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cedar.operators.image import pixels_steps as _codes
from cedar.operators.image.blur_kernels import blur_plane
from cedar.operators.image.pixels_lanes import address, float_pointer, pointer
from cedar.operators.image.pixels_moves import (
    read_pixels,
    read_plane,
    write_float_pixels,
    write_floats,
    write_pixels,
    write_plane,
)
from cedar.operators.image.pixels_points import (
    blend,
    brighten,
    gray,
    gray_sum,
    inverse_of,
    look_up,
    posterize,
    saturate,
    shift_hue,
    solarize,
    standardize,
    stretch,
    to_unit,
    unit_standardize,
    unit_standardize_fast,
)
from cedar.operators.image.pixels_steps import FLOAT_PLANES, FLOATS, KEEP, NOTHING, PIXELS, PLANES
from cedar.operators.image.warp_kernels import sharpen_plane, warp_planes
from cedar.operators.jit import kernel, numba

CHUNK = 1024  # pixels per chunk: three float32 channels and their results take 24 KiB

_NONE, _BRIGHTNESS, _SATURATION, _HUE = _codes.NONE, _codes.BRIGHTNESS, _codes.SATURATION, _codes.HUE
_GRAY, _GRAY_ONE, _SPREAD = _codes.GRAY, _codes.GRAY_ONE, _codes.SPREAD
_SOLARIZE, _POSTERIZE, _PERMUTE = _codes.SOLARIZE, _codes.POSTERIZE, _codes.PERMUTE
_BLEND, _STRETCH, _TABLE = _codes.BLEND, _codes.STRETCH, _codes.TABLE
_WHOLE, _CONTRAST, _AUTOCONTRAST, _EQUALIZE = _codes.WHOLE, _codes.CONTRAST, _codes.AUTOCONTRAST, _codes.EQUALIZE
_BLUR, _SHARPEN, _WARP = _codes.BLUR, _codes.SHARPEN, _codes.WARP  # steps that change the stored planes in place
_carray = numba().carray


@kernel("int64(int64, float64[::1], float32[:, ::1], int64, int64, float32[:, ::1], float32[:, ::1])")
def step(  # noqa: C901, PLR0912 - one compiled function with a case per step
    code: Any, numbers: Any, planes: Any, channels: Any, n: Any, ranges: Any, tables: Any
) -> Any:
    """Run one step on a chunk of ``n`` pixels; return the number of channels after the step."""
    first = np.float32(numbers[0])
    rest = np.float32(1.0 - numbers[0])
    if code == _BRIGHTNESS:
        for c in range(channels):
            brighten(planes[c], n, first)
    elif code == _BLEND:
        for c in range(channels):
            blend(planes[c], n, np.float32(numbers[1]), first, rest)
    elif code == _SATURATION:
        saturate(planes, n, first, rest)
    elif code == _HUE:
        shift_hue(planes, n, first)
    elif code in (_GRAY, _GRAY_ONE):
        gray(planes, n)
        if code == _GRAY_ONE:
            return 1
        for c in range(1, channels):
            write_floats(planes[0], planes[c], n)
    elif code == _SPREAD:
        for c in range(1, 3):
            write_floats(planes[0], planes[c], n)
        return 3
    elif code == _SOLARIZE:
        for c in range(channels):
            solarize(planes[c], n, first)
    elif code == _POSTERIZE:
        for c in range(channels):
            posterize(planes[c], n, first)
    elif code == _PERMUTE:
        originals = planes[:4].copy()
        source_channels = np.int64(numbers[0])
        for c in range(channels):
            write_floats(originals[(source_channels >> (2 * c)) & 3], planes[c], n)
    elif code == _STRETCH:
        for c in range(channels):
            stretch(planes[c], n, ranges[c, 0], ranges[c, 1])
    elif code == _TABLE:
        for c in range(channels):
            look_up(planes[c], n, tables[c])
    return channels


@kernel("int64(int64, float32[:, ::1], int64, int64, float32[:, ::1], int64[:, ::1])")
def collect(code: Any, planes: Any, channels: Any, n: Any, limits: Any, counts: Any) -> Any:
    """Collect from one chunk what a whole-image step needs: a sum, which is returned, or ``limits`` or ``counts``."""
    if code == _CONTRAST:
        if channels == 3:
            return gray_sum(planes, n)
        total: Any = 0
        for i in range(n):
            total += np.int32(planes[0, i])
        return total
    if code == _AUTOCONTRAST:
        for c in range(channels):
            low, high = limits[c, 0], limits[c, 1]
            for i in range(n):
                low, high = min(low, planes[c, i]), max(high, planes[c, i])
            limits[c, 0], limits[c, 1] = low, high
    if code == _EQUALIZE:
        for c in range(channels):
            for i in range(n):
                counts[c, np.int32(planes[c, i])] += 1
    return 0


@kernel()
def resolve_step(
    code: Any, total: Any, pixels: Any, channels: Any, numbers: Any, limits: Any, counts: Any, ranges: Any, tables: Any
) -> Any:
    """Return the per-pixel step that replaces a whole-image step, and compute its parameters from collected values."""
    if code == _CONTRAST:
        numbers[1] = np.float32(total) / np.float32(pixels)
        return _BLEND
    if code == _AUTOCONTRAST:
        for c in range(channels):
            low, high = limits[c, 0], limits[c, 1]
            flat = low == high
            ranges[c, 0] = np.float32(0) if flat else low
            ranges[c, 1] = np.float32(1) if flat else (high - low) * np.float32(1 / 255)
        return _STRETCH
    for c in range(channels):
        last = 255
        while counts[c, last] == 0:
            last -= 1
        width = (pixels - counts[c, last]) // 255
        below = 0
        for value in range(256):
            if width == 0:
                tables[c, value] = value
            else:
                tables[c, value] = 0 if value == 0 else min((below + width // 2) // width, 255)
            below += counts[c, value]
    return _TABLE


@kernel("void(float32[::1], float32[::1], int64, float32[:, :, ::1], float32, int64)")
def write_normalized(plane: Any, target: Any, n: Any, norms: Any, inverse: Any, c: Any) -> None:
    """Convert a plane to floats from 0 to 1, normalize them, and write them to ``target``."""
    if norms.shape[0] == 0:
        to_unit(plane, target, n)
    elif inverse != np.float32(0):
        unit_standardize_fast(plane, target, n, norms[0, 0, c], norms[0, 1, c], inverse)
    else:
        unit_standardize(plane, target, n, norms[0, 0, c], norms[0, 1, c])
    for k in range(1, norms.shape[0]):
        standardize(target, n, norms[k, 0, c], norms[k, 1, c])


@kernel(
    "UniTuple(int64, 2)(UniTuple(int64, 7), boolean, uint8[:, ::1], int64, int64[::1], float64[:, ::1], int64, int64,"
    " int64, float32[:, ::1], int64[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, :, ::1], float32[::1], int64,"
    " uint8[::1], float32[::1], float32[:, ::1])"
)
def sweep(  # noqa: C901, PLR0912, PLR0913 - numba compiles it as one function
    image: Any, kept: Any, work: Any, channels: Any, codes: Any, numbers: Any, begin: Any, end: Any, seen: Any,
    limits: Any, counts: Any, ranges: Any, tables: Any, norms: Any, inverses: Any, writes: Any, out: Any, floats: Any,
    planes: Any,
) -> Any:  # fmt: skip
    """Run steps ``begin`` to ``end`` on lines of an image, or on stored planes if ``kept``; ``writes`` is the output.

    Returns the number of channels and the sum for the step ``seen``. ``image`` has the address of the first line, bytes
    between lines, number of lines and pixels per line; for stored planes and results, it has the index of the first
    pixel, pixels between lines, and total pixels.
    """
    address, stride, lines, length, first_pixel, pitch, pixels = image
    total, channels_left = 0, channels
    for line in range(lines):
        for start in range(0, length, CHUNK):
            n = min(CHUNK, length - start)
            pixel = first_pixel + line * pitch + start
            if kept:
                for c in range(channels):
                    read_plane(work[c, pixel:], planes[c], n)
            else:
                source = _carray(pointer(address + line * stride + start * channels), (n * channels,), np.uint8)
                read_pixels(source, channels, planes, n)
            channels_left = channels
            for k in range(begin, end):
                channels_left = step(codes[k], numbers[k], planes, channels_left, n, ranges, tables)
            total += collect(seen, planes, channels_left, n, limits, counts)
            if writes == KEEP:
                for c in range(channels_left):
                    write_plane(planes[c], work[c, pixel:], n)
            elif writes == PIXELS:
                write_pixels(planes, channels_left, out[pixel * channels_left :], n)
            elif writes == PLANES:
                for c in range(channels_left):
                    write_plane(planes[c], out[c * pixels + pixel :], n)
            elif writes != NOTHING:
                for c in range(channels_left):
                    target = planes[4 + c]  # numba vectorizes this loop only if it writes to another array
                    if writes == FLOAT_PLANES:
                        target = floats[c * pixels + pixel : c * pixels + pixel + n]
                    write_normalized(planes[c], target, n, norms, inverses[c], c)
                if writes == FLOATS:
                    write_float_pixels(planes[4:], channels_left, floats[pixel * channels_left :], n)
    return channels_left, total


@kernel("void(int64, float64[::1], uint8[:, ::1], int64, int64, int64, float32[:, ::1], int64[::1])")
def run_in_place(
    code: Any, numbers: Any, work: Any, channels: Any, height: Any, width: Any, weights: Any, lengths: Any
) -> None:
    """Run a blur, sharpen or warp step on the stored planes of the whole image."""
    first, second = np.int64(numbers[0]), np.int64(numbers[1])
    if code == _WARP:
        warp_planes(work, channels, height, width, weights[first], second)
        return
    for c in range(channels):
        plane = _carray(pointer(address(work[c])), (height, width), np.uint8)
        if code == _SHARPEN:
            sharpen_plane(plane, np.float32(1.0 - numbers[0]))
        else:
            blur_plane(plane, weights[first, : lengths[first]], weights[second, : lengths[second]])


@kernel()
def select_steps(codes: Any, numbers: Any, channels: Any, kept_codes: Any, kept_numbers: Any) -> Any:
    """Copy the steps that change an image with ``channels`` channels; return the number of steps copied."""
    count = 0
    for k in range(codes.shape[0]):
        code = codes[k]
        colored = code in (_SATURATION, _HUE, _PERMUTE, _GRAY, _GRAY_ONE)
        if code == _NONE or (colored and channels != 3) or (code == _SPREAD and channels != 1):
            continue
        if code == _GRAY_ONE:
            channels = 1
        elif code == _SPREAD:
            channels = 3
        kept_codes[count] = code
        kept_numbers[count, 0], kept_numbers[count, 1] = numbers[k, 0], numbers[k, 1]
        count += 1
    return count


@kernel(
    "void(int64[::1], int64[:, ::1], int64[:, ::1], int64[:, ::1], float64[:, :, ::1], float32[:, ::1], int64[::1],"
    " float32[:, :, ::1], int64, int64[::1], uint8[:, ::1])"
)
def apply(  # noqa: PLR0913 - compiled functions take plain arrays and numbers
    addresses: Any, layouts: Any, parts: Any, steps: Any, values: Any, weights: Any, lengths: Any, norms: Any,
    writes: Any, targets: Any, work: Any,
) -> None:  # fmt: skip
    """Run all steps on the images at ``addresses``, and write the results to the addresses ``targets``.

    ``layouts`` has each image's height, width, channels, bytes between rows, and number of values of the result.
    ``parts`` has top, left, height and width of the needed part of each result; other parts are not written. ``norms``
    (count, 2, 4) has means and standard deviations. ``work`` (4, pixels) is memory for the planes of the largest image;
    it is empty if no step needs a whole image.
    """
    planes = np.empty((8, CHUNK), np.float32)
    limits, counts = np.empty((4, 2), np.float32), np.empty((4, 256), np.int64)  # collected by ``collect``
    ranges = np.empty((4, 2), np.float32)  # ``ranges`` and ``tables`` are set by ``resolve_step``
    tables = np.empty((4, 256), np.float32)
    codes, numbers = np.empty(steps.shape[1] + 1, np.int64), np.empty((steps.shape[1] + 1, 2), np.float64)
    inverses = np.zeros(4, np.float32)
    if norms.shape[0] > 0:
        for c in range(4):
            inverses[c] = inverse_of(norms[0, 0, c], norms[0, 1, c])
    for row in range(len(addresses)):
        height, width, channels = layouts[row, 0], layouts[row, 1], layouts[row, 2]
        stride, size = layouts[row, 3], layouts[row, 4]
        pixels = height * width
        packed = stride == width * channels
        image = (
            (addresses[row], stride, 1, pixels, 0, 0, pixels) if packed
            else (addresses[row], stride, height, width, 0, width, pixels)
        )  # fmt: skip
        writes_bytes = writes < FLOATS
        out = _carray(pointer(targets[row]), (size if writes_bytes else 0,), np.uint8)
        floats = _carray(float_pointer(targets[row]), (0 if writes_bytes else size,), np.float32)
        count = select_steps(steps[row], values[row], channels, codes, numbers)
        begin, kept = 0, False
        while True:
            end = begin
            while end < count and codes[end] < _WHOLE:
                end += 1
            if end == count:
                top, left, tall, wide = parts[row, 0], parts[row, 1], parts[row, 2], parts[row, 3]
                if tall * wide < pixels:
                    before = addresses[row] + top * stride + left * layouts[row, 2]
                    image = (before, stride, tall, wide, top * width + left, width, pixels)
                sweep(
                    image, kept, work, channels, codes, numbers, begin, end, 0, limits, counts, ranges, tables, norms,
                    inverses, writes, out, floats, planes,
                )  # fmt: skip
                break
            code = codes[end]
            limits[:, 0], limits[:, 1] = np.float32(255), np.float32(0)
            counts[:] = 0
            changed = begin < end or (code >= _BLUR and not kept)
            if changed or code < _BLUR:
                # If no step changed the image, do not store planes: the next sweep reads the source again.
                channels, total = sweep(
                    image, kept, work, channels, codes, numbers, begin, end, code, limits, counts, ranges, tables,
                    norms, inverses, KEEP if changed else NOTHING, out, floats, planes,
                )  # fmt: skip
                kept = kept or changed
                if code < _BLUR:
                    codes[end] = resolve_step(
                        code, total, height * width, channels, numbers[end], limits, counts, ranges, tables
                    )
            begin = end
            if code >= _BLUR:
                run_in_place(code, numbers[end], work, channels, height, width, weights, lengths)
                begin = end + 1
