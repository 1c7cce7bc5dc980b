"""Mel spectrograms in NumPy, used while the kernels are being compiled; both give bit-identical results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from cedar.operators.audio.fft_plan import C51, C52, HALF, S3, S51, S52
from cedar.operators.native import slow_path_lock

Floats = npt.NDArray[np.float32]
Pair = tuple[Floats, Floats]  # real and imaginary parts

_FRAMES_PER_PASS = 256  # frames per array operation (about 400 kB)


def mel_spectrogram(  # noqa: PLR0913 - the same arguments as the compiled function
    clip: Floats,
    begin: int,
    hop: int,
    window: Floats,
    radices: npt.NDArray[np.int64],
    twiddles: Floats,
    starts: npt.NDArray[np.int64],
    turns: Floats,
    rows: npt.NDArray[np.int64],
    weights: Floats,
    root: bool,
    out: Floats,
) -> None:
    """Write the mel bands of a clip into ``out``; see ``mel_kernels.mel_spectrogram``."""
    n = len(window)
    sounding = _count_frames(clip, begin, hop, n, out.shape[1])
    out[:, sounding:] = 0
    with slow_path_lock, np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, sounding, _FRAMES_PER_PASS):
            starting = begin + np.arange(first, min(first + _FRAMES_PER_PASS, sounding)) * hop
            framed = _windowed_frames(clip, starting, window)
            parts = (framed, np.zeros_like(framed)) if n % 2 else (framed[0::2], framed[1::2])
            z = transform(parts, radices, twiddles, starts)
            mel = np.zeros((len(out) + 2, len(starting)), np.float32)
            for k, power, counts in _odd_powers(z, n) if n % 2 else _even_powers(z, n, turns, weights):
                value = np.sqrt(power) if root else power
                w0, w1 = weights[k] * np.float32(counts)
                mel[rows[k]] += w0 * value
                mel[rows[k] + 1] += w1 * value
            out[:, first : first + len(starting)] = mel[1:-1]


def _count_frames(clip: Floats, begin: int, hop: int, n: int, frames: int) -> int:
    """Return the number of frames up to the last one that is not all zeros."""
    nonzero_samples = np.flatnonzero(clip)
    end = int(nonzero_samples[-1]) + 1 if len(nonzero_samples) else 0
    first = begin + np.arange(frames) * hop
    beyond = first + n - len(clip)
    nonzero = np.flatnonzero((first < end) | ((beyond > 0) & (len(clip) - 1 - beyond < end)))
    return int(nonzero[-1]) + 1 if len(nonzero) else 0


def _windowed_frames(clip: Floats, starting: npt.NDArray[np.int64], window: Floats) -> Floats:
    """Return windowed frames, shape (samples, frames). The clip is reflected at its ends."""
    last = len(clip) - 1
    positions = np.abs(starting + np.arange(len(window))[:, None])
    frames: Floats = clip[np.where(positions > last, 2 * last - positions, positions)] * window[:, None]
    return frames


def _even_powers(z: Pair, n: int, turns: Floats, weights: Floats) -> Iterator[tuple[int, Floats, bool]]:
    """Yield (bin, its power in each frame, whether to add it), in the order in which the compiled kernel adds powers.

    For frames of even length, which were transformed as half as many complex values.
    """
    half = n // 2
    for k in range(half // 2 + 1):
        j = half - k
        if not (weights[k].any() or weights[j].any()):
            continue
        (cr, ci), (zr, zi), (yr, yi) = turns[k], (z[0][k], z[1][k]), (z[0][j % half], z[1][j % half])
        er, ei, dr, di = (zr + yr) * HALF, (zi - yi) * HALF, (zi + yi) * HALF, (yr - zr) * HALF
        tr, ti = _complex_product((dr, di), cr, ci)
        yield k, _power(er + tr, ei + ti), True
        yield j, _power(er - tr, ei - ti), j != k


def _odd_powers(z: Pair, n: int) -> Iterator[tuple[int, Floats, bool]]:
    for k in range(n // 2 + 1):
        yield k, _power(z[0][k], z[1][k]), True


def _power(real: Floats, imaginary: Floats) -> Floats:
    return real * real + imaginary * imaginary


# ---- the Fourier transform, with the stages of fft_kernels -----------------------------------------------------------


def transform(x: Pair, radices: npt.NDArray[np.int64], twiddles: Floats, starts: npt.NDArray[np.int64]) -> Pair:
    """Return the Fourier transform of each frame: real and imaginary parts, each (values, frames)."""
    n, frames = x[0].shape
    s, rest = frames, n
    for radix, start in zip(radices.tolist(), starts.tolist(), strict=True):
        m = rest // radix
        inputs = [(x[0].reshape(radix, m, s)[r], x[1].reshape(radix, m, s)[r]) for r in range(radix)]
        turns = twiddles[start : start + 2 * (radix - 1) * m].reshape(m, radix - 1, 2)
        y = np.empty((2, m, radix, s), np.float32)
        for u, (real, imaginary) in enumerate(_STAGES.get(radix, _radix_any)(*inputs)):
            if u or radix not in _STAGES:  # for other primes, the kernel multiplies the first value by 1
                turn = turns[:, u - 1, None] if u else np.array([1, 0], np.float32)
                real, imaginary = _complex_product((real, imaginary), turn[..., 0], turn[..., 1])
            y[0, :, u], y[1, :, u] = real, imaginary
        x = (y[0].reshape(n, frames), y[1].reshape(n, frames))
        s, rest = s * radix, m
    return x


def _complex_product(value: Pair, real: Floats, imaginary: Floats) -> Pair:
    u, v = value
    return u * real - v * imaginary, u * imaginary + v * real


def _radix2(a: Pair, b: Pair) -> Iterator[Pair]:
    yield a[0] + b[0], a[1] + b[1]
    yield a[0] - b[0], a[1] - b[1]


def _radix3(a: Pair, b: Pair, c: Pair) -> Iterator[Pair]:
    sr, si = b[0] + c[0], b[1] + c[1]
    dr, di = S3 * (b[0] - c[0]), S3 * (b[1] - c[1])
    mr, mi = a[0] - HALF * sr, a[1] - HALF * si
    yield a[0] + sr, a[1] + si
    yield mr + di, mi - dr
    yield mr - di, mi + dr


def _radix4(a: Pair, b: Pair, c: Pair, d: Pair) -> Iterator[Pair]:
    t0r, t0i, t1r, t1i = a[0] + c[0], a[1] + c[1], a[0] - c[0], a[1] - c[1]
    t2r, t2i, t3r, t3i = b[0] + d[0], b[1] + d[1], b[1] - d[1], d[0] - b[0]
    yield t0r + t2r, t0i + t2i
    yield t1r + t3r, t1i + t3i
    yield t0r - t2r, t0i - t2i
    yield t1r - t3r, t1i - t3i


def _radix5(a: Pair, b: Pair, c: Pair, d: Pair, e: Pair) -> Iterator[Pair]:
    s1r, s1i, d1r, d1i = b[0] + e[0], b[1] + e[1], b[0] - e[0], b[1] - e[1]
    s2r, s2i, d2r, d2i = c[0] + d[0], c[1] + d[1], c[0] - d[0], c[1] - d[1]
    zr, zi = a
    m1r, m1i = zr + C51 * s1r + C52 * s2r, zi + C51 * s1i + C52 * s2i
    m2r, m2i = zr + C52 * s1r + C51 * s2r, zi + C52 * s1i + C51 * s2i
    n1r, n1i = S51 * d1r + S52 * d2r, S51 * d1i + S52 * d2i
    n2r, n2i = S52 * d1r - S51 * d2r, S52 * d1i - S51 * d2i
    yield zr + s1r + s2r, zi + s1i + s2i
    yield m1r + n1i, m1i - n1r
    yield m2r + n2i, m2i - n2r
    yield m2r - n2i, m2i + n2r
    yield m1r - n1i, m1i + n1r


def _radix_any(*inputs: Pair) -> Iterator[Pair]:
    """Compute a stage with any prime radix, term by term, with sums in float64."""
    radix = len(inputs)
    for u in range(radix):
        sr, si = np.zeros(inputs[0][0].shape), np.zeros(inputs[0][0].shape)
        for v, (real, imaginary) in enumerate(inputs):
            turn = -2.0 * math.pi * ((u * v) % radix) / radix
            c, d = math.cos(turn), math.sin(turn)
            wide, high = real.astype(np.float64), imaginary.astype(np.float64)
            sr += wide * c - high * d
            si += wide * d + high * c
        yield sr.astype(np.float32), si.astype(np.float32)


_STAGES: dict[int, Callable[..., Iterator[Pair]]] = {2: _radix2, 3: _radix3, 4: _radix4, 5: _radix5}
