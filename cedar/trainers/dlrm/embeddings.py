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
from cedar.trainers.dlrm.inputs import Feature, Inputs, read_batch
from cedar.trainers.dlrm.options import FeatureOptions, Planner, Rule
from cedar.trainers.dlrm.sharding import Place, ShardedTables, Sharding, by_width, place, place_exactly, planned
from cedar.trainers.dlrm.tables import Bags, PlainTables, Table, Tables, TorchTables
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
            ranks; ``auto``: a table that costs more than a rank's share, or fits on none, is cut by rows.
        costs: of a step, by table; None: their values.
        planner: of whole tables on several ranks: ``greedy``, or ``milp``: the best there is, by OR-tools.
        memory: bytes that a rank may hold; 0 for no limit.
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
        planner: Planner = "greedy", memory: int = 0, mean: bool = True, seed: int = 0,
        device: torch.device | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.features, self.width, self.group = tuple(features), width, group or Group()
        self.rule, self.rate, self.dtype, self.device = rule, rate, dtype, device
        self.steps, self._begun = 0, False
        rows = {feature.home: feature.rows for feature in features}
        self.widths = widths_of(features, width)
        ranks, known = self.group.size, costs or {name: count * self.widths[name] for name, count in rows.items()}
        sizes = {name: count * bytes_of_row(self.widths[name], rule, dtype) for name, count in rows.items()}
        how = planned(rows, known, sizes, sharding, ranks, memory)
        if rule == "rowwise_adagrad" and (odd := [name for name, one in how.items() if one == "columns" and ranks > 1]):
            raise CedarError(
                f"rowwise_adagrad keeps a number for each row of {odd[0]!r}, and its columns lie on several ranks",
                fix="cut by rows, or take the rule sgd or adam",
            )
        pieces = {name: _cut(name, count, self.widths[name], how[name], ranks) for name, count in rows.items()}
        whole = [name for name in rows if len(pieces[name]) == 1]
        cut = sum(-(-size // len(pieces[name])) for name, size in sizes.items() if name not in whole)  # of each rank
        if memory and cut > memory:
            raise CedarError(
                f"pieces of tables take {cut:,} of {memory:,} bytes on each of {ranks} ranks",
                done="nothing was allocated", fix="use more ranks, a larger tables.memory, or fewer rows",
            )  # fmt: skip
        told = {n: known[n] for n in whole}, {n: sizes[n] for n in whole}, ranks, memory and memory - cut
        best = planner == "milp" and ranks > 1
        owners = self.group.tell(place_exactly(*told))[0] if best else place(*told)  # a stopped solver may end anyhow
        self.places = {
            name: [Place(piece, columns, owners.get(name, at)) for at, (piece, columns) in enumerate(found)]
            for name, found in pieces.items()
        }
        self.notes: list[str] = []
        self.stores = {
            columns: self._store([one.table for one in self._mine if one.width == columns], columns, backend, eps, seed)
            for columns in sorted({one.width for one in self._mine})
        } or {width: TorchTables((), width, dtype=dtype, device=device)}
        plain = [store for store in self.stores.values() if isinstance(store, PlainTables)]
        self.tables = nn.ParameterDict({name: value for store in plain for name, value in store.weights.items()})
        wide = torch.promote_types(dtype, torch.float32)
        scale = 1 / ranks if mean else 1.0
        self.sharded = None
        if ranks > 1:
            self.sharded = ShardedTables(self.stores, self.places, features, self.group, wide, device, scale)

    @property
    def _mine(self) -> list[Place]:
        """The pieces of this rank."""
        return [one for held in self.places.values() for one in held if one.rank == self.group.rank]

    def _store(self, tables: Sequence[Table], width: int, backend: str, eps: float, seed: int) -> Tables:
        if backend == "torchrec" and tables:
            from cedar.trainers.dlrm.torchrec import TorchrecTables

            if self.rule is not None:
                raise CedarError(
                    "torchrec's collections are parameters, and have no fused rule",
                    fix="give rule=None and an optimizer",
                )
            self.notes.append("tables: torchrec, as asked")
            return TorchrecTables(tables, width, self.features, dtype=self.dtype, seed=seed, device=self.device)
        if self.rule is None:
            return PlainTables(tables, width, dtype=self.dtype, seed=seed, device=self.device)
        if self._by_fbgemm(backend, width) and tables:
            return FbgemmTables(tables, width, rule=self.rule, eps=eps, seed=seed, device=self.device)
        return TorchTables(tables, width, rule=self.rule, eps=eps, dtype=self.dtype, seed=seed, device=self.device)

    def _by_fbgemm(self, backend: str, width: int) -> bool:
        """Whether fbgemm keeps the tables; asked for, it must load, and what it cannot do is torch's."""
        if backend == "torch":
            self.notes.append("tables: torch, as asked")
            return False
        if backend == "fbgemm":
            fbgemm.module()
        why = fbgemm.found()[1]
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
            self.begin(self.rate, self.steps + 1)
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
        """Before the first lookup of a step; a training forward calls it by itself."""
        self._begun = True
        for store in self.stores.values():
            store.begin(rate, step)

    def step(self) -> None:
        """After the backward pass: the fused optimizer's step, where there is one; all ranks call it."""
        for store in self.stores.values():
            store.update()
        self.steps, self._begun = self.steps + 1, False

    # ---- state -------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        """Weights and fused optimizer state of this rank as ``table.kind``; what is written there is in the tables."""
        return {name: value for store in self.stores.values() for name, value in store.state().items()}

    def saved(self) -> dict[str, Part]:
        """The same as parts of whole tables, as checkpoints take them: any number of ranks can load them."""
        found, state = {}, self.state()
        for one in self._mine:
            piece = one.table
            name, whole = (piece.of, piece.whole) if piece.of else (piece.name, (piece.rows, one.width))
            for key in [key for key in state if key.rpartition(".")[0] == piece.name]:
                value = state[key]
                part = Part(value, whole[: value.dim()], piece.start[: value.dim()])
                found[f"{name}.{key.rpartition('.')[2]}"] = part
        return found

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


def widths_of(features: Sequence[FeatureOptions], width: int) -> dict[str, int]:
    """Of each table, by its name: what a feature says, or ``width``.

    Raises:
        CedarError: features of one table say several.
    """
    found: dict[str, int] = {}
    for feature in features:
        own = feature.width or width
        if found.setdefault(feature.home, own) != own:
            raise CedarError(
                f"table {feature.home!r} has widths {found[feature.home]} and {own}",
                fix="give all features of a table one width",
            )
    return found


def bytes_of_row(width: int, rule: Rule | None, dtype: torch.dtype) -> int:
    """Of a row of a table and its optimizer's state."""
    numbers = {"rowwise_adagrad": 1, "sgd": 0, "adam": 2 * width, None: 0}[rule]
    return width * dtype.itemsize + numbers * max(4, dtype.itemsize)


def _cut(name: str, rows: int, width: int, how: Sharding, ranks: int) -> list[tuple[Table, int]]:
    """The pieces of a table, and how wide each is."""
    count = min(ranks, rows if how == "rows" else width) if how in ("rows", "columns") else 1
    if count == 1:
        return [(Table(name, rows), width)]
    found = []
    for at in range(count):
        size = rows if how == "rows" else width
        start, stop = size * at // count, size * (at + 1) // count
        part, first, columns = (stop - start, (start, 0), width) if how == "rows" else (rows, (0, start), stop - start)
        found.append((Table(f"{name}[{how} {start}:{stop}]", part, name, first, (rows, width)), columns))
    return found


def summed(
    inputs: Inputs, features: Sequence[FeatureOptions], lookup: Callable[[Sequence[Bags]], list[torch.Tensor]]
) -> list[torch.Tensor]:
    """What tables give for each feature of a batch: the sum of each list, of a sequence all rows."""
    found = lookup([_looked_up(f, o) for f, o in zip(inputs.features, features, strict=True)])
    return [
        rows if feature.windows is None else pool(rows, feature.windows)
        for feature, rows in zip(inputs.features, found, strict=True)
    ]


def _looked_up(feature: Feature, option: FeatureOptions) -> Bags:
    """A sequence's ids are looked up one by one."""
    bags = feature.bags
    if not option.sequence:
        return bags
    return Bags(bags.table, bags.ids, torch.arange(len(bags.ids) + 1, device=bags.ids.device))
