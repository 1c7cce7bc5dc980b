"""A torch dataset that you already have, with shuffling, batching and an exact stop and resume around it.

python examples/dataset.py movielens_sample.csv
"""

import csv
import json
import sys
from itertools import islice
from typing import Any

from torch.utils.data import Dataset

import cedar


class Ratings(Dataset[dict[str, Any]]):
    """A map-style dataset: a length, and a row by number."""

    def __init__(self, path: str) -> None:
        with open(path, newline="", encoding="utf-8") as file:
            self.rows = list(csv.DictReader(file))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        return {"user": int(row["user_id"]), "movie": int(row["movie_id"]), "rating": float(row["rating"])}


def main(path: str) -> None:
    batches = cedar.from_items(Ratings(path)).shuffle(seed=1).batch(16)

    with batches.loader(format="torch") as loader:
        whole = [batch["movie"].tolist() for batch in loader]

    with batches.loader(format="torch") as loader:
        first = [batch["movie"].tolist() for batch in islice(loader, 5)]
        saved = json.dumps(loader.state_dict())  # small, and plain JSON

    with batches.loader(format="torch") as loader:  # in real life: another process, another day
        loader.load_state_dict(json.loads(saved))
        rest = [batch["movie"].tolist() for batch in loader]

    print(f"{len(whole)} batches; stopped after {len(first)}, resumed for {len(rest)}; the state: {len(saved)} bytes")
    print("the same batches as without a stop:", first + rest == whole)


if __name__ == "__main__":
    main(sys.argv[1])
