"""Pixel operators in plain NumPy, one array operation after the other: tests compare with these, bit for bit."""

from __future__ import annotations

import numpy as np

from cedar.operators.image.pixels_steps import (
    AUTOCONTRAST,
    BLUR,
    BRIGHTNESS,
    CONTRAST,
    EQUALIZE,
    GRAY,
    GRAY_ONE,
    HUE,
    NONE,
    PERMUTE,
    POSTERIZE,
    SATURATION,
    SHARPEN,
    SOLARIZE,
    SPREAD,
    WARP,
)

F = np.float32


def fma(x, y, z):
    """float32 x * y + z, rounded once: the product of two float32 has no more than 48 bits, longdouble has 64."""
    wide = np.asarray(x, dtype=np.longdouble) * np.asarray(y, dtype=np.longdouble)
    return (wide + np.asarray(z, dtype=np.longdouble)).astype(F)


def whole(values):
    return np.clip(values, F(0), F(255)).astype(np.uint8)  # towards zero


def gray_of(image):
    r, g, b = np.moveaxis(image.astype(F), 2, 0)
    return np.floor(fma(b, F(0.114), fma(g, F(0.587), r * F(0.2989))))


def brightness(image, factor):
    return whole(image.astype(F) * F(factor))


def contrast(image, factor):
    gray = gray_of(image) if image.shape[2] == 3 else image.astype(F)
    mean = F(int(gray.astype(np.int64).sum())) / F(gray.size)
    return whole(fma(mean, F(1 - factor), image.astype(F) * F(factor)))


def saturation(image, factor):
    if image.shape[2] == 1:
        return image
    return whole(fma(gray_of(image)[:, :, None], F(1 - factor), image.astype(F) * F(factor)))


def hue(image, shift):
    if image.shape[2] == 1:
        return image
    unit = image.astype(F) * F(1 / 255)
    r, g, b = np.moveaxis(unit, 2, 0)
    high, low = unit.max(2), unit.min(2)
    span, flat = high - low, high == low
    s = span / np.where(flat, F(1), high)
    rc, gc, bc = ((high - channel) / np.where(flat, F(1), span) for channel in (r, g, b))
    h = np.where(high == r, bc - gc, np.where(high == g, (rc + F(2)) - bc, (gc + F(4)) - rc))
    h = np.fmod(h * F(1 / 6) + F(1), F(1))
    h = np.fmod(h + F(shift), F(1))
    h = np.where(h < 0, h + F(1), h) * F(6)
    sector = np.floor(h)
    part = h - sector
    p = (F(1) - s) * high
    q = (F(1) - s * part) * high
    t = (s * part + (F(1) - s)) * high
    v = high
    table = {0: (v, t, p), 1: (q, v, p), 2: (p, v, t), 3: (p, q, v), 4: (t, p, v), 5: (v, p, q)}
    made = np.zeros_like(unit)
    for number, channels in table.items():
        chosen = sector.astype(np.int64) % 6 == number
        for c, channel in enumerate(channels):
            made[:, :, c][chosen] = np.clip(channel, F(0), F(1))[chosen]
    return (made * F(255 + 1 - 1e-3)).astype(np.uint8)


def gray(image):
    return image if image.shape[2] == 1 else np.repeat(gray_of(image)[:, :, None].astype(np.uint8), 3, axis=2)


def solarize(image, threshold):
    return np.where(image >= threshold, 255 - image, image)


def posterize(image, bits):
    return image & np.uint8(256 - (1 << (8 - bits)))


def autocontrast(image):
    values = image.astype(F)
    low, high = values.min((0, 1)), values.max((0, 1))
    flat = low == high
    scale = np.where(flat, F(1), (high - low) * F(1 / 255))
    return whole((values - np.where(flat, F(0), low)) / scale)


