"""Augment images for training as torchvision's recipes do: RandAugment and random erasing, new in every epoch."""

import tempfile

import numpy as np
from PIL import Image

import cedar
from cedar.operators import image

folder = tempfile.mkdtemp()
for i in range(32):
    waves = 128 + 100 * np.sin(np.arange(3 * 90 * 120).reshape(90, 120, 3) / (i + 5))
    Image.fromarray(waves.astype(np.uint8)).save(f"{folder}/{i}.jpg")

batches = (
    cedar.read_files(f"{folder}/*.jpg")
    .map(image.decode(), "bytes", into="image")
    .map(image.random_resized_crop(64), "image")
    .map(image.horizontal_flip(), "image")
    .map(image.rand_augment(num_ops=2, magnitude=9), "image")  # or image.trivial_augment()
    .map(image.to_float(), "image")
    .map(image.normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), "image")
    .map(image.erasing(p=0.25), "image")
    .map(image.channels_first(), "image")
    .select("image")
    .batch(8)
)
with batches.loader(format="torch", seed=1) as loader:
    first, second = ([batch["image"] for batch in loader] for _ in range(2))  # two epochs
again = [batch["image"] for batch in batches.loader(format="torch", seed=1)]
print(first[0].shape, first[0].dtype)
assert first[0].shape == (8, 3, 64, 64)
assert all((a == b).all() for a, b in zip(first, again, strict=True))  # the same run gives the same pictures
assert not any((a == b).all() for a, b in zip(first, second, strict=True))
