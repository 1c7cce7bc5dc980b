"""Move nested batches to a device: lists become jagged tensors, and any tree of tensors arrives there."""

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import cedar

device = "cuda" if torch.cuda.is_available() else "cpu"


def as_model_wants(batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    return {"dense": batch["x"], "clicks": batch["items"]}, batch["label"]


rows = cedar.from_items([{"x": i / 10, "items": list(range(i % 4)), "label": i % 2} for i in range(100)])
with rows.shuffle(seed=1).batch(20).map(as_model_wants).loader(format="torch", device=device) as loader:
    for inputs, labels in loader:
        sums = torch.segment_reduce(inputs["clicks"].values.float(), "sum", offsets=inputs["clicks"].offsets)
        assert sums.shape == labels.shape == (20,)
print(inputs["clicks"], [leaf.device for leaf in tree_leaves((inputs, labels))])
assert all(leaf.device.type == device for leaf in tree_leaves((inputs, labels)))