def equalize(image):
    made = image.copy()
    for c in range(image.shape[2]):
        counts = np.bincount(image[:, :, c].ravel(), minlength=256)
        step = (counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
        if step:
            below = np.concatenate([[0], np.cumsum(counts)[:-1]])
            table = np.minimum((below + step // 2) // step, 255).astype(np.uint8)
            table[0] = 0
            made[:, :, c] = table[image[:, :, c]]
    return made


def blur(image, across, down):
    """By weights: columns, then rows, in float32 with fused sums in order; mirrored borders."""
    reach, rise = len(across) // 2, len(down) // 2
    wide = np.pad(image.astype(F), ((rise, rise), (reach, reach), (0, 0)), mode="reflect")
    height, width = image.shape[:2]
    columns = np.zeros((height, wide.shape[1], image.shape[2]), dtype=F)
    for k, weight in enumerate(down):
        columns = fma(wide[k : k + height], weight, columns)
    rows = np.zeros(image.shape, dtype=F)
    for k, weight in enumerate(across):
        rows = fma(columns[:, k : k + width], weight, rows)
    return np.minimum(np.round(rows), 255).astype(np.uint8)  # halves to the even one


def sharpen(image, factor):
    """Away from the mean of nine pixels, the one in the middle counting five times; the border stays."""
    height, width = image.shape[:2]
    if height < 3 or width < 3:
        return image
    values = image.astype(np.int64)
    total = 4 * values[1:-1, 1:-1]
    for i in range(3):
        for j in range(3):
            total = total + values[i : height - 2 + i, j : width - 2 + j]
    mean, inner, made = np.round(total / 13).astype(F), image[1:-1, 1:-1].astype(F), image.copy()
    made[1:-1, 1:-1] = whole(fma(mean - inner, F(1 - factor), inner))
    return made


def warp(image, table, mode):
    """Each pixel from where the matrix says, of an image with a border of fill or of nothing around it."""
    height, width, channels = image.shape
    matrix = np.append(table[:8], 1.0).reshape(3, 3)
    y, x = np.mgrid[:height, :width] + 0.5
    with np.errstate(all="ignore"):
        across, down, depth = (row[0] * x + row[1] * y + row[2] for row in matrix)
        across, down = across / depth - 0.5, down / depth - 0.5
        outside = ~((across > -1) & (across < width) & (down > -1) & (down < height))
    across, down = np.where(outside, -1.0, across), np.where(outside, -1.0, down)
    fill = table[8 : 8 + channels]
    bordered = np.zeros((height + 3, width + 3, channels + 1))  # the last channel: what is of the image
    bordered[1:-2, 1:-2, :-1], bordered[1:-2, 1:-2, -1] = image, 1
    if mode == 0:
        taken = bordered[np.round(down).astype(int) + 1, np.round(across).astype(int) + 1]
        return np.round(np.where(taken[..., -1:] == 1, taken[..., :-1], fill)).astype(np.uint8)
    left, top = np.floor(across).astype(int), np.floor(down).astype(int)
    right, low = (across - left)[..., None], (down - top)[..., None]
    taken = (1 - right) * (1 - low) * bordered[top + 1, left + 1]
    taken = taken + right * (1 - low) * bordered[top + 1, left + 2]
    taken = taken + (1 - right) * low * bordered[top + 2, left + 1]
    taken = taken + right * low * bordered[top + 2, left + 2]
    mixed = (taken[..., :-1] - fill) * taken[..., -1:] + fill if mode == 2 else taken[..., :-1]
    return np.round(np.where(outside[..., None], fill, mixed)).astype(np.uint8)


def gauss(size, sigma):
    x = np.arange(size) - size // 2
    weights = np.exp(-((x / sigma) ** 2) / 2)
    weights = (weights / weights.sum()).astype(F)
    return weights[weights >= 2.0**-25]


def unit(image):
    return image.astype(F) * F(1 / 255)


def standard(image, mean, std):
    with np.errstate(all="ignore"):
        return (image - np.array(mean, dtype=F)) / np.array(std, dtype=F)


def plain(steps, row, image):
    """The steps of a row, one after the other."""
    for code, (first, second) in zip(steps.codes[row], steps.numbers[row], strict=True):
        three = image.shape[2] == 3
        if code == BRIGHTNESS:
            image = brightness(image, first)
        elif code == CONTRAST:
            image = contrast(image, first)
        elif code == SATURATION:
            image = saturation(image, first)
        elif code == HUE:
            image = hue(image, first)
        elif code == GRAY:
            image = gray(image)
        elif code == GRAY_ONE:
            image = gray(image)[:, :, :1]
        elif code == SPREAD:
            image = image if three else np.repeat(image, 3, axis=2)
        elif code == SOLARIZE:
            image = solarize(image, first)
        elif code == POSTERIZE:
            image = image // np.uint8(first) * np.uint8(first) if first < 256 else image * np.uint8(0)
        elif code == PERMUTE:
            image = image[:, :, [int(first) >> 2 * c & 3 for c in range(3)]] if three else image
        elif code == AUTOCONTRAST:
            image = autocontrast(image)
        elif code == EQUALIZE:
            image = equalize(image)
        elif code == SHARPEN:
            image = sharpen(image, first)
        elif code == WARP:
            image = warp(image, steps.tables[int(first)].astype(np.float64), int(second))
        elif code == BLUR:
            image = blur(image, steps.tables[int(first)], steps.tables[int(second)])
        else:
            assert code == NONE
    return image
