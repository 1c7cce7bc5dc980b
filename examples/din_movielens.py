"""Train a DIN (arXiv 1706.06978) on MovieLens: how a film is rated, from how much it is like others that were liked.

python examples/din_movielens.py movielens_sample.csv

The sample has one or two ratings of a user, so people of one gender and occupation are taken as one user. The films
that they liked first are a list that all their later ratings share; its rows are looked up once.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import cedar
from cedar.nn import DedupEmbeddings, Feature

FILMS, WIDTH, BATCH = 4000, 8, 16


def read(path: str, *, dedup: bool = True) -> cedar.Pipeline:
    """Rows of a film, whether it was liked, and films that were liked before."""
    ratings = cedar.read_csv(path).select("gender", "occupation", "timestamp", "movie_id", "rating")
    by_people = defaultdict(list)
    for row in sorted(ratings, key=lambda row: row["timestamp"]):
        by_people[row["gender"], row["occupation"]].append((int(row["movie_id"]), float(row["rating"] >= 4)))
    rows = []
    for given in by_people.values():
        first, later = given[: len(given) // 2], given[len(given) // 2 :]
        liked = [film for film, good in first if good]
        rows += [{"film": film, "liked": liked, "good": good} for film, good in later]
    films = cedar.from_items(rows)
    return films.dedup([["liked"]]) if dedup else films


def tables() -> DedupEmbeddings:
    """One table of films; rule="adam": only the rows that a batch has looked up are updated."""
    features = [Feature("film", FILMS), Feature("liked", FILMS, table="film", pooling="attention")]
    return DedupEmbeddings(features, WIDTH, rule="adam", rate=0.01, dtype=torch.float64)


class DIN(nn.Module):
    """The films that were liked, weighted by what a small network says of each next to the one that is asked for."""

    def __init__(self, embeddings: Any) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.weigh = nn.Sequential(nn.Linear(4 * WIDTH, 16), nn.PReLU(), nn.Linear(16, 1))
        self.top = nn.Sequential(nn.Linear(2 * WIDTH, 16), nn.PReLU(), nn.Linear(16, 1))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        film, rows = self.embeddings.rows(batch)  # [batch, width], [ids of all lists, width]
        lists = batch["liked"]
        once = isinstance(lists, cedar.InverseKeyedJaggedTensor)
        lengths = (lists["liked"] if once else lists).offsets.diff()
        there = torch.arange(int(lengths.max())) < lengths[:, None]
        liked = rows.new_zeros(*there.shape, WIDTH).masked_scatter(there[:, :, None], rows)
        if once:  # from lists that differ to those of all rows
            liked, there = liked[lists.inverse_lookup], there[lists.inverse_lookup]
        asked = film[:, None].expand_as(liked)
        weights = self.weigh(torch.cat([liked, asked, liked - asked, liked * asked], 2)) * there[:, :, None]
        return self.top(torch.cat([(weights * liked).sum(1), film], 1))[:, 0]  # type: ignore[no-any-return]


def train(rows: cedar.Pipeline, embeddings: Any, epochs: int = 4) -> list[float]:
    """The loss of each step."""
    torch.manual_seed(0)
    model = DIN(embeddings).double()
    optimizer = torch.optim.Adam([*model.weigh.parameters(), *model.top.parameters()], lr=0.01)
    losses = []
    with rows.batch(BATCH, last="keep").loader(format="torch") as loader:
        for batch in (batch for _ in range(epochs) for batch in loader):
            loss = functional.binary_cross_entropy_with_logits(model(batch), batch["good"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            embeddings.step()
            losses.append(float(loss.detach()))
    return losses


if __name__ == "__main__":
    found = train(read(sys.argv[1]), tables())
    epoch = len(found) // 4
    print(f"loss {sum(found[:epoch]) / epoch:.4f} in the first epoch, {sum(found[-epoch:]) / epoch:.4f} in the last")
