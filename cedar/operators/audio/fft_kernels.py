"""Compiled Fourier transform of many frames together: one frame per lane of the processor's vector registers.

The code uses no fused multiply-add, so that ``mel_plain`` gives bit-identical results. Arrays are float32[2, n * lanes]
with the real and the imaginary parts; element ``i`` of lane ``l`` is at index ``i * lanes + l``. Importing this module
imports numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cedar.operators.audio.fft_plan import C51, C52, HALF, S3, S51, S52, ZERO
from cedar.operators.jit import kernel


@kernel("void(float32[:, ::1], float32[:, ::1], int64, int64, float32[::1])")
def _radix2(x: Any, y: Any, m: int, s: int, tw: Any) -> None:
    for p in range(m):
        wr, wi = tw[2 * p], tw[2 * p + 1]
        i, j, o = s * p, s * (p + m), 2 * s * p
        ar, ai = x[0, i : i + s], x[1, i : i + s]
        br, bi = x[0, j : j + s], x[1, j : j + s]
        y0r, y0i = y[0, o : o + s], y[1, o : o + s]
        y1r, y1i = y[0, o + s : o + 2 * s], y[1, o + s : o + 2 * s]
        for q in range(s):
            a, b, c, d = ar[q], ai[q], br[q], bi[q]
            y0r[q], y0i[q] = a + c, b + d
            ur, ui = a - c, b - d
            y1r[q], y1i[q] = ur * wr - ui * wi, ur * wi + ui * wr


@kernel("void(float32[:, ::1], float32[:, ::1], int64, int64, float32[::1])")
def _radix3(x: Any, y: Any, m: int, s: int, tw: Any) -> None:
    for p in range(m):
        w1r, w1i, w2r, w2i = tw[4 * p], tw[4 * p + 1], tw[4 * p + 2], tw[4 * p + 3]
        i, j, k, o = s * p, s * (p + m), s * (p + 2 * m), 3 * s * p
        ar, ai = x[0, i : i + s], x[1, i : i + s]
        br, bi = x[0, j : j + s], x[1, j : j + s]
        cr, ci = x[0, k : k + s], x[1, k : k + s]
        y0r, y0i = y[0, o : o + s], y[1, o : o + s]
        y1r, y1i = y[0, o + s : o + 2 * s], y[1, o + s : o + 2 * s]
        y2r, y2i = y[0, o + 2 * s : o + 3 * s], y[1, o + 2 * s : o + 3 * s]
        for q in range(s):
            sr, si = br[q] + cr[q], bi[q] + ci[q]
            dr, di = S3 * (br[q] - cr[q]), S3 * (bi[q] - ci[q])
            mr, mi = ar[q] - HALF * sr, ai[q] - HALF * si
            y0r[q], y0i[q] = ar[q] + sr, ai[q] + si
            ur, ui = mr + di, mi - dr
            y1r[q], y1i[q] = ur * w1r - ui * w1i, ur * w1i + ui * w1r
            ur, ui = mr - di, mi + dr
            y2r[q], y2i[q] = ur * w2r - ui * w2i, ur * w2i + ui * w2r


@kernel("void(float32[:, ::1], float32[:, ::1], int64, int64, float32[::1])")
def _radix4(x: Any, y: Any, m: int, s: int, tw: Any) -> None:
    for p in range(m):
        w1r, w1i, w2r, w2i, w3r, w3i = (
            tw[6 * p],
            tw[6 * p + 1],
            tw[6 * p + 2],
            tw[6 * p + 3],
            tw[6 * p + 4],
            tw[6 * p + 5],
        )
        i, j, k, h, o = s * p, s * (p + m), s * (p + 2 * m), s * (p + 3 * m), 4 * s * p
        xar, xai = x[0, i : i + s], x[1, i : i + s]
        xbr, xbi = x[0, j : j + s], x[1, j : j + s]
        xcr, xci = x[0, k : k + s], x[1, k : k + s]
        xdr, xdi = x[0, h : h + s], x[1, h : h + s]
        y0r, y0i = y[0, o : o + s], y[1, o : o + s]
        y1r, y1i = y[0, o + s : o + 2 * s], y[1, o + s : o + 2 * s]
        y2r, y2i = y[0, o + 2 * s : o + 3 * s], y[1, o + 2 * s : o + 3 * s]
        y3r, y3i = y[0, o + 3 * s : o + 4 * s], y[1, o + 3 * s : o + 4 * s]
        for q in range(s):
            ar, ai, br, bi, cr, ci, dr, di = xar[q], xai[q], xbr[q], xbi[q], xcr[q], xci[q], xdr[q], xdi[q]
            t0r, t0i, t1r, t1i = ar + cr, ai + ci, ar - cr, ai - ci
            t2r, t2i, t3r, t3i = br + dr, bi + di, bi - di, dr - br
            y0r[q], y0i[q] = t0r + t2r, t0i + t2i
            ur, ui = t1r + t3r, t1i + t3i
            y1r[q], y1i[q] = ur * w1r - ui * w1i, ur * w1i + ui * w1r
            ur, ui = t0r - t2r, t0i - t2i
            y2r[q], y2i[q] = ur * w2r - ui * w2i, ur * w2i + ui * w2r
            ur, ui = t1r - t3r, t1i - t3i
            y3r[q], y3i[q] = ur * w3r - ui * w3i, ur * w3i + ui * w3r


@kernel("void(float32[:, ::1], float32[:, ::1], int64, int64, float32[::1])")
def _radix5(x: Any, y: Any, m: int, s: int, tw: Any) -> None:
    for p in range(m):
        w1r, w1i, w2r, w2i = tw[8 * p], tw[8 * p + 1], tw[8 * p + 2], tw[8 * p + 3]
        w3r, w3i, w4r, w4i = tw[8 * p + 4], tw[8 * p + 5], tw[8 * p + 6], tw[8 * p + 7]
        i, j, k, h, g, o = s * p, s * (p + m), s * (p + 2 * m), s * (p + 3 * m), s * (p + 4 * m), 5 * s * p
        ar, ai = x[0, i : i + s], x[1, i : i + s]
        br, bi = x[0, j : j + s], x[1, j : j + s]
        cr, ci = x[0, k : k + s], x[1, k : k + s]
        dr, di = x[0, h : h + s], x[1, h : h + s]
        er, ei = x[0, g : g + s], x[1, g : g + s]
        y0r, y0i = y[0, o : o + s], y[1, o : o + s]
        y1r, y1i = y[0, o + s : o + 2 * s], y[1, o + s : o + 2 * s]
        y2r, y2i = y[0, o + 2 * s : o + 3 * s], y[1, o + 2 * s : o + 3 * s]
        y3r, y3i = y[0, o + 3 * s : o + 4 * s], y[1, o + 3 * s : o + 4 * s]
        y4r, y4i = y[0, o + 4 * s : o + 5 * s], y[1, o + 4 * s : o + 5 * s]
        for q in range(s):
            s1r, s1i, d1r, d1i = br[q] + er[q], bi[q] + ei[q], br[q] - er[q], bi[q] - ei[q]
            s2r, s2i, d2r, d2i = cr[q] + dr[q], ci[q] + di[q], cr[q] - dr[q], ci[q] - di[q]
            zr, zi = ar[q], ai[q]
            y0r[q], y0i[q] = zr + s1r + s2r, zi + s1i + s2i
            m1r, m1i = zr + C51 * s1r + C52 * s2r, zi + C51 * s1i + C52 * s2i
            m2r, m2i = zr + C52 * s1r + C51 * s2r, zi + C52 * s1i + C51 * s2i
            n1r, n1i = S51 * d1r + S52 * d2r, S51 * d1i + S52 * d2i
            n2r, n2i = S52 * d1r - S51 * d2r, S52 * d1i - S51 * d2i
            ur, ui = m1r + n1i, m1i - n1r
            y1r[q], y1i[q] = ur * w1r - ui * w1i, ur * w1i + ui * w1r
            ur, ui = m2r + n2i, m2i - n2r
            y2r[q], y2i[q] = ur * w2r - ui * w2i, ur * w2i + ui * w2r
            ur, ui = m2r - n2i, m2i + n2r
            y3r[q], y3i[q] = ur * w3r - ui * w3i, ur * w3i + ui * w3r
            ur, ui = m1r - n1i, m1i + n1r
            y4r[q], y4i[q] = ur * w4r - ui * w4i, ur * w4i + ui * w4r


@kernel("void(float32[:, ::1], float32[:, ::1], int64, int64, int64, float32[::1])")
def _radix_any(x: Any, y: Any, radix: int, m: int, s: int, tw: Any) -> None:
    """Compute a stage with any prime radix, term by term, with sums in float64."""
    for p in range(m):
        for u in range(radix):
            wr, wi = np.float32(1), ZERO
            if u:
                wr, wi = tw[2 * ((radix - 1) * p + u - 1)], tw[2 * ((radix - 1) * p + u - 1) + 1]
            o = s * (radix * p + u)
            for q in range(s):
                sr, si = 0.0, 0.0
                for v in range(radix):
                    turn = -2.0 * math.pi * ((u * v) % radix) / radix
                    c, d = math.cos(turn), math.sin(turn)
                    ar, ai = x[0, s * (p + v * m) + q], x[1, s * (p + v * m) + q]
                    sr += ar * c - ai * d
                    si += ar * d + ai * c
                ur, ui = np.float32(sr), np.float32(si)
                y[0, o + q], y[1, o + q] = ur * wr - ui * wi, ur * wi + ui * wr


@kernel("float32[:, ::1](float32[:, ::1], float32[:, ::1], int64, int64, int64[::1], float32[::1], int64[::1])")
def transform(x: Any, y: Any, n: int, lanes: int, radices: Any, twiddles: Any, starts: Any) -> Any:
    """Transform all lanes of ``x``; return the array with the result, ``x`` or ``y``. Both are overwritten."""
    s, rest = lanes, n
    for stage in range(len(radices)):
        radix = radices[stage]
        m = rest // radix
        tw = twiddles[starts[stage] :]
        if radix == 4:
            _radix4(x, y, m, s, tw)
        elif radix == 5:
            _radix5(x, y, m, s, tw)
        elif radix == 2:
            _radix2(x, y, m, s, tw)
        elif radix == 3:
            _radix3(x, y, m, s, tw)
        else:
            _radix_any(x, y, radix, m, s, tw)
        x, y = y, x
        s, rest = s * radix, m
    return x
