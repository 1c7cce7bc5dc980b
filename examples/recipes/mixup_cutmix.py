"""Mix the images and labels of each batch with mixup or CutMix, and train on the soft labels."""

from typing import Any

import numpy as np
import torch

import cedar
from cedar.operators import image

CLASSES = 4
rng = np.random.default_rng(0)
rows: list[dict[str, Any]] = []
for i in range(256):  # each class is bright in one quarter of its images
    picture, label = rng.integers(0, 80, (32, 32, 3), dtype=np.uint8), i % CLASSES
    picture[label // 2 * 16 :, label % 2 * 16 :][:16, :16] += 120
    rows.append({"image": picture, "label": label})

batches = (
    cedar.from_items(rows)
    .shuffle(seed=1)
    .map(image.to_float(), "image")
    .map(image.channels_first(), "image")
    .batch(32)
    .map(image.mixup(CLASSES, alpha=0.2, p=0.5), "image", "label")  # labels are float32 (rows, classes) from here on
    .map(image.cutmix(CLASSES, p=0.5), "image", "label")
)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, CLASSES))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
with batches.loader(format="torch") as loader:
    for _ in range(5):
        for batch in loader:
            assert torch.allclose(batch["label"].sum(dim=1), torch.ones(len(batch["label"])))
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
test = torch.from_numpy(np.stack([row["image"] for row in rows])).permute(0, 3, 1, 2) / 255
right = (model(test).argmax(dim=1) == torch.arange(256) % CLASSES).float().mean().item()
print(f"{right:.0%} of the images as they are")
assert right > 0.9
