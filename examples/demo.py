"""Train a small click model through a pipeline, stop it in the middle, and go on from the checkpoint.

python examples/demo.py                              # writes a click log of 500,000 rows under build/ and uses it
python examples/demo.py --data 'clicks/*.parquet'    # your files: floats become dense features; integers,
                                                     # strings and lists of integers become hashed ids
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.types as pt
import torch
from torch import Tensor, nn

import cedar
from cedar import col
from cedar.datasets.clicks import write_clicks

BATCH = 4096
BUCKETS = 1 << 15  # rows of an embedding table
WIDTH = 16  # numbers in an embedding
LONGEST = 32  # ids of a list that are looked at
LABELS = ("label", "click", "clicked", "is_click", "target", "y")
NOT_FEATURES = {"session", "session_id", "row_id", "ts", "time", "timestamp"}  # who and when, not what

Batch = dict[str, Any]


@dataclass(frozen=True)
class Columns:
    """What each column of the data is used for."""

    label: str
    dense: tuple[str, ...]
    ids: tuple[str, ...]
    words: tuple[str, ...]
    lists: tuple[str, ...]

    @property
    def sparse(self) -> tuple[str, ...]:
        return self.ids + self.words + self.lists


def choose_columns(schema: dict[str, Any], label: str | None) -> Columns:
    """Sort the columns of a schema by type; raises ValueError where no label can be found."""
    found = label or next((name for name in LABELS if name in schema), None)
    if found not in schema:
        looked_for = repr(label) if label else f"none of {', '.join(LABELS)}"
        raise ValueError(f"no label column ({looked_for}); name one of these with --label: {', '.join(schema)}")
    if not _is_number(schema[found]):
        raise ValueError(f"the label column {found!r} is {schema[found]}; it must hold the numbers 0 and 1")
    features = {name: kind for name, kind in schema.items() if name not in {found, *NOT_FEATURES}}
    columns = Columns(
        found,
        dense=tuple(n for n, kind in features.items() if pt.is_floating(kind)),
        ids=tuple(n for n, kind in features.items() if pt.is_integer(kind)),
        words=tuple(n for n, kind in features.items() if pt.is_large_string(kind)),
        lists=tuple(n for n, kind in features.items() if pt.is_large_list(kind) and pt.is_integer(kind.value_type)),
    )
    if not columns.dense and not columns.sparse:
        raise ValueError(f"no column that can be a feature beside the label {found!r}: {', '.join(schema)}")
    return columns


def _is_number(kind: Any) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind))


def prepare(rows: cedar.Pipeline, columns: Columns) -> cedar.Pipeline:
    """Rows with a label, without gaps, with short lists."""
    expressions = {columns.label: col(columns.label).cast(float)}
    expressions |= {name: col(name).fill_null(0.0).clip(lower_bound=0.0).log1p() for name in columns.dense}
    expressions |= {name: col(name).fill_null(-1) for name in columns.ids}
    expressions |= {name: col(name).fill_null("").hash() % BUCKETS for name in columns.words}
    expressions |= {name: col(name).fill_null([]).list.head(LONGEST) for name in columns.lists}
    return rows.filter(col(columns.label).is_not_null()).select(**expressions)


class ClickModel(nn.Module):
    """Embeddings of the ids and a projection of the dense features, side by side into an MLP."""

    def __init__(self, columns: Columns) -> None:
        super().__init__()
        self.columns = columns
        self.tables = nn.ModuleDict(
            {f"table_{name}": nn.EmbeddingBag(BUCKETS, WIDTH, mode="mean", sparse=True) for name in columns.sparse}
        )
        for table in self.tables.values():
            nn.init.normal_(table.weight, std=0.05)  # type: ignore[arg-type]
        inputs = len(columns.dense) + WIDTH * len(columns.sparse)
        self.head = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch: Batch) -> Tensor:
        parts = [batch[name].float().unsqueeze(1) for name in self.columns.dense]
        for name in self.columns.sparse:
            column, table = batch[name], self.tables[f"table_{name}"]
            if isinstance(column, cedar.JaggedTensor):  # values and offsets: what an EmbeddingBag eats
                parts.append(table(column.values.remainder(BUCKETS), column.offsets[:-1]))
            else:
                parts.append(table(column.long().remainder(BUCKETS).unsqueeze(1)))
        return self.head(torch.cat(parts, dim=1)).squeeze(1)  # type: ignore[no-any-return]


class Training:
    """The model, its optimizer, and how many rows they have seen."""

    def __init__(self, columns: Columns) -> None:
        torch.manual_seed(0)
        torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]  # said, or torch warns
        self.label = columns.label
        self.model = ClickModel(columns)
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=0.05)
        self.rows = 0

    def epoch(self, loader: cedar.Loader, stop_after: int | None = None) -> None:
        """One epoch, or what is left of it; ``stop_after`` breaks off after so many batches."""
        loss_of = nn.BCEWithLogitsLoss()
        for step, batch in enumerate(loader, start=1):
            labels = batch[self.label].float()
            if labels.min() < 0 or labels.max() > 1:
                raise ValueError(f"the label {self.label!r} must hold 0 and 1; {labels.max().item():g} was found")
            loss = loss_of(self.model(batch), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.rows += len(labels)
            if step % 20 == 0:
                print(f"  {self.rows:>9,} rows   loss {loss.item():.4f}")
            if step == stop_after:
                break

    def save(self, folder: Path, loader: cedar.Loader) -> int:
        """Write a checkpoint; returns the bytes of the loader's part of it."""
        text = json.dumps(loader.state_dict())
        (folder / "loader.json").write_text(text)
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "rows": self.rows}
        torch.save(parts, folder / "training.pt")
        return len(text)

    def load(self, folder: Path, loader: cedar.Loader) -> None:
        loader.load_state_dict(json.loads((folder / "loader.json").read_text()))
        parts = torch.load(folder / "training.pt", weights_only=True)
        self.model.load_state_dict(parts["model"])
        self.optimizer.load_state_dict(parts["optimizer"])
        self.rows = parts["rows"]


