"""The model: bottom MLP, embedding bags and sequences, interaction, top MLP."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from cedar.trainers.dlrm.expand import side_by_side
from cedar.trainers.dlrm.inputs import Feature, Inputs
from cedar.trainers.dlrm.interaction import Cross, Dot, mlp
from cedar.trainers.dlrm.options import FeatureOptions, ModelOptions
from cedar.trainers.dlrm.sequence import SequencePooling
from cedar.trainers.dlrm.unique import check_repeatable

Lookup = Callable[[Inputs], list[torch.Tensor]]


class Model(nn.Module):
    """A DLRM. What it computes does not depend on which features are deduplicated, up to rounding.

    Args:
        options: of the model.
        features: in the order in which inputs hold them.
        dense: how many dense features there are.
        lookup: sums rows of tables, see ``DedupEmbeddings.rows``.
    """

    def __init__(self, options: ModelOptions, features: Sequence[FeatureOptions], dense: int, lookup: Lookup) -> None:
        super().__init__()
        self.options, self.features, self.lookup = options, tuple(features), lookup
        width = options.width
        self.bottom = mlp([dense, *options.bottom, width], end=True) if dense else None
        heads = {"attention": 0, "transformer": options.heads}
        self.pooling = nn.ModuleDict(
            {
                f"at {at}": SequencePooling(width, heads[feature.pooling], options.dropout)
                for at, feature in enumerate(features)
                if feature.sequence
            }
        )
        n = len(features) + bool(dense)
        self.interaction: Dot | Cross = (
            Dot(n, width, first=bool(dense) or n == 1)
            if options.interaction == "dot"
            else Cross(n, width, options.cross, options.rank)
        )
        self.top = mlp([self.interaction.size, *options.top, 1], end=False)

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Logits, ``[rows]``.

        Raises:
            CedarError: dropout on deduplicated features, see ``check_repeatable``.
        """
        found = self.lookup(inputs)
        parts = [self._pooled(at, f, rows) for at, (f, rows) in enumerate(zip(inputs.features, found, strict=True))]
        by = [feature.by for feature in inputs.features]
        if self.bottom is not None:
            parts, by = [self.bottom(inputs.dense), *parts], [None, *by]
        rows = side_by_side([part.to(parts[0].dtype) for part in parts], by)
        logits: torch.Tensor = self.top(self.interaction(rows))[:, 0]
        return logits

    def _pooled(self, at: int, feature: Feature, rows: torch.Tensor) -> torch.Tensor:
        option = self.features[at]
        if option.pooling == "sum":
            return rows
        if option.pooling == "mean":
            return rows / feature.lengths.clamp(min=1)[:, None].to(rows.dtype)
        module = self.pooling[f"at {at}"]
        if feature.by is not None and self.training:
            check_repeatable(module, anyway=self.options.repeat_dropout)
        pooled: torch.Tensor = module(rows, feature.bags.offsets)
        return pooled
