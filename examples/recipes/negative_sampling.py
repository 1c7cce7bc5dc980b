"""Four items at random next to each click, drawn again in every epoch; a drawn item is not the clicked one."""

import numpy as np

import cedar

ITEMS, NEGATIVES = 1000, 4


def draw(item: int, rng: np.random.Generator) -> list[int]:
    drawn = rng.integers(0, ITEMS - 1, NEGATIVES)
    return [item, *(drawn + (drawn >= item)).tolist()]


clicks = cedar.from_items([{"user": i % 50, "item": i % ITEMS} for i in range(2000)])
rows = clicks.map(draw, "item", into="candidates", random=True, dtype=list[int]).shuffle(seed=1)
print(next(iter(rows)))
exploded = rows.explode("candidates")
assert exploded.count() == 2000 * (1 + NEGATIVES)
assert all(len(set(row["candidates"]) - {row["item"]}) >= 1 for row in rows.take(20))