@torch.no_grad()
def evaluate(training: Training, loader: cedar.Loader) -> float:
    """AUC of the model on the loader's rows."""
    scores, labels = [], []
    for batch in loader:
        scores.append(training.model(batch).numpy())
        labels.append(batch[training.label].numpy())
    return auc(np.concatenate(scores), np.concatenate(labels) > 0)


def auc(scores: npt.NDArray[np.floating[Any]], positive: npt.NDArray[np.bool_]) -> float:
    """The chance that a positive row scores above a negative one, ties counting half; from the ranks of the scores."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # equal scores share the mean of their ranks
    wins, losses = int(positive.sum()), int((~positive).sum())
    if not wins or not losses:
        return float("nan")
    return float((ranks[positive].sum() - wins * (wins + 1) / 2) / (wins * losses))


def click_log(folder: Path, rows: int) -> str:
    """Write the synthetic click log anew; returns the pattern of its files."""
    if folder.exists():
        shutil.rmtree(folder)
    started = time.perf_counter()
    files = write_clicks(folder, rows=rows, seed=0)
    took = time.perf_counter() - started
    size = sum(file.stat().st_size for file in folder.glob("*.parquet")) / 1e6
    print(f"wrote {rows:,} rows in {len(files)} files, {size:.0f} MB, to {folder} in {took:.1f} s")
    return f"{folder}/*.parquet"


def read(pattern: str) -> tuple[cedar.Pipeline, cedar.Pipeline]:
    """The rows to train on, and the last tenth of the rows, held out."""
    rows = cedar.read_parquet(pattern)
    total = len(rows.loader())  # from the footers
    if total < 20:
        raise ValueError(f"{pattern} holds {total} rows; a tenth is held out, so at least 20 are needed")
    return rows.take(total - total // 10), rows.skip(total - total // 10)


def run(pattern: str, label: str | None, folder: Path) -> None:
    """The whole story: look, train, stop, resume, judge."""
    training_rows, held_out = read(pattern)
    columns = choose_columns(training_rows.schema, label)
    rows = len(training_rows.loader())
    size = min(BATCH, max(1, rows // 20))
    pipeline = prepare(training_rows, columns).shuffle(seed=1).batch(size)
    print(f"\n== the pipeline\n{pipeline.explain()}")

    training = Training(columns)
    half = rows // size // 2
    with pipeline.loader(format="torch") as loader:
        print(f"\n== train for half an epoch: {half} batches of {size:,} rows")
        started = time.perf_counter()
        training.epoch(loader, stop_after=half)
        seconds = time.perf_counter() - started
        state = training.save(folder, loader)
        waited = loader.report().stall * loader.report().seconds
    print(f"stopped; the loader's part of the checkpoint is {state:,} bytes of JSON in {folder}")

    print("\n== resume from the checkpoint: a new model, a new loader")
    training = Training(columns)
    with pipeline.loader(format="torch") as loader:
        training.load(folder, loader)
        started = time.perf_counter()
        training.epoch(loader)
        seconds += time.perf_counter() - started
        waited += loader.report().stall * loader.report().seconds

        print(loader.report())

    print("\n== the result")
    print(f"rows seen        {training.rows:,} of {rows:,}; batches that would be short are dropped")
    print(f"rows/s           {training.rows / seconds:,.0f}")
    print(f"trainer waited   {waited / seconds:.1%} of the time for data")
    with prepare(held_out, columns).batch(size, last="keep").loader(format="torch") as loader:
        print(f"AUC              {evaluate(training, loader):.4f} on rows held out")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", metavar="GLOB", help="Parquet files to use instead of the synthetic click log")
    parser.add_argument("--label", metavar="COLUMN", help=f"the column to predict (default: {', '.join(LABELS)})")
    parser.add_argument("--rows", type=int, default=500_000, help="rows of the synthetic click log")
    parser.add_argument("--folder", type=Path, default=Path("build/demo"), help="where to write")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    try:
        pattern = arguments.data or click_log(arguments.folder / "clicks", arguments.rows)
        run(pattern, arguments.label, arguments.folder)
    except (cedar.CedarError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
