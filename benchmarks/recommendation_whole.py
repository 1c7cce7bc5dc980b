"""From files to weights: python -m benchmarks.recommendation_whole [--form]

A sequence model (four histories of about 50 behind a transformer layer and attention) is trained on the same rows:
by cedar on the clustered log, deduplicated; by torch's DataLoader on the log in order of time, which reads row groups
in two workers and does the same vectorised transforms, with torch's embeddings and with those of torchrec.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import cedar
from benchmarks.harness import (
    Figure,
    Form,
    Sample,
    add_form,
    at_least,
    finish,
    interleaved,
    ratios,
    reported,
    timed,
)
from cedar.datasets.clicklog import ClickLog, ListFeature, write_sessions
from cedar.operators import recsys
from cedar.recommendation import cluster, read_clustered
from cedar.trainers.dlrm.embeddings import summed
from cedar.trainers.dlrm.inputs import read_batch
from cedar.trainers.dlrm.model import Model
from cedar.trainers.dlrm.options import DataOptions, FeatureOptions, ModelOptions, Options, RunOptions, TableOptions
from cedar.trainers.dlrm.tables import Bags
from cedar.trainers.dlrm.trainer import Trainer

_LISTS, _ITEM, _DENSE = ("list0", "list1", "list2", "list3"), tuple(f"i{i}" for i in range(8)), 13
_BUCKETS, _WIDTH = 100_000, 64


def log() -> ClickLog:
    """Four histories that change together, eight ids of the item; S=16, d=0.95."""
    lists = tuple(ListFeature(name, 50, ids=1_000_000, group="user") for name in _LISTS)
    return ClickLog(lists=lists, scalars=0, item_scalars=len(_ITEM), dense=_DENSE, skew=0.0, minutes=55.0)


def files(folder: str, rows: int) -> tuple[str, str]:
    """(the log in order of time, the clustered log)."""
    write_sessions(f"{folder}/raw", rows, log=log(), rows_per_file=rows, row_group_rows=min(16_384, rows // 2))
    cluster(f"{folder}/raw", f"{folder}/clustered", session="session_id", sort="ts")
    return f"{folder}/raw", f"{folder}/clustered"


def hashes() -> dict[str, Any]:
    """The transform of each column of ids."""
    return {name: recsys.SigridHash(1, _BUCKETS) for name in (*_LISTS, *_ITEM)}


def options(batch: int) -> Options:
    features = [FeatureOptions(name, _BUCKETS, pooling="transformer") for name in _LISTS]
    return Options(
        DataOptions(dense=tuple(f"d{i}" for i in range(_DENSE)), batch=batch, session="session_id", dedup=(_LISTS,)),
        (*features, *(FeatureOptions(name, _BUCKETS) for name in _ITEM)),
        ModelOptions(width=_WIDTH, bottom=(512, 256), top=(512, 256)),
        TableOptions(rate=0.01),
        run=RunOptions(device="cpu"),
    )


# ---- cedar -----------------------------------------------------------------------------------------------------------


def by_cedar(path: str, chosen: Options) -> Callable[[], Sample]:
    """An epoch; the trainer is made once, as its tables are."""
    rows = read_clustered(path, session="session_id", sort="ts")
    for name, fn in hashes().items():
        rows = rows.map(fn, name)
    trainer = Trainer(chosen, rows=rows)
    steps = trainer.batches.epoch()

    def epoch() -> dict[str, Any]:
        records = [trainer.train_step() for _ in range(steps)]
        return {"rows": steps * chosen.data.batch, "waited": sum(r.waited for r in records), "loss": records[-1].loss}

    return lambda: timed(epoch)


# ---- the plain way ---------------------------------------------------------------------------------------------------


class Rows(IterableDataset[dict[str, Any]]):
    """Batches of tensors from a Parquet file: each worker takes every n-th row group."""

    def __init__(self, path: str, batch: int) -> None:
        (self.path,), self.batch, self.transforms = sorted(Path(path).glob("*.parquet")), batch, hashes()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        torch.set_num_threads(1)
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        names = [*self.transforms, *(f"d{i}" for i in range(_DENSE)), "label"]
        file = pq.ParquetFile(self.path)
        for group in range(first, file.num_row_groups, step):
            table = file.read_row_group(group, columns=names)
            for start in range(0, len(table) - self.batch + 1, self.batch):
                yield self.tensors(table.slice(start, self.batch).combine_chunks())

    def tensors(self, table: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in table.column_names:
            column = table[name].chunk(0)
            if name in self.transforms:
                lists = pa.types.is_list(column.type)
                column = self.transforms[name].columns(column.cast(pa.large_list(pa.int64())) if lists else column)
            if not pa.types.is_large_list(column.type):
                found[name] = torch.from_numpy(column.to_numpy(zero_copy_only=False).copy())
                continue
            offsets = column.offsets.to_numpy()
            values = column.values.to_numpy()[offsets[0] : offsets[-1]]
            found[name] = (torch.from_numpy(values.copy()), torch.from_numpy(offsets - offsets[0]))
        return found


class Lookup(Protocol):
    """Tables and their optimizer: what is compared in place of cedar's."""

    def __call__(self, bags: Sequence[Bags]) -> list[torch.Tensor]: ...

    def begin(self) -> None: ...

    def update(self) -> None: ...


