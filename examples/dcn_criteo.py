"""Train a DCN-v2 (arXiv 2008.13535) of your own on Criteo's clicks: embeddings by cedar, the rest by torch.

python examples/dcn_criteo.py criteo_sample.csv
torchrun --nproc-per-node 2 examples/dcn_criteo.py criteo_sample.csv --sharding rows    # tables cut over the ranks
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import polars as pl
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import cedar
from cedar import col
from cedar.nn import DedupEmbeddings, Feature

DENSE, WORDS = [f"I{n}" for n in range(1, 14)], [f"C{n}" for n in range(1, 27)]
BUCKETS, WIDTH, BATCH = 1000, 8, 40
REPEATED = ("C5", "C8", "C9")


def read(path: str, *, dedup: bool = True) -> cedar.Pipeline:
    """Counts as logarithms, words as numbers of buckets; columns that repeat together are held once."""
    count = {name: col(name).cast(pl.Float64).fill_null(0).clip(lower_bound=0).log1p() for name in DENSE}
    words = {name: col(name).str.to_integer(base=16).fill_null(0) % BUCKETS for name in WORDS}
    rows = cedar.read_csv(path, dtypes=dict.fromkeys(WORDS, "string"))
    rows = rows.select(label=col("label").cast(pl.Float64), **count, **words)
    lists = {name: pl.concat_list(name) for name in REPEATED}  # groups hold lists
    return rows.with_columns(**lists).dedup([list(REPEATED)]) if dedup else rows


def tables(**how: Any) -> DedupEmbeddings:
    """One for each word; rule=None: their rows are parameters, which the optimizer of the model trains."""
    return DedupEmbeddings([Feature(name, BUCKETS) for name in WORDS], WIDTH, rule=None, dtype=torch.float64, **how)


class DCN(nn.Module):
    """Crosses x' = x0 * (W x + b) + x, then a small network."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        size = len(DENSE) + len(WORDS) * WIDTH
        self.embeddings = embeddings  # from a batch to [rows, words, width]
        self.crosses = nn.ModuleList(nn.Linear(size, size) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        dense = torch.stack([batch[name] for name in DENSE], 1)
        start = x = torch.cat([dense, self.embeddings(batch).flatten(1)], 1)
        for cross in self.crosses:
            x = start * cross(x) + x
        return self.deep(x)[:, 0]  # type: ignore[no-any-return]


def train(rows: cedar.Pipeline, embeddings: nn.Module, epochs: int = 2) -> list[float]:
    """The loss of each step, over all ranks."""
    torch.manual_seed(0)
    model: nn.Module = DCN(embeddings).double()
    if dist.is_initialized():  # the tables, of which each rank has other rows, stay as they are
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    losses = []
    with rows.batch(BATCH, last="drop").loader(split_batches=True, format="torch") as loader:
        for batch in (batch for _ in range(epochs) for batch in loader):
            loss = functional.binary_cross_entropy_with_logits(model(batch), batch["label"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total = loss.detach()
            if dist.is_initialized():
                dist.all_reduce(total)
                total /= dist.get_world_size()
            losses.append(float(total))
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv")
    parser.add_argument("--sharding", default="tables", choices=["tables", "rows", "auto"])
    chosen = parser.parse_args()
    if "RANK" in os.environ:  # under torchrun
        dist.init_process_group("gloo")
    made = tables(sharding=chosen.sharding)
    found = train(read(chosen.csv), made)
    held = sum(len(value) for value in made.parameters())
    print(f"loss {found[0]:.4f} to {found[-1]:.4f} in {len(found)} steps; {held} rows of tables on this rank")
    if dist.is_initialized():
        dist.destroy_process_group()
