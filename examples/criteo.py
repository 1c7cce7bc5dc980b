"""Criteo display advertising as CSV: a label, 13 counts with gaps, 26 hexadecimal categories with gaps.

python examples/criteo.py criteo_sample.csv
"""

import sys

import cedar
from cedar import col

COUNTS = [f"I{i}" for i in range(1, 14)]
CATEGORIES = [f"C{i}" for i in range(1, 27)]
BUCKETS = 1 << 16


def pipeline(path: str, batch: int = 64) -> cedar.Pipeline:
    """Batches of the label, log counts as float64, and category buckets as int64 (0: a gap)."""
    counts = {name: col(name).fill_null(0).clip(lower_bound=0).log1p() for name in COUNTS}
    buckets = {name: col(name).str.to_integer(base=16).fill_null(0) % BUCKETS for name in CATEGORIES}
    return (
        cedar.read_csv(path, dtypes=dict.fromkeys(CATEGORIES, "string"))  # "68027382" is a category, not a number
        .with_columns(**counts, **buckets)
        .shuffle(seed=1)
        .batch(batch, last="keep")
    )


def main(path: str) -> None:
    rows = clicks = 0
    seen: dict[str, set[int]] = {name: set() for name in CATEGORIES}
    with pipeline(path).loader(format="torch") as loader:
        for batch in loader:
            rows += len(batch["label"])
            clicks += int(batch["label"].sum())
            for name in CATEGORIES:
                seen[name].update(batch[name].tolist())
    print(f"{rows} rows, {clicks / rows:.1%} clicked")
    widest = max(CATEGORIES, key=lambda name: len(seen[name]))
    print(f"the category with most values is {widest}: {len(seen[widest])} buckets in use")
    gaps = cedar.read_csv(path).filter(col("I1").is_null()).count()
    print(f"{gaps} rows have no I1; filled with 0")


if __name__ == "__main__":
    main(sys.argv[1])
