"""``DedupEmbeddings``: embedding tables for any model, of batches whose repeated rows are looked up once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from cedar.core.errors import CedarError
from cedar.trainers.common.group import Group
from cedar.trainers.common.tensors import Part
from cedar.trainers.dlrm import fbgemm
from cedar.trainers.dlrm.fbgemm import RULES, FbgemmTables
from cedar.trainers.dlrm.hot import Frequency
from cedar.trainers.dlrm.inputs import Feature, Inputs, read_batch
from cedar.trainers.dlrm.options import FeatureOptions, Planner, Rule, Sharding
from cedar.trainers.dlrm.replicas import Replicas
from cedar.trainers.dlrm.sharding import ShardedTables, by_width
from cedar.trainers.dlrm.spread import ShardingRequest, Spread, widths_of
from cedar.trainers.dlrm.tables import Bags, PlainTables, Table, Tables, TorchTables
from cedar.trainers.dlrm.tiers import TieredTables
from cedar.trainers.dlrm.unique import expand, pool, side_by_side


class DedupEmbeddings(nn.Module):
    """Features' embeddings, ``[rows, features, width]``, from batches with and without deduplicated groups; of tables
    of several widths side by side, ``[rows, sum of widths]``.

    The tables are spread over the ranks of a group; what is deduplicated is looked up once, sent once and expanded
    last. ``state_dict`` holds the tables of this rank, and their optimizer's state where that is fused.

    Args:
        features: which columns, their tables, and how lists are pooled: ``sum`` or ``mean`` (``rows`` gives what other
            poolings of one's own need).
        width: of an embedding, where a feature does not say that of its table.
        group: the ranks; None for all of torch.distributed, or this process alone.
        rule: of the fused optimizer: rows are updated by ``step``, and gradients of tables are never made. None: tables
            are parameters, for any optimizer of torch.
        rate: the learning rate of the fused optimizer.
        eps: added to roots.
        dtype: of the tables.
        backend: of fused tables: ``torch``, ``fbgemm``, or ``auto``: that where it loads and does what is asked. Of
            parameters: ``torch``, or ``torchrec``: its collections.
        sharding: by table or for all: ``tables``, each whole on one rank; ``rows`` or ``columns``, each cut over all
            ranks; ``hot``: by rows, and the frequent rows of a table that only sequences look up on every rank, where
            less is sent so; ``auto``: ``hot`` for a table that costs more than a rank's share, or fits on none.
        costs: of a step, by table; None: their values.
        frequencies: of rows, by table, for ``hot`` and ``fast``; see ``frequencies``. Without: none is frequent, and
            low numbers come first.
        planner: of whole tables on several ranks: ``greedy``, or ``milp``: the best there is, by OR-tools.
        memory: bytes that a rank may hold; 0 for no limit.
        fast: bytes of them in memory, or on the device, where the rows that are looked up most are; the others are in a
            file. 0: all. What is computed is the same bit by bit. For fused rules, by torch.
        slow: the folder of that file.
        slow_cost: of a row there, in those in memory: tables are spread over ranks by it.
        mean: gradients of tables are divided by the number of ranks, as DistributedDataParallel does: for losses that
            are means over a rank's rows.
        seed: of the first weights: the same however tables are spread.
        device: where all is.

    Raises:
        CedarError: tables do not fit; fbgemm or torchrec is asked for, and cannot be used; ``rowwise_adagrad`` by
            columns.

    Example:
        >>> made = DedupEmbeddings([FeatureOptions("item", 9), FeatureOptions("shop", 4)], 8, rule=None)
        >>> made({"item": torch.tensor([3, 8, 3]), "shop": torch.tensor([0, 1, 1])}).shape
        torch.Size([3, 2, 8])
    """

    def __init__(  # noqa: PLR0913 - each has a name
        self, features: Sequence[FeatureOptions], width: int, group: Group | None = None, *,
        rule: Rule | None = "rowwise_adagrad", rate: float = 0.05, eps: float = 1e-8,
        dtype: torch.dtype = torch.float32, backend: str = "torch",
        sharding: Sharding | Mapping[str, Sharding] = "tables", costs: Mapping[str, float] | None = None,
        frequencies: Mapping[str, Frequency] | None = None, planner: Planner = "greedy", memory: int = 0, fast: int = 0,
        slow: str = ".", slow_cost: float = 10.0, mean: bool = True, seed: int = 0, device: torch.device | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.features, self.width, self.group = tuple(features), width, group or Group()
        self.rule, self.rate, self.dtype, self.device = rule, rate, dtype, device
        self.steps, self._begun = 0, False
        self.widths = widths_of(features, width)
        if fast and (rule is None or backend in ("fbgemm", "torchrec")):
            raise CedarError(
                "rows in a file are updated by torch's fused rules", fix="give a rule, and backend='torch'"
            )
        wanted = ShardingRequest(sharding, costs, frequencies, planner, memory, fast, slow_cost)
        self.plan = plan = Spread(features, self.widths, rule, dtype, self.group, wanted)
        self.places, self.notes, self._mine = plan.places, list(plan.notes), plan.pieces_of(self.group.rank)
        ranks = self.group.size
        how: Any = {"eps": eps, "dtype": dtype, "seed": seed, "device": device}
        self.stores: dict[int, Tables] = {}
        for columns in sorted({one.width for one in self._mine}):
            tables = [one.table for one in self._mine if one.width == columns]
            if plan.near is None:
                self.stores[columns] = self._store(tables, columns, backend, how)
            else:
                self.stores[columns] = TieredTables(tables, columns, plan.near, slow, rule=rule, **how)
        self.stores = self.stores or {width: TorchTables((), width, dtype=dtype, device=device)}
        plain = [store for store in self.stores.values() if isinstance(store, PlainTables)]
        self.tables = nn.ParameterDict({name: value for store in plain for name, value in store.weights.items()})
        wide = torch.promote_types(dtype, torch.float32)
        scale = 1 / ranks if mean else 1.0
        self.replicas = {}
        for columns in sorted({self.widths[name] for name in plan.shared}):
            ids = {name: rows for name, rows in plan.shared.items() if self.widths[name] == columns}
            self.replicas[columns] = Replicas(
                ids, columns, self.places, self.stores.get(columns), self.group, scale, rule=rule, **how
            )
        self.sharded = None
        if ranks > 1:
            self.sharded = ShardedTables(
                self.stores, self.places, features, self.group, wide, device, scale, self.replicas
            )

    def _store(self, tables: Sequence[Table], width: int, backend: str, how: Mapping[str, Any]) -> Tables:
        if backend == "torchrec" and tables:
            from cedar.trainers.dlrm.torchrec import TorchrecTables

            if self.rule is not None:
                raise CedarError(
                    "torchrec's collections are parameters, and have no fused rule",
                    fix="give rule=None and an optimizer",
                )
            self.notes.append("tables: torchrec, as asked")
            return TorchrecTables(tables, width, self.features, dtype=self.dtype, seed=how["seed"], device=self.device)
        if self.rule is None:
            return PlainTables(tables, width, dtype=self.dtype, seed=how["seed"], device=self.device)
        if self._by_fbgemm(backend, width) and tables:
            return FbgemmTables(tables, width, rule=self.rule, eps=how["eps"], seed=how["seed"], device=self.device)
        return TorchTables(tables, width, rule=self.rule, **how)

    def _by_fbgemm(self, backend: str, width: int) -> bool:
        """Whether fbgemm keeps the tables; asked for, it must load, and what it cannot do is torch's."""
        if backend == "torch":
            self.notes.append("tables: torch, as asked")
            return False
        if backend == "fbgemm":
            fbgemm.module()
        why = fbgemm.module_or_reason()[1]
        if why is None and self.rule not in RULES:
            why = f"fbgemm has no {self.rule} on the CPU"
        if why is None and self.dtype != torch.float32:
            half = " with rounding that can be repeated" if self.dtype == torch.float16 else ""
            why = f"fbgemm has no tables of {str(self.dtype).removeprefix('torch.')}{half}"
        if why is None and width % 4:
            why = f"fbgemm needs a width that is a multiple of 4, not {width}"
        self.notes.append("tables: fbgemm" if why is None else f"tables: torch ({why})")
        return why is None

    def lookup(self, bags: Sequence[Bags]) -> list[torch.Tensor]:
        """The sums, ``[bags, width]`` for each of ``bags``, which come in the order of features."""
        if self.training and not self._begun:
            self._begin(self.rate, self.steps + 1)
        if self.sharded is not None:
            return self.sharded.lookup(bags)
        return by_width(self.stores, [self.widths[one.table] for one in bags], bags)

    def rows(self, inputs: Inputs) -> list[torch.Tensor]:
        """For each feature the sum of each list, of unique rows where it is in a group; of a sequence all its rows."""
        return summed(inputs, self.features, self.lookup)

    def forward(self, batch: Mapping[str, Any] | Inputs) -> torch.Tensor:
        """Embeddings of a batch of a loader with ``format="torch"``.

        Raises:
            CedarError: an id is not in its table, a list is longer than promised; a feature is a sequence.
        """
        if odd := [feature.column for feature in self.features if feature.sequence]:
            raise CedarError(
                f"{odd[0]!r} is a sequence, which rows() looks up", fix="pool it, or set pooling to sum or mean"
            )
        inputs = batch
        if not isinstance(inputs, Inputs):
            inputs = read_batch(inputs, self.features, [], None, device=self.device)
        parts = [
            rows / feature.lengths.clamp(min=1)[:, None].to(rows.dtype) if option.pooling == "mean" else rows
            for option, feature, rows in zip(self.features, inputs.features, self.rows(inputs), strict=True)
        ]
        by = [feature.by for feature in inputs.features]
        if len(set(self.widths.values())) == 1:
            return side_by_side(parts, by)
        return torch.cat([part if one is None else expand(part, one) for part, one in zip(parts, by, strict=True)], 1)

    def begin(self, rate: float, step: int) -> None:
        """Before the first lookup of a step, which forgets gradients that no ``step`` has taken; without a call of it,
        a training forward begins one, and they stay.
        """
        self._clear()
        self._begin(rate, step)

    def step(self) -> None:
        """After the backward pass: the fused optimizer's step, where there is one; all ranks call it."""
        for store in self._each():
            store.update()
        self.steps, self._begun = self.steps + 1, False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients that no ``step`` has taken, those of a fused rule too: for a step that all ranks skip.

        That of a model around this one, or of an optimizer, does not reach them. With fbgemm the backward pass has
        updated the rows already, and nothing can be taken back.
        """
        super().zero_grad(set_to_none)
        self._clear()
        self._begun = False

    def _each(self) -> tuple[Tables, ...]:
        return (*self.stores.values(), *self.replicas.values())

    def _begin(self, rate: float, step: int) -> None:
        self._begun = True
        for store in self._each():
            store.begin(rate, step)

    def _clear(self) -> None:
        for store in self._each():
            store.clear()

    # ---- state -------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        """Weights and fused optimizer state of this rank as ``table.kind``, in the order of tables' rows; what is
        written there before the next lookup is in the tables.
        """
        for store in self.replicas.values():
            store.keep()
        return {name: value for store in self.stores.values() for name, value in store.state().items()}

    def saved(self) -> dict[str, Part]:
        """The same as parts of whole tables, as checkpoints take them: any number of ranks can load them."""
        parts, state = {}, self.state()
        for one in self._mine:
            piece = one.table
            name, whole = (piece.of, piece.whole) if piece.of else (piece.name, (piece.rows, one.width))
            for key in [key for key in state if key.rpartition(".")[0] == piece.name]:
                value = state[key]
                part = Part(value, whole[: value.dim()], piece.start[: value.dim()])
                parts[f"{name}.{key.rpartition('.')[2]}"] = part
        return parts

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.rule is not None:
            for name, value in self.state().items():
                destination[f"{prefix}{name}"] = value
            destination[f"{prefix}steps"] = torch.tensor(self.steps)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: list[str],
        unexpected: list[str], errors: Any,
    ) -> None:  # fmt: skip
        own = {f"{prefix}{name}": value for name, value in self.state().items()} if self.rule is not None else {}
        for name, value in own.items():
            if name not in state_dict:
                missing.append(name)
            elif state_dict[name].shape != value.shape:
                errors.append(f"{name} is {list(state_dict[name].shape)}, and {list(value.shape)} here")
            else:
                value.copy_(state_dict.pop(name))
        self.steps = int(state_dict.pop(f"{prefix}steps", self.steps))
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)


def summed(
    inputs: Inputs, features: Sequence[FeatureOptions], lookup: Callable[[Sequence[Bags]], list[torch.Tensor]]
) -> list[torch.Tensor]:
    """What tables give for each feature of a batch: the sum of each list, of a sequence all rows."""
    embeddings = lookup([_looked_up(f, o) for f, o in zip(inputs.features, features, strict=True)])
    return [
        rows if feature.windows is None else pool(rows, feature.windows)
        for feature, rows in zip(inputs.features, embeddings, strict=True)
    ]


def _looked_up(feature: Feature, option: FeatureOptions) -> Bags:
    """A sequence's ids are looked up one by one."""
    bags = feature.bags
    if not option.sequence:
        return bags
    return Bags(bags.table, bags.ids, torch.arange(len(bags.ids) + 1, device=bags.ids.device))
