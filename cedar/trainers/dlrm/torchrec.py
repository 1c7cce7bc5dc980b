"""torchrec support: its collections can hold cedar's tables, and ``DedupEmbeddings`` can replace its collections.

Install torchrec without its requirements (``pip install --no-deps torchrec``), with the fbgemm version that fits torch.
It is imported on first use.
"""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

import cedar
from cedar.core.errors import CedarError
from cedar.trainers.dlrm.options import FeatureOptions
from cedar.trainers.dlrm.tables import Bags, PlainTables, Table, TableParameters, joined

if TYPE_CHECKING:
    from cedar.trainers.dlrm.embeddings import DedupEmbeddings


def module(name: str) -> Any:
    """Import a module of torchrec."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(f"torchrec.{name}")
    except Exception as error:  # a library built for another torch fails in many ways
        raise CedarError(
            f"torchrec cannot be used: {error}",
            fix="pip install --no-deps torchrec, the modules that it reports as missing, and the matching fbgemm",
        ) from error


class TorchrecTables(PlainTables):
    """Tables of one width in torchrec's collections, as parameters for any optimizer; float32 or float16.

    Tables whose ids are all looked up one by one are in an ``EmbeddingCollection``, the others in an
    ``EmbeddingBagCollection``. A lookup calls each collection once. ``features``: the features that use the tables.
    """

    def __init__(
        self, tables: Sequence[Table], width: int, features: Sequence[FeatureOptions], *, dtype: torch.dtype,
        seed: int, device: torch.device | None, held: TableParameters,
    ) -> None:  # fmt: skip
        if dtype not in (torch.float32, torch.float16):
            raise CedarError(
                f"torchrec has no tables of {str(dtype).removeprefix('torch.')}", fix="give float32, or another backend"
            )
        super().__init__(tables, width, dtype=dtype, seed=seed, device=device, held=held)
        configs, modules = module("modules.embedding_configs"), module("modules.embedding_modules")
        kind = configs.DataType.FP32 if dtype == torch.float32 else configs.DataType.FP16
        of = {table.name: [f for f in features if f.home == (table.of or table.name)] for table in tables}
        self.weighted = any(feature.weights for of_table in of.values() for feature in of_table)
        single = {name for name, of_table in of.items() if all(feature.single for feature in of_table)}

        def named(config: Any, wanted: Sequence[Table]) -> list[Any]:
            return [
                config(
                    name=table.name.replace(".", "/"), num_embeddings=table.rows, embedding_dim=width, data_type=kind,
                    feature_names=[f"{table.name} {at}" for at in range(len(of[table.name]))],
                )
                for table in wanted
            ]  # fmt: skip

        lists = named(configs.EmbeddingConfig, [table for table in tables if table.name in single])
        pooled = named(configs.EmbeddingBagConfig, [table for table in tables if table.name not in single])
        self.keys = [[key for config in made for key in config.feature_names] for made in (lists, pooled)]
        self.lists = modules.EmbeddingCollection(lists, device=device)
        self.bags = modules.EmbeddingBagCollection(pooled, is_weighted=self.weighted, device=device)

    def lookup(self, bags: Sequence[Bags]) -> list[torch.Tensor]:
        for name, embedding in (*self.lists.embeddings.items(), *self.bags.embedding_bags.items()):
            embedding.weight = self.held[name]
        count: Counter[str] = Counter()
        asked: dict[str, Bags] = {}
        for one in bags:
            asked[f"{one.table} {count[one.table]}"] = one
            count[one.table] += 1
        by_key: dict[str, torch.Tensor] = {}
        if any(key in asked for key in self.keys[0]):
            by_key |= {key: rows.values() for key, rows in self.lists(self._features(self.keys[0], asked)).items()}
        if any(key in asked for key in self.keys[1]):
            by_key |= self.bags(self._features(self.keys[1], asked)).to_dict()
        return [by_key[key][: len(one)] for key, one in asked.items()]

    def _features(self, keys: Sequence[str], asked: Mapping[str, Bags]) -> Any:
        """Convert bags to a KeyedJaggedTensor, which needs as many bags for each feature: append empty ones."""
        like = next(iter(asked.values())).ids
        none = Bags("", like[:0], torch.zeros(1, dtype=torch.int64, device=like.device))
        each = [asked.get(key, none) for key in keys]
        most = max(map(len, each))
        lengths = torch.cat([functional.pad(one.offsets.diff(), (0, most - len(one))) for one in each])
        ids, _, weights, _ = joined(each, [0] * len(each), torch.float32)
        if self.weighted and weights is None:
            weights = torch.ones(len(ids), device=ids.device)
        return module("sparse.jagged_tensor").KeyedJaggedTensor(list(keys), ids, weights, lengths)


class DedupBagCollection(nn.Module):
    """``DedupEmbeddings`` for torchrec models that expect an ``EmbeddingBagCollection``.

    Such a model passes its sparse input to the collection unchanged: either a cedar batch, whose groups are looked up
    once, or a ``KeyedJaggedTensor`` with the same number of rows for each key.

    Args:
        embeddings: the embeddings, whose features become the collection's features.

    Raises:
        CedarError: torchrec cannot be used.
    """

    def __init__(self, embeddings: DedupEmbeddings) -> None:
        super().__init__()
        self.embeddings = embeddings
        self._of = module("sparse.jagged_tensor").KeyedTensor
        config, pooling = (
            getattr(module("modules.embedding_configs"), n) for n in ("EmbeddingBagConfig", "PoolingType")
        )
        self._configs = [
            config(
                name=feature.column, num_embeddings=feature.rows, embedding_dim=embeddings.widths[feature.home],
                feature_names=[feature.column], pooling=pooling[feature.pooling.upper()],
            )
            for feature in embeddings.features
        ]  # fmt: skip

    def embedding_bag_configs(self) -> list[Any]:
        """Return one config per feature, in order."""
        return self._configs

    def is_weighted(self) -> bool:
        """Return whether any feature has weights."""
        return any(feature.weights for feature in self.embeddings.features)

    def forward(self, batch: Any) -> Any:
        """Return a ``torchrec.KeyedTensor`` of ``[rows, sum of widths]``.

        Raises:
            CedarError: see ``DedupEmbeddings.forward``.
        """
        if not isinstance(batch, Mapping) and hasattr(batch, "to_dict"):
            given = batch.to_dict().items()
            batch = {key: cedar.JaggedTensor(column.values(), column.offsets().long()) for key, column in given}
        keys = {feature.column: self.embeddings.widths[feature.home] for feature in self.embeddings.features}
        return self._of(list(keys), list(keys.values()), self.embeddings(batch).flatten(1))
