"""Workloads in TensorFlow's own operators, for tf.data: name of the workload to a function of ``(tf, work)``.

What is drawn comes from the same function as everywhere, computed beforehand: rows carry their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.peers.photos import MEAN, STD, part
from benchmarks.peers.workload import library, split_mix
from benchmarks.peers.workloads import audio as audio_workload
from benchmarks.peers.workloads import cached as cached_workload
from benchmarks.peers.workloads import simclr as simclr_workload


def simclr(tf: Any, work: Any) -> Any:
    """All of SimCLR in the graph; colors on floats, which is what TensorFlow's operators are made for."""
    side, radius = simclr_workload.SIDE, simclr_workload.KERNEL // 2
    draws = [simclr_workload.draw(i) for i in range(work.rows)]
    rows = {
        "id": np.arange(work.rows),
        "path": [f"{work.folder}/images/{i:06d}.jpg" for i in range(work.rows)],
        "crop": np.array([crop_of(work, i, d.crop) for i, d in enumerate(draws)], np.int32),
        "flip": np.array([d.flip for d in draws]),
        "order": np.array([d.order if d.jitter else (4, 4, 4, 4) for d in draws], np.int32),
        "colors": np.array([(d.brightness, d.contrast, d.saturation, d.hue) for d in draws], np.float32),
        "gray": np.array([d.gray for d in draws]),
        "sigma": np.array([d.sigma if d.blur else 0 for d in draws], np.float32),
    }
    mean, deviation = tf.constant(MEAN), tf.constant(STD)

    def one(row: Any) -> Any:
        content, crop, colors = tf.io.read_file(row["path"]), row["crop"], row["colors"]
        image = tf.io.decode_and_crop_jpeg(content, crop, channels=3, dct_method="INTEGER_ACCURATE")
        image = tf.image.resize(image, (side, side), method="bilinear", antialias=False) / 255.0
        image = tf.cond(row["flip"], lambda: tf.image.flip_left_right(image), lambda: image)
        for k in range(4):
            image = jitter(image, row["order"][k], colors)
        image = tf.cond(row["gray"], lambda: tf.image.grayscale_to_rgb(tf.image.rgb_to_grayscale(image)), lambda: image)
        image = tf.cond(row["sigma"] > 0, lambda: blurred(image, row["sigma"]), lambda: image)
        image = (image - mean) / deviation
        return {"id": row["id"], "image": tf.transpose(image, (2, 0, 1))}

    def jitter(image: Any, step: Any, colors: Any) -> Any:
        def clip(x: Any) -> Any:
            return tf.clip_by_value(x, 0.0, 1.0)

        def mean_gray() -> Any:
            return tf.reduce_mean(tf.image.rgb_to_grayscale(image))

        steps = (
            lambda: clip(image * colors[0]),
            lambda: clip(image * colors[1] + mean_gray() * (1 - colors[1])),
            lambda: clip(image * colors[2] + tf.image.rgb_to_grayscale(image) * (1 - colors[2])),
            lambda: tf.image.adjust_hue(image, colors[3]),
            lambda: image,
        )
        made = tf.switch_case(step, steps)
        made.set_shape((side, side, 3))
        return made

    def blurred(image: Any, sigma: Any) -> Any:
        x = tf.range(-radius, radius + 1, dtype=tf.float32)
        weights = tf.exp(-(x**2) / (2 * sigma**2))
        weights = weights / tf.reduce_sum(weights)
        image = tf.pad(image, [[radius, radius], [radius, radius], [0, 0]], "REFLECT")[None]
        for shape in ((-1, 1, 1, 1), (1, -1, 1, 1)):
            kernel = tf.tile(tf.reshape(weights, shape), (1, 1, 3, 1))
            image = tf.nn.depthwise_conv2d(image, kernel, (1, 1, 1, 1), "VALID")
        return tf.ensure_shape(image[0], (side, side, 3))

    return tf.data.Dataset.from_tensor_slices(rows).map(one, num_parallel_calls=2).batch(work.batch)


def crop_of(work: Any, i: int, numbers: Any) -> tuple[int, int, int, int]:
    height, width = library("simplejpeg").decode_jpeg_header(work.read(i))[:2]
    return part(numbers, height, width, (0.08, 1.0))


def audio(tf: Any, work: Any) -> Any:
    """Decoding and resampling are functions, since TensorFlow decodes WAV alone; the spectrogram is in the graph."""
    filters = tf.constant(audio_workload.filters())
    n, hop = audio_workload.N_FFT, audio_workload.HOP

    def clip(i: int) -> Any:
        found, rate = audio_workload.decoded(work.read(int(i)))
        found = library("soxr").resample(found, rate, audio_workload.RATE, "HQ")[: audio_workload.LENGTH]
        padded = np.zeros(audio_workload.LENGTH, np.float32)
        padded[: len(found)] = found
        return padded

    def one(i: Any) -> Any:
        samples = tf.ensure_shape(tf.numpy_function(clip, [i], tf.float32), (audio_workload.LENGTH,))
        samples = tf.pad(samples, [[n // 2, n // 2]], "REFLECT")
        spectrum = tf.signal.stft(samples, n, hop, fft_length=n)
        power = tf.abs(spectrum) ** 2
        return {"id": i, "mel": tf.math.log(tf.matmul(filters, power, transpose_b=True) + audio_workload.FLOOR)}

    return tf.data.Dataset.range(work.rows).map(one, num_parallel_calls=2).batch(work.batch)


def cached(tf: Any, work: Any) -> Any:
    """Decode and resize, ``cache()``, then crop, flip, normalize."""
    kept, side = cached_workload.KEPT_SIDE, cached_workload.SIDE
    numbers = [split_mix(i, 41) for i in range(work.rows)]
    crops = np.array([part(n[:40], kept, kept, cached_workload.SCALE) for n in numbers], np.int32)
    flips = np.array([n[40] < 0.5 for n in numbers])
    paths = [f"{work.folder}/images/{i:06d}.jpg" for i in range(work.rows)]
    mean, deviation = tf.constant(MEAN), tf.constant(STD)

    def prefix(i: Any, path: Any, crop: Any, flip: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3, dct_method="INTEGER_ACCURATE")
        image = tf.image.resize(image, (kept, kept), method="bilinear", antialias=False)
        return i, tf.cast(tf.round(image), tf.uint8), crop, flip

    def rest(i: Any, image: Any, crop: Any, flip: Any) -> Any:
        image = tf.image.crop_to_bounding_box(image, crop[0], crop[1], crop[2], crop[3])
        image = tf.image.resize(image, (side, side), method="bilinear", antialias=False)
        image = tf.cond(flip, lambda: tf.image.flip_left_right(image), lambda: image)
        image = (image / 255.0 - mean) / deviation
        return {"id": i, "image": tf.transpose(image, (2, 0, 1))}

    data = tf.data.Dataset.from_tensor_slices((np.arange(work.rows), paths, crops, flips))
    data = data.map(prefix, num_parallel_calls=2).cache()
    return data.map(rest, num_parallel_calls=2).batch(work.batch)


DATASETS: dict[str, Callable[[Any, Any], Any]] = {"simclr": simclr, "audio": audio, "cached": cached}
