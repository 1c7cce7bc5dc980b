"""Deliver batches as objects of your own, with values that belong to the whole batch."""

from dataclasses import dataclass

import numpy as np

import cedar


@dataclass
class Batch:
    features: np.ndarray  # float64[rows, 3]
    labels: np.ndarray  # int64[rows]
    positives: int  # of the batch


def as_batch(columns: dict[str, np.ndarray]) -> Batch:
    features = np.stack([columns[name] for name in ("age", "price", "clicks")], axis=1)
    return Batch(features, columns["label"], int(columns["label"].sum()))


rows = cedar.from_items([{"age": i % 90, "price": i / 7, "clicks": i % 5, "label": i % 2} for i in range(1000)])
loader = rows.shuffle(seed=1).batch(64).map(as_batch).loader()
batches = list(loader)
print(batches[0].features.shape, [batch.positives for batch in batches])
assert all(batch.positives == batch.labels.sum() for batch in batches)
assert sum(len(batch.labels) for batch in batches) == 1000
