"""From frames and arrays in memory to batches, and back."""

import numpy as np
import pandas as pd

import cedar

frame = pd.DataFrame({"x": np.arange(10.0), "label": np.arange(10) % 2})
for batch in cedar.from_pandas(frame).shuffle(seed=1).batch(4).loader():
    print(batch["x"], batch["label"])

images = cedar.from_numpy({"image": np.zeros((100, 8, 8), np.uint8), "label": np.arange(100) % 10})
batch = next(iter(images.batch(16).loader()))
assert batch["image"].shape == (16, 8, 8)

back = cedar.from_pandas(frame).filter(cedar.col("label") == 1).to_pandas()
print(back.describe())
assert len(back) == 5
