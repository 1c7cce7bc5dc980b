"""Train a DCN-v2 (arXiv 2008.13535) of one's own on Criteo's clicks: embeddings by cedar, the rest by torch.

python examples/dcn_criteo.py criteo_sample.csv
torchrun --nproc-per-node 2 examples/dcn_criteo.py criteo_sample.csv --sharding rows    # tables cut over the ranks
"""

from __future__ import annotations

import argparse
from typing import Any

import polars as pl
import torch
from torch import nn
from torch.nn import functional

import cedar
from cedar import col
from cedar.nn import DedupEmbeddings, Feature
from cedar.trainers.common.group import Group
from cedar.trainers.common.launch import connected

DENSE, WORDS = [f"I{n}" for n in range(1, 14)], [f"C{n}" for n in range(1, 27)]
BUCKETS, WIDTH, BATCH = 1000, 8, 40


def read(path: str, dedup: bool) -> cedar.Pipeline:
    """Counts as logarithms, words as numbers of buckets; columns that repeat together are held once."""
    count = {name: col(name).cast(pl.Float64).fill_null(0).clip(lower_bound=0).log1p() for name in DENSE}
    words = {name: col(name).str.to_integer(base=16).fill_null(0) % BUCKETS for name in WORDS}
    rows = cedar.read_csv(path, dtypes=dict.fromkeys(WORDS, "string"))
    rows = rows.select(label=col("label").cast(pl.Float64), **count, **words)
    lists = {name: pl.concat_list(name) for name in ("C5", "C8", "C9")}  # groups hold lists
    return rows.with_columns(**lists).dedup([list(lists)]) if dedup else rows


class DCN(nn.Module):
    """Crosses x' = x0 * (W x + b) + x, then a small network."""

    def __init__(self, embeddings: DedupEmbeddings) -> None:
        super().__init__()
        size = len(DENSE) + len(WORDS) * WIDTH
        self.embeddings = embeddings
        self.crosses = nn.ModuleList(nn.Linear(size, size) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        dense = torch.stack([batch[name] for name in DENSE], 1)
        start = x = torch.cat([dense, self.embeddings(batch).flatten(1)], 1)
        for cross in self.crosses:
            x = start * cross(x) + x
        return self.deep(x)[:, 0]  # type: ignore[no-any-return]


def train(
    path: str, epochs: int = 2, group: Group | None = None, *, dedup: bool = True, **how: Any
) -> tuple[list[float], DCN]:
    """The loss of each step, over all ranks, and the model."""
    group = group or Group()
    torch.manual_seed(0)
    features = [Feature(name, BUCKETS) for name in WORDS]
    model = DCN(DedupEmbeddings(features, WIDTH, group, dtype=torch.float64, **how)).double()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    losses = []
    loader = read(path, dedup).batch(BATCH, last="drop").loader(
        rank=group.rank, world=group.size, split_batches=True, subgroup=True, format="torch"
    )  # fmt: skip
    with loader:
        for _ in range(epochs):
            for batch in loader:
                loss = functional.binary_cross_entropy_with_logits(model(batch), batch["label"])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                for parameter in model.parameters():  # what DistributedDataParallel does
                    assert parameter.grad is not None
                    parameter.grad = group.add(parameter.grad, "dense") / group.size
                optimizer.step()
                model.embeddings.step()
                losses.append(float(group.add(loss.detach()[None], "loss")) / group.size)
    return losses, model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv")
    parser.add_argument("--sharding", default="tables", choices=["tables", "rows", "auto"])
    chosen = parser.parse_args()
    with connected():
        found, made = train(chosen.csv, sharding=chosen.sharding)
        rows = sum(len(value) for name, value in made.embeddings.state().items() if name.endswith(".weight"))
        print(f"loss {found[0]:.4f} to {found[-1]:.4f} in {len(found)} steps; {rows} rows of tables on this rank")
