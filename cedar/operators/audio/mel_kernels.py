"""Compiled mel spectrograms: one pass over a clip computes windowed frames, Fourier transforms, powers and mel bands.

A frame of even length is transformed as half as many complex values: even samples are the real parts, odd samples the
imaginary parts. The result of a frame therefore does not depend on other frames. Intermediate values stay in the
processor's cache until the mel bands are computed. Importing this module imports numba.
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
    """Write a windowed frame to a lane. Clips are reflected at both ends; the end samples are not repeated."""
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
    """Add the power of each bin to its mel bands; a bin has at most two bands, which are adjacent.

    Bins k and n / 2 - k come from the same two values: X[k] = E + T and X[n / 2 - k] = conj(E - T), where E is the
    transform of the even samples, and T is the transform of the odd samples times the factor in ``turns``.
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
    """Add powers as ``_bands_even`` does, for frames of odd length, which were transformed without pairing samples."""
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
def _count_frames(clip: Any, begin: int, hop: int, n: int, frames: int) -> int:
    """Return the number of frames up to the last nonzero frame; frames of zeros after it are not transformed."""
    samples = len(clip)
    end = samples
    while end > 0 and clip[end - 1] == ZERO:
        end -= 1
    frame = frames
    while frame > 0:
        first = begin + (frame - 1) * hop
        beyond = first + n - samples  # how far the frame exceeds the clip
        if first < end or (beyond > 0 and samples - 1 - beyond < end):
            break
        frame -= 1
    return frame


@kernel(
    "void(float32[::1], int64, int64, float32[::1], int64[::1], float32[::1], int64[::1], float32[:, ::1],"
    " int64[::1], float32[:, ::1], boolean, float32[:, ::1])"
)
def mel_spectrogram(  # noqa: PLR0913 - compiled functions take plain arrays and numbers
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
    """Write the mel bands of a clip into ``out``, float32[bands, frames].

    Args:
        clip: float32[samples], contiguous.
        begin: first sample of the first frame; negative for centered frames.
        hop: samples between the starts of consecutive frames.
        radices, twiddles, starts: the plan for transforms of n values if n = len(window) is odd, else of n / 2 values.
        turns: float32[n // 2 + 1, 2]: the real and imaginary parts of exp(-2 pi i k / n).
        rows: int64[bins]: the first band of each bin, counted from 1; 0 is the position before the lowest band.
        weights: float32[bins, 2]: the bin's weight in that band and in the next one.
        root: whether to sum magnitudes instead of powers.
    """
    bands, frames = out.shape
    n = len(window)
    size = n if n % 2 else n // 2
    x, y = np.zeros((2, size * LANES), np.float32), np.empty((2, size * LANES), np.float32)
    mel = np.empty((bands + 2, LANES), np.float32)
    sounding = _count_frames(clip, begin, hop, n, frames)
    frame = 0
    while frame < sounding:
        filled = min(LANES, sounding - frame)
        if n % 2 or filled < LANES:
            x[:] = ZERO
        for lane in range(filled):
            _fill(x, clip, begin + (frame + lane) * hop, window, lane, LANES)
        z = transform(x, y, size, LANES, radices, twiddles, starts)
        mel[:] = ZERO
        if n % 2:
            _bands_odd(z, n, LANES, rows, weights, root, mel)
        else:
            _bands_even(z, n, LANES, turns, rows, weights, root, mel)
        for band in range(bands):
            row = out[band]
            for lane in range(filled):
                row[frame + lane] = mel[band + 1, lane]
        frame += filled
    out[:, sounding:] = ZERO
