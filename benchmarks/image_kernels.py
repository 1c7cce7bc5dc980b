"""Image kernels against what other libraries offer: microseconds of CPU for one image of 224 x 224.

    python -m benchmarks.image_kernels [--quick]        QUICK=1 does the same as --quick

Every contender does the work of the operator next to it, up to rounding; OpenCV, Pillow and torch take part where they
are installed. Rounds are interleaved; the least and the median are given. The whole pixel part of SimCLR is ours in one
pass, the same operators one by one, and the usual calls of OpenCV and NumPy.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from cedar.operators.draws import Draws
from cedar.operators.image.color_jitter import ColorJitter
from cedar.operators.image.gaussian_blur import GaussianBlur
from cedar.operators.image.normalize import Normalize, ToFloat
from cedar.operators.image.pixel_transform import Grayscale
from cedar.operators.image.pixels import compile_pixels
from cedar.operators.image.resample import resize_into
from cedar.operators.image.solarize import Equalize, Solarize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ROWS = 8  # images of a call, so that what a call costs next to them shows little
Contenders = dict[str, Callable[[], Any]]


def library(name: str) -> Any:
    """A module, None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


cv2, pillow, torch = library("cv2"), library("PIL.Image"), library("torch")


def measured(contenders: Contenders, rounds: int) -> dict[str, tuple[float, float]]:
    """Least and median CPU microseconds of a call, in interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        call()
    for _ in range(rounds):
        for name, call in contenders.items():
            start = time.thread_time_ns()
            call()
            times[name].append((time.thread_time_ns() - start) / 1000)
    return {name: (min(found), statistics.median(found)) for name, found in times.items()}


def program(images: Any, *transforms: Any, channels_first: bool = False) -> Callable[[], Any]:
    """The transforms in one pass, into an array that is there already."""
    compiled = compile_pixels(transforms, channels_first=channels_first)
    words = np.random.default_rng(1).integers(0, 1 << 63, (len(transforms), len(images))).astype(np.uint64)
    draws = [Draws(own) if t.random else None for own, t in zip(words, transforms, strict=True)]
    out = compiled.run(images, draws)
    return lambda: compiled.run(images, draws, out)


def each(images: Any, call: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: [call(image) for image in images]


def resizing(height: int, width: int) -> Contenders:
    source = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    out = np.empty((224, 224, 3), dtype=np.uint8)
    found: Contenders = {
        "cedar, antialias": lambda: resize_into(source, None, out),
        "cedar, no antialias": lambda: resize_into(source, None, out, antialias=False),
    }
    if pillow:
        image = pillow.fromarray(source)
        found["Pillow, bilinear (the same bits)"] = lambda: image.resize((224, 224), 2)
    if cv2:
        found["OpenCV, linear"] = lambda: cv2.resize(source, (224, 224), interpolation=cv2.INTER_LINEAR)
        found["OpenCV, area"] = lambda: cv2.resize(source, (224, 224), interpolation=cv2.INTER_AREA)
    return found


def operators(images: Any) -> dict[str, Contenders]:
    """One operator each, on ROWS images."""
    lut = np.arange(256, dtype=np.uint8)
    found: dict[str, Contenders] = {
        "brightness": {"cedar": program(images, ColorJitter(brightness=0.8))},
        "contrast": {"cedar": program(images, ColorJitter(contrast=0.8))},
        "saturation": {"cedar": program(images, ColorJitter(saturation=0.8))},
        "hue": {"cedar": program(images, ColorJitter(hue=0.2))},
        "color_jitter, all four": {"cedar": program(images, ColorJitter(0.8, 0.8, 0.8, 0.2))},
        "grayscale": {"cedar": program(images, Grayscale(3))},
        "solarize": {"cedar": program(images, Solarize(128, p=1.0))},
        "equalize": {"cedar": program(images, Equalize(p=1.0))},
        "gaussian_blur 23, sigma 0.5": {"cedar": program(images, GaussianBlur(23, 0.5))},
        "gaussian_blur 23, sigma 2": {"cedar": program(images, GaussianBlur(23, 2.0))},
        "to_float and normalize": {"cedar": program(images, ToFloat(), Normalize(MEAN, STD))},
        "to_float and normalize, channels first": {
            "cedar": program(images, ToFloat(), Normalize(MEAN, STD), channels_first=True),
            "NumPy": each(images, _numpy_floats),
        },
    }
    if cv2:
        for name in ("brightness", "solarize"):
            found[name]["OpenCV, table"] = each(images, lambda i: cv2.LUT(i, lut))
        found["hue"]["OpenCV, to HSV and back (8 bits)"] = each(images, _cv2_hue)
        found["grayscale"]["OpenCV"] = each(
            images, lambda i: cv2.cvtColor(cv2.cvtColor(i, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
        )
        for sigma in (0.5, 2.0):
            blurs = found[f"gaussian_blur 23, sigma {sigma:g}"]
            blurs["OpenCV, GaussianBlur"] = each(images, partial(cv2.GaussianBlur, ksize=(23, 23), sigmaX=sigma))
    if pillow:
        from PIL import ImageEnhance, ImageOps

        pictures = [pillow.fromarray(image) for image in images]
        kinds = {
            "brightness": ImageEnhance.Brightness,
            "contrast": ImageEnhance.Contrast,
            "saturation": ImageEnhance.Color,
        }
        for name, kind in kinds.items():
            found[name]["Pillow"] = each(pictures, partial(_enhanced, kind))
        found["equalize"]["Pillow"] = each(pictures, ImageOps.equalize)
    if torch:
        tensors = [torch.from_numpy(image).permute(2, 0, 1).contiguous() for image in images]
        found["brightness"]["torch"] = each(tensors, lambda t: t.mul(1.3).clamp_(0, 255).to(torch.uint8))
        found["saturation"]["torch"] = each(tensors, _torch_saturation)
    return found


def _numpy_floats(image: Any) -> Any:
    mean, std = np.array(MEAN, dtype=np.float32), np.array(STD, dtype=np.float32)
    return np.ascontiguousarray(((image * np.float32(1 / 255) - mean) / std).transpose(2, 0, 1))


def _enhanced(kind: Any, picture: Any) -> Any:
    return kind(picture).enhance(1.3)


def _cv2_hue(image: Any) -> Any:
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    hsv[:, :, 0] = (hsv[:, :, 0] + 20) % 180
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)


def _torch_saturation(image: Any) -> Any:
    r, g, b = image.unbind(0)
    gray = r.mul(0.2989).add_(g, alpha=0.587).add_(b, alpha=0.114).floor_()
    return image.mul(1.3).add_(gray, alpha=1 - 1.3).clamp_(0, 255).to(torch.uint8)


def simclr(images: Any) -> Contenders:
    """Jitter 0.8, 0.8, 0.8, 0.2 with p 0.8, grayscale 0.2, blur 23 with p 0.5, to normalized float32 (3, 224, 224)."""
    chain = [
        ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8), Grayscale(p=0.2), GaussianBlur(23, (0.1, 2.0), p=0.5), ToFloat(),
        Normalize(MEAN, STD),
    ]  # fmt: skip
    found: Contenders = {"cedar, one pass": program(images, *chain, channels_first=True)}
    rng = np.random.default_rng(1)
    draws = [Draws(rng.integers(0, 1 << 63, len(images)).astype(np.uint64)) for _ in chain]
    programs = [(compile_pixels([t]), own if t.random else None) for t, own in zip(chain, draws, strict=True)]

    def one_by_one() -> Any:
        made = images
        for compiled, own in programs:
            made = compiled.run(made, [own])
        return np.ascontiguousarray(made.transpose(0, 3, 1, 2))

    found["cedar, one by one"] = one_by_one
    if cv2:
        uniform = rng.random((len(images), 8))
        found["OpenCV and NumPy"] = lambda: [_cv2_simclr(i, u) for i, u in zip(images, uniform, strict=True)]
    return found


def _cv2_simclr(image: Any, u: Any) -> Any:
    """As pipelines on OpenCV do it: tables, grays and hue of 8 bits."""
    if u[0] < 0.8:
        steps = np.arange(256, dtype=np.float32)
        image = cv2.LUT(image, np.clip(steps * (0.2 + 1.6 * u[1]), 0, 255).astype(np.uint8))
        mean, factor = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).mean(), 0.2 + 1.6 * u[2]
        image = cv2.LUT(image, np.clip(steps * factor + mean * (1 - factor), 0, 255).astype(np.uint8))
        gray, factor = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), 0.2 + 1.6 * u[3]
        image = cv2.addWeighted(image, factor, cv2.cvtColor(gray, cv2.COLOR_GRAY2RGB), 1 - factor, 0)
        image = _cv2_hue(image)
    if u[4] < 0.2:
        image = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    if u[5] < 0.5:
        image = cv2.GaussianBlur(image, (23, 23), 0.1 + 1.9 * u[6])
    scaled = image.astype(np.float32)
    scaled *= np.float32(1 / 255)
    scaled -= np.array(MEAN, dtype=np.float32)
    scaled /= np.array(STD, dtype=np.float32)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", default=bool(os.environ.get("QUICK")))
    parser.add_argument("--json", help="a file for the figures")
    arguments = parser.parse_args()
    if cv2:
        cv2.setNumThreads(1)
    if torch:
        torch.set_num_threads(1)
    rounds = 15 if arguments.quick else 100
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (ROWS, 224, 224, 3), dtype=np.uint8)
    many = rng.integers(0, 256, (64, 224, 224, 3), dtype=np.uint8)
    tables = {f"resize {h} x {w}": (resizing(h, w), 1) for h, w in ((130, 140), (300, 400), (600, 800))}
    tables |= {name: (contenders, ROWS) for name, contenders in operators(images).items()}
    tables["SimCLR, all pixel operators"] = (simclr(many), len(many))
    figures: dict[str, dict[str, tuple[float, float]]] = {}
    print(f"{'CPU us for one image of 224 x 224':42}{'':36}{'least':>8}{'median':>8}")
    for name, (contenders, rows) in tables.items():
        found = measured(contenders, rounds if rows < 64 else max(3, rounds // 10))
        figures[name] = {who: (least / rows, middle / rows) for who, (least, middle) in found.items()}
        for who, (least, middle) in figures[name].items():
            print(f"{name:42}{who:36}{least:8.0f}{middle:8.0f}", flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
