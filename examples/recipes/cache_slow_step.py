"""Compute an expensive feature once, keep it on disk, and draw random augmentations on top of it in every epoch."""

import tempfile
from pathlib import Path

import numpy as np

import cedar

folder = Path(tempfile.mkdtemp())


def embed(text: str) -> np.ndarray:
    with (folder / "calls").open("a") as file:  # stands for the slow part
        file.write(".")
    return np.resize(np.frombuffer(text.encode(), np.uint8), 8).astype(np.float32)


def noise(vector: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return vector + rng.normal(size=8).astype(np.float32)


rows = cedar.from_items([{"text": f"document {i}"} for i in range(200)])
kept = rows.map(embed, "text", into="vector").cache(str(folder / "kept"))
loader = kept.map(noise, "vector", random=True).shuffle(seed=1).batch(16).loader()
first, calls = list(loader), (folder / "calls").stat().st_size
second = list(loader)
print(calls, "calls in the first epoch, none in the second")
assert (folder / "calls").stat().st_size == calls
assert not np.array_equal(first[0]["vector"], second[0]["vector"])
