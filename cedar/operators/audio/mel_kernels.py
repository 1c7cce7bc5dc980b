"""Mel spectrograms, compiled: frames, window, Fourier transform, power and mel bands of one clip in one pass.

A frame of even length is transformed as half as many complex values: its even samples are the real parts, its odd ones
the imaginary parts. So a frame's result depends on nothing but the frame. Nothing of it leaves the processor's cache
until its bands are done. Importing this module imports numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cedar.operators.audio.fft_kernels import transform
from cedar.operators.audio.fft_plan import HALF, ZERO
from cedar.operators.jit import kernel

LANES = 32


@kernel("void(float32[:, ::1], float32[::1], int64, float32[::1], int64, int64)")
def _fill(x: Any, clip: Any, start: int, window: Any, lane: int, lanes: int) -> None:
    """A frame into a lane, windowed. The clip is reflected at its ends, its first and last sample not repeated."""
    n, last = len(window), len(clip) - 1
    even, odd = x[0], x[1]
    half = n // 2
    if start >= 0 and start + n <= last + 1:
        frame = clip[start : start + n]
        if n % 2:
            for i in range(n):
                even[i * lanes + lane] = frame[i] * window[i]
        else:
            for i in range(half):
                even[i * lanes + lane] = frame[2 * i] * window[2 * i]
                odd[i * lanes + lane] = frame[2 * i + 1] * window[2 * i + 1]
        return
    for i in range(n):
        j = start + i
        if j < 0:
            j = -j
        if j > last:
            j = 2 * last - j
        value = clip[j] * window[i]
        if n % 2:
            even[i * lanes + lane] = value
        elif i % 2:
            odd[(i // 2) * lanes + lane] = value
        else:
            even[(i // 2) * lanes + lane] = value


@kernel("void(float32[:, ::1], int64, int64, float32[:, ::1], int64[::1], float32[:, ::1], boolean, float32[:, ::1])")
def _bands_even(z: Any, n: int, lanes: int, turns: Any, rows: Any, weights: Any, root: bool, mel: Any) -> None:
    """Adds the bins' powers to the bands: a bin belongs to two bands at most, neighbors.

    Bins k and n / 2 - k come from the same two values: X[k] = E + T and X[n / 2 - k] = conj(E - T), where E is the
    transform of the even samples and T that of the odd ones, turned.
    """
    half = n // 2
    for k in range(half // 2 + 1):
        j = half - k
        cr, ci = turns[k, 0], turns[k, 1]
        w0, w1, v0, v1 = weights[k, 0], weights[k, 1], weights[j, 0], weights[j, 1]
        if w0 == ZERO and w1 == ZERO and v0 == ZERO and v1 == ZERO:
            continue
        if j == k:
            v0, v1 = ZERO, ZERO
        at, to = k * lanes, (j % half) * lanes
        zr, zi = z[0, at : at + lanes], z[1, at : at + lanes]
        yr, yi = z[0, to : to + lanes], z[1, to : to + lanes]
        near0, near1, far0, far1 = mel[rows[k]], mel[rows[k] + 1], mel[rows[j]], mel[rows[j] + 1]
        for lane in range(lanes):
            er, ei = (zr[lane] + yr[lane]) * HALF, (zi[lane] - yi[lane]) * HALF
            dr, di = (zi[lane] + yi[lane]) * HALF, (yr[lane] - zr[lane]) * HALF
            tr, ti = dr * cr - di * ci, dr * ci + di * cr
            ar, ai, br, bi = er + tr, ei + ti, er - tr, ei - ti
            a, b = ar * ar + ai * ai, br * br + bi * bi
            if root:
                a, b = math.sqrt(a), math.sqrt(b)
            near0[lane] += w0 * a
            near1[lane] += w1 * a
            far0[lane] += v0 * b
            far1[lane] += v1 * b


@kernel("void(float32[:, ::1], int64, int64, int64[::1], float32[:, ::1], boolean, float32[:, ::1])")
def _bands_odd(z: Any, n: int, lanes: int, rows: Any, weights: Any, root: bool, mel: Any) -> None:
    """The same for frames of odd length, transformed with imaginary parts of zero."""
    for k in range(n // 2 + 1):
        w0, w1 = weights[k, 0], weights[k, 1]
        first, second = mel[rows[k]], mel[rows[k] + 1]
        zr, zi = z[0, k * lanes : (k + 1) * lanes], z[1, k * lanes : (k + 1) * lanes]
        for lane in range(lanes):
            a = zr[lane] * zr[lane] + zi[lane] * zi[lane]
            if root:
                a = math.sqrt(a)
            first[lane] += w0 * a
            second[lane] += w1 * a


@kernel("int64(float32[::1], int64, int64, int64, int64)")
def _sounding(clip: Any, begin: int, hop: int, n: int, frames: int) -> int:
    """How many frames there are up to the last one that is not all zeros, as padding is, whose transform is known."""
    samples = len(clip)
    end = samples
    while end > 0 and clip[end - 1] == ZERO:
        end -= 1
    frame = frames
    while frame > 0:
        first = begin + (frame - 1) * hop
        beyond = first + n - samples  # so many are reflected
        if first < end or (beyond > 0 and samples - 1 - beyond < end):
            break
        frame -= 1
    return frame


@kernel(
    "void(float32[::1], int64, int64, float32[::1], int64[::1], float32[::1], int64[::1], float32[:, ::1],"
    " int64[::1], float32[:, ::1], boolean, float32[:, ::1])"
)
def mel_spectrogram(  # noqa: PLR0913 - compiled code takes no structures
    clip: Any,
    begin: int,
    hop: int,
    window: Any,
    radices: Any,
    twiddles: Any,
    starts: Any,
    turns: Any,
    rows: Any,
    weights: Any,
    root: bool,
    out: Any,
) -> None:
    """The mel bands of a clip, into ``out``: float32[bands, frames].

    Args:
        clip: float32[samples], contiguous.
        begin: where the first frame begins; negative for frames around their time.
        window: float32[n].
        radices, twiddles, starts: the plan of a transform of n / 2 values; of n where n is odd.
        turns: float32[n // 2 + 1, 2]: the real and imaginary parts of exp(-2 pi i k / n).
        rows: int64[bins]: a bin's first band, counted from 1, 0 being below the lowest.
        weights: float32[bins, 2]: a bin's weight in that band and in the next one.
        root: magnitudes, and not powers.
    """
    bands, frames = out.shape
    n = len(window)
    size = n if n % 2 else n // 2
    x, y = np.zeros((2, size * LANES), np.float32), np.empty((2, size * LANES), np.float32)
    mel = np.empty((bands + 2, LANES), np.float32)
    sounding = _sounding(clip, begin, hop, n, frames)
    frame = 0
    while frame < sounding:
        left = min(LANES, sounding - frame)
        if n % 2 or left < LANES:
            x[:] = ZERO
        for lane in range(left):
            _fill(x, clip, begin + (frame + lane) * hop, window, lane, LANES)
        z = transform(x, y, size, LANES, radices, twiddles, starts)
        mel[:] = ZERO
        if n % 2:
            _bands_odd(z, n, LANES, rows, weights, root, mel)
        else:
            _bands_even(z, n, LANES, turns, rows, weights, root, mel)
        for band in range(bands):
            row = out[band]
            for lane in range(left):
                row[frame + lane] = mel[band + 1, lane]
        frame += left
    out[:, sounding:] = ZERO