class TorchLookup:
    """A table of sparse gradients for each feature, and SGD."""

    def __init__(self, features: Sequence[FeatureOptions]) -> None:
        torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]  # said, or torch warns
        self.single = [feature.sequence for feature in features]
        self.tables = [
            torch.nn.EmbeddingBag(f.rows, _WIDTH, mode="sum", sparse=True, include_last_offset=True) for f in features
        ]
        self.optimizer = torch.optim.SGD([table.weight for table in self.tables], lr=0.01)

    def __call__(self, bags: Sequence[Bags]) -> list[torch.Tensor]:
        """A sequence's bags hold an id each: they are looked up without sums."""
        return [
            functional.embedding(b.ids, table.weight, sparse=True) if single else table(b.ids, b.offsets)
            for b, table, single in zip(bags, self.tables, self.single, strict=True)
        ]

    def begin(self) -> None:
        self.optimizer.zero_grad()

    def update(self) -> None:
        self.optimizer.step()


class TorchrecLookup:
    """torchrec's fused collections, SGD in the backward pass: one for all that is summed, and, as its collection of
    sequences needs a GPU, one for each history, whose ids are bags of one.
    """

    def __init__(self, features: Sequence[FeatureOptions]) -> None:
        from torchrec.modules.embedding_configs import EmbeddingBagConfig
        from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        self.jagged, self.features = KeyedJaggedTensor, features
        single = [[f.column] for f in features if f.sequence]
        self.parts = [*single, [f.column for f in features if not f.sequence]]
        sizes = {f.column: f.rows for f in features}
        self.collections = [
            FusedEmbeddingBagCollection(
                [
                    EmbeddingBagConfig(name=n, embedding_dim=_WIDTH, num_embeddings=sizes[n], feature_names=[n])
                    for n in part
                ],
                torch.optim.SGD, {"lr": 0.01}, device=torch.device("cpu"),
            )
            for part in self.parts
        ]  # fmt: skip

    def __call__(self, bags: Sequence[Bags]) -> list[torch.Tensor]:
        by_name = {f.column: b for f, b in zip(self.features, bags, strict=True)}
        found: dict[str, torch.Tensor] = {}
        for part, collection in zip(self.parts, self.collections, strict=True):
            ids = torch.cat([by_name[name].ids for name in part])
            lengths = torch.cat([by_name[name].offsets.diff() for name in part])
            found |= collection(self.jagged(part, ids, lengths=lengths)).to_dict()
        return [found[f.column] for f in self.features]

    def begin(self) -> None:
        """The backward pass updates."""

    update = begin


