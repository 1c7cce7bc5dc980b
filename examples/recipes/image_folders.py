"""Train on folders of images, one folder per class, and draw rare classes as often as frequent ones."""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

import cedar
from cedar import col
from cedar.operators import image

root = Path(tempfile.mkdtemp())
for name, count in {"cat": 40, "dog": 8}.items():
    (root / name).mkdir()
    for i in range(count):
        Image.fromarray(np.full((40, 50, 3), i, np.uint8)).save(root / name / f"{i}.jpg")

classes = sorted(folder.name for folder in root.iterdir())
batches = (
    cedar.read_files(f"{root}/*/*.jpg")
    .with_columns(name=col("path").str.split("/").list.get(-2))
    .map(classes.index, "name", into="label")
    .balance_classes("label")
    .map(image.decode(), "bytes", into="image")
    .map(image.random_resized_crop(32), "image")
    .map(image.to_float(), "image")
    .map(image.channels_first(), "image")
    .select("image", "label")
    .batch(16)
)
labels: Counter[int] = Counter()
for batch in batches.loader(format="torch"):
    assert batch["image"].shape[1:] == (3, 32, 32)
    labels.update(batch["label"].tolist())
print(dict(labels))
assert 12 <= labels[1] <= 36  # of 48, where 8 are in the folder
