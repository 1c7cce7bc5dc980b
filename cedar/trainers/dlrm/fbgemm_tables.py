"""Embedding tables by fbgemm: its table-batched embeddings, which update rows in the backward pass."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from cedar.trainers.dlrm import fbgemm
from cedar.trainers.dlrm.tables import Bags, Table, initial, joined

RULES = {"rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD", "sgd": "EXACT_SGD"}


class FbgemmTables:
    """Tables of one width, float32; see ``TorchTables``. Each step looks up once.

    To fbgemm they are one table, and all bags are those of one feature: so features may have any numbers of bags,
    without its variable batches, whose preparation costs more than the lookups on a CPU.

    Args:
        tables: with names of their own; at least one.
        width: numbers in a row, a multiple of 4.
        rule: ``rowwise_adagrad`` or ``sgd``: on the CPU it has no others that suit.
        eps: added to roots.
        seed: of the first weights.
        device: where all is.

    Raises:
        CedarError: fbgemm is not installed, or was built for another torch.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        width: int,
        *,
        rule: str = "rowwise_adagrad",
        eps: float = 1e-8,
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self.tables, self.width, self.rule = tuple(tables), width, rule
        self.starts, total = {}, 0
        for table in tables:
            self.starts[table.name] = total
            total += table.rows
        library = fbgemm.module()
        gpu = device is not None and device.type == "cuda"
        place = library.EmbeddingLocation.DEVICE if gpu else library.EmbeddingLocation.HOST
        compute = library.ComputeDevice.CUDA if gpu else library.ComputeDevice.CPU
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._engine = library.SplitTableBatchedEmbeddingBagsCodegen(
                [(total, width, place, compute)], optimizer=getattr(library.OptimType, RULES[rule]), learning_rate=0.0,
                eps=eps, pooling_mode=library.PoolingMode.SUM, device=device,
            )  # fmt: skip
        for table in tables:
            self.state()[f"{table.name}.weight"].copy_(initial(table, width, seed))

    def begin(self, rate: float, step: int) -> None:
        self._engine.set_learning_rate(rate)

    def lookup(self, bags: Sequence[Bags]) -> list[torch.Tensor]:
        if not bags:
            return []
        ids, offsets, weights, counts = joined(bags, [self.starts[b.table] for b in bags], torch.float32)
        return list(torch.split(self._engine(ids, offsets, per_sample_weights=weights), counts))

    def update(self) -> None:
        """Nothing is left to do: the backward pass did it."""

    def state(self) -> dict[str, torch.Tensor]:
        kinds = {"weight": self._engine.split_embedding_weights()[0]}
        if self.rule == "rowwise_adagrad":
            kinds["sum"] = self._engine.split_optimizer_states()[0][0]
        return {
            f"{table.name}.{kind}": values[self.starts[table.name] : self.starts[table.name] + table.rows]
            for table in self.tables
            for kind, values in kinds.items()
        }