def by_loader(path: str, chosen: Options, lookup: Lookup) -> Callable[[], Sample]:
    """An epoch of DataLoader and a plain loop: the same layers, on all rows."""
    torch.manual_seed(0)
    look_up = partial(summed, features=chosen.features, lookup=lookup)
    model = Model(chosen.model, chosen.features, _DENSE, look_up)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=chosen.optimizer.rate)
    batches: DataLoader[dict[str, Any]] = DataLoader(
        Rows(path, chosen.data.batch), batch_size=None, num_workers=2, persistent_workers=True,
        multiprocessing_context="spawn",  # pyarrow's and torch's threads do not live through a fork
    )  # fmt: skip
    dense = chosen.data.dense

    def epoch() -> dict[str, Any]:
        rows, loss = 0, torch.zeros(())
        for batch in batches:
            inputs = read_batch(_jagged(batch), chosen.features, dense, "label")
            lookup.begin()
            optimizer.zero_grad()
            assert inputs.labels is not None
            loss = functional.binary_cross_entropy_with_logits(model(inputs), inputs.labels)
            torch.autograd.backward(loss)
            lookup.update()
            optimizer.step()
            rows += len(inputs)
        return {"rows": rows, "loss": float(loss.detach())}

    return lambda: timed(epoch)


def _jagged(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: cedar.JaggedTensor(*value) if isinstance(value, list | tuple) else value for name, value in batch.items()
    }


# ---- figures ---------------------------------------------------------------------------------------------------------


def lookups() -> tuple[dict[str, Callable[[Sequence[FeatureOptions]], Lookup]], str]:
    """The plain ways there are, and why others are missing."""
    ways: dict[str, Callable[[Sequence[FeatureOptions]], Lookup]] = {"torch": TorchLookup}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torchrec.modules.fused_embedding_modules  # noqa: F401
    except Exception as error:  # noqa: BLE001 - a library that was not built for this torch fails in many ways
        return ways, f"torchrec cannot be imported: {error}"
    return ways | {"torchrec": TorchrecLookup}, ""


def figures(form: Form) -> list[Figure]:
    """Rows per second of an epoch in steady state, loading included."""
    batch, rows, rounds = form.pick((1024, 8192, 3), (256, 2048, 2), (32, 128, 1))  # a plain epoch takes half a minute
    chosen, (ways, why) = options(batch), lookups()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torchrec
        raw, clustered = files(folder, rows)
        runs = {"cedar": by_cedar(clustered, chosen)}
        runs |= {name: by_loader(raw, chosen, make(chosen.features)) for name, make in ways.items()}
        found = interleaved(runs, rounds)
    ours = found["cedar"]
    waited = float(np.median([s.result["waited"] / s.wall for s in ours]))
    every = [reported("files to weights, clustered and deduplicated", [s.rate for s in ours], "rows/s",
                      note=f"waited {waited:.0%} for data")]  # fmt: skip
    for name in ways:
        plain = found[name]
        cpu = np.median(ratios([s.cpu / s.result["rows"] for s in plain], [s.cpu / s.result["rows"] for s in ours]))
        speed = ratios([s.rate for s in ours], [s.rate for s in plain])
        note = f"{np.median([s.rate for s in plain]):,.0f} rows/s; CPU of this process {cpu:.2f}x"
        what = f"files to weights, sequence model, against DataLoader and {name}"
        every.append(at_least(what, 4.0, speed, "x", note=note))
    if why:
        every.append(reported("against torchrec: not run", [0.0], "x", note=why))
    return every


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/recommendation_whole.json; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_form(parser, "small batches, few rounds")
    chosen = parser.parse_args(arguments)
    found = figures(chosen.form)
    return finish("from files to weights", "recommendation_whole", found, chosen.form)


if __name__ == "__main__":
    sys.exit(main())
