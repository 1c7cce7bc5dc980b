"""``DedupEmbeddings``: embedding tables for any model. They look up repeated rows of a batch only once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import torch
from torch import nn

from cedar.core.errors import CedarError
from cedar.trainers.common.config import check_choice
from cedar.trainers.common.group import Group
from cedar.trainers.common.tensors import Part
from cedar.trainers.dlrm import fbgemm
from cedar.trainers.dlrm.fbgemm import RULES, FbgemmTables
from cedar.trainers.dlrm.hot import Frequency
from cedar.trainers.dlrm.inputs import Feature, Inputs, read_batch
from cedar.trainers.dlrm.options import FeatureOptions, Planner, Rule, Sharding
from cedar.trainers.dlrm.replicas import Replicas
from cedar.trainers.dlrm.sharding import GRADIENTS, ShardedTables, by_width
from cedar.trainers.dlrm.spread import ShardingRequest, Spread, widths_of
from cedar.trainers.dlrm.tables import Bags, PlainTables, TableParameters, Tables, TorchTables
from cedar.trainers.dlrm.tiers import TieredTables
from cedar.trainers.dlrm.torchrec import TorchrecTables
from cedar.trainers.dlrm.unique import expand, pool, side_by_side
from cedar.trainers.dlrm.wrappers import watch


class DedupEmbeddings(nn.Module):
    """Embeds features of batches with or without deduplicated groups: ``[rows, features, width]``, or ``[rows, sum of
    widths]`` if the tables' widths differ.

    The tables are sharded over the ranks of a group. Deduplicated rows are looked up and sent once, and then expanded.
    ``state_dict`` has this rank's tables, with optimizer state if the optimizer is fused. Tables are parameters, so
    DistributedDataParallel, ``to``, copies, weight averages and torch.compile work. Tables with a fused rule never have
    a ``grad``: do not pass them to ``torch.optim.Adagrad``, which would allocate state for them.

    Args:
        features: the columns with their tables and pooling, ``sum`` or ``mean``; for other poolings see ``rows``.
        width: embedding width of tables whose features do not set a width.
        group: the ranks; None for all of torch.distributed, or this process as a single rank.
        rule: the fused optimizer, with which ``step`` updates rows without allocating gradients of tables. None means
            that tables are ordinary parameters for any torch optimizer.
        rate: the learning rate of the fused optimizer.
        eps: number added to square roots by the fused optimizer.
        dtype: dtype of the tables.
        backend: for fused tables ``torch``, ``fbgemm``, or ``auto``, which uses fbgemm if it loads and supports the
            settings. Without a rule: ``torch``, or ``torchrec`` for torchrec's collections.
        sharding: the sharding of all tables, or a dict by table. ``tables``: each table is on one rank. ``rows``,
            ``columns``: split over all ranks. ``hot``: split by rows, but frequent rows of tables that only sequences
            use are on every rank if ranks then send less. ``auto``: ``hot`` for tables that cost more than a rank's
            share or do not fit on a rank, else ``tables``.
        costs: cost of a training step, by table; None means the number of values.
        frequencies: row frequencies by table, for ``hot`` and ``fast``. Without them, low ids count as more frequent.
        planner: how to assign unsplit tables to ranks: ``greedy``, or ``milp`` for the optimum, which OR-tools finds.
        memory: maximum bytes of tables on a rank; 0 for no limit.
        fast: bytes of table data in memory or on the device, for the most frequent rows; other rows are in a file. 0
            keeps all rows in memory. Results are bitwise the same. Needs a fused rule and the backend ``torch``.
        slow: folder for the file.
        slow_cost: cost of a row in the file relative to a row in memory, for the assignment of tables to ranks.
        mean: whether to divide gradients of tables by the number of ranks, as DistributedDataParallel does, for losses
            that are means over a rank's rows.
        seed: seed of the initial weights, which do not depend on the sharding.
        device: device of the tables.

    ``waiting`` is True after a backward pass until ``step`` applies the fused gradients. ``left_behind`` is True if a
    torch optimizer made a step in that time.

    Raises:
        CedarError: tables do not fit, fbgemm or torchrec cannot be used, or ``rowwise_adagrad`` is split by columns.
        ValueError: ``rule``, ``backend``, ``planner`` or ``sharding`` is unknown.

    Examples:
        >>> made = DedupEmbeddings([FeatureOptions("item", 9), FeatureOptions("shop", 4)], 8, rule=None)
        >>> made({"item": torch.tensor([3, 8, 3]), "shop": torch.tensor([0, 1, 1])}).shape
        torch.Size([3, 2, 8])
    """

    def __init__(  # noqa: PLR0913 - most are keyword-only
        self, features: Sequence[FeatureOptions], width: int, group: Group | None = None, *,
        rule: Rule | None = "rowwise_adagrad", rate: float = 0.05, eps: float = 1e-8,
        dtype: torch.dtype = torch.float32, backend: str = "torch",
        sharding: Sharding | Mapping[str, Sharding] = "tables", costs: Mapping[str, float] | None = None,
        frequencies: Mapping[str, Frequency] | None = None, planner: Planner = "greedy", memory: int = 0, fast: int = 0,
        slow: str = ".", slow_cost: float = 10.0, mean: bool = True, seed: int = 0, device: torch.device | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_choice("rule", rule, (*get_args(Rule), None))
        check_choice("backend", backend, ("auto", "torch", "fbgemm", "torchrec"))
        check_choice("planner", planner, get_args(Planner))
        for one in (sharding,) if isinstance(sharding, str) else sharding.values():
            check_choice("sharding", one, get_args(Sharding))
        self.features, self.width, self.group = tuple(features), width, group or Group()
        self.rule, self.rate, self.dtype, self.device = rule, rate, dtype, device
        self.steps, self._saw_float16 = 0, False
        self.waiting, self.left_behind = False, False
        self.widths = widths_of(features, width)
        if backend == "torchrec" and rule is not None:
            raise CedarError("torchrec's collections do not support fused rules", fix="give rule=None and an optimizer")
        if fast and (rule is None or backend in ("fbgemm", "torchrec")):
            raise CedarError("fast= needs a fused rule and backend='torch'", fix="give a rule, and backend='torch'")
        wanted = ShardingRequest(sharding, costs, frequencies, planner, memory, fast, slow_cost)
        self.plan = plan = Spread(features, self.widths, rule, dtype, self.group, wanted)
        self.places, self.notes, self._own_pieces = plan.places, list(plan.notes), plan.pieces_of(self.group.rank)
        ranks = self.group.size
        self.tables = TableParameters(fused=rule is not None, alone=ranks == 1)
        how: Any = {"dtype": dtype, "seed": seed, "device": device}
        fused: Any = how | {"rule": rule, "eps": eps}
        every = sorted({one.width for made in plan.places.values() for one in made})  # all ranks compute the same list
        self._fbgemm = {each for each in every if rule and not fast and self._uses_fbgemm(backend, each)}
        self.stores: dict[int, Tables] = {}
        for columns in sorted({one.width for one in self._own_pieces}):
            tables = [one.table for one in self._own_pieces if one.width == columns]
            if plan.near is not None:
                self.stores[columns] = TieredTables(tables, columns, plan.near, slow, **fused, held=self.tables)
            elif columns in self._fbgemm:
                self.stores[columns] = FbgemmTables(
                    tables, columns, rule=str(rule), eps=eps, seed=seed, device=device, held=self.tables
                )
            elif rule is not None:
                self.stores[columns] = TorchTables(tables, columns, **fused, held=self.tables)
            elif backend == "torchrec":
                self.notes.append("tables: torchrec, as asked")
                self.stores[columns] = TorchrecTables(tables, columns, features, **how, held=self.tables)
            else:
                self.stores[columns] = PlainTables(tables, columns, **how, held=self.tables)
        scale = 1 / ranks if mean else 1.0
        self.replicas = {}
        for columns in sorted({self.widths[name] for name in plan.shared}):
            ids = {name: rows for name, rows in plan.shared.items() if self.widths[name] == columns}
            self.replicas[columns] = Replicas(
                ids, columns, self.places, self.stores.get(columns), self.group, scale, **fused, held=self.tables
            )
        self.sharded = None
        if ranks > 1:
            self.sharded = ShardedTables(
                self.stores, self.places, features, self.group, self._result_dtype(), device, scale, self.replicas
            )
        watch(self)

    def _uses_fbgemm(self, backend: str, width: int) -> bool:
        """Return whether to use fbgemm for tables of this width. Raise if it is requested but cannot be loaded."""
        if backend == "torch":
            self.notes.append("tables: torch, as asked")
            return False
        if backend == "fbgemm":
            fbgemm.module()
        why = fbgemm.module_or_reason()[1]
        if why is None and self.rule not in RULES:
            why = f"fbgemm has no {self.rule} on the CPU"
        if why is None and self.dtype != torch.float32:
            half = " with reproducible rounding" if self.dtype == torch.float16 else ""
            why = f"fbgemm has no tables of {str(self.dtype).removeprefix('torch.')}{half}"
        if why is None and width % 4:
            why = f"fbgemm needs a width that is a multiple of 4, not {width}"
        self.notes.append("tables: fbgemm" if why is None else f"tables: torch ({why})")
        return why is None

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def lookup(self, bags: Sequence[Bags]) -> list[torch.Tensor]:
        """Return the sums, ``[bags, width]`` for each of ``bags``, which must be in the order of features."""
        again = torch._C._current_graph_task_id() != -1  # whether activation checkpointing recomputes the lookup
        learns = self.rule is not None and self.training and torch.is_grad_enabled()
        if learns and not again:
            self._check_taken()
        if learns:
            kind = self.device.type if self.device else "cpu"
            self._saw_float16 |= torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16
            self._begin()
        if self.sharded is None:
            found = by_width(self.stores, [self.widths[one.table] for one in bags], bags)
        elif again:
            raise CedarError(
                "DedupEmbeddings was called in a backward pass, where not all ranks would repeat the lookup",
                done="nothing was updated", fix="move it out of the torch.utils.checkpoint region",
            )  # fmt: skip
        else:
            found = self.sharded.lookup(bags)
        for rows in found if learns else ():
            if rows.requires_grad:
                rows.register_hook(self._gradient_arrived)  # type: ignore[no-untyped-call]
        return found

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def rows(self, batch: Mapping[str, Any] | Inputs) -> list[torch.Tensor]:
        """Return the input of custom poolings, per feature: the sum of each list, ``[lists, width]``; for a sequence
        (``pooling="attention"``) the rows of all ids, concatenated, ``[ids, width]``.

        For features in a deduplicated group, the lists are those of unique rows. ``batch[column].inverse_lookup`` maps
        each row to its unique row, and ``batch[column][column].offsets`` has the starts of the lists.

        Examples:
            >>> from cedar import JaggedTensor
            >>> seen = JaggedTensor(torch.tensor([4, 2, 4]), torch.tensor([0, 2, 3]))
            >>> embeddings = DedupEmbeddings([FeatureOptions("seen", 9, pooling="attention")], 8)
            >>> embeddings.rows({"seen": seen})[0].shape
            torch.Size([3, 8])
        """
        return summed(self._read(batch), self.features, self.lookup)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def forward(self, batch: Mapping[str, Any] | Inputs) -> torch.Tensor:
        """Return the embeddings of a batch from a loader with ``format="torch"``.

        Raises:
            CedarError: an id is not in its table, a list is longer than ``longest``, a feature is a sequence, or an
                optimizer made a step since the last backward pass but ``step`` was not called.
        """
        if odd := [feature.column for feature in self.features if feature.sequence]:
            raise CedarError(
                f"{odd[0]!r} is a sequence, which rows() looks up", fix="call rows(), or set pooling to sum or mean"
            )
        inputs = self._read(batch)
        parts = [
            rows / feature.lengths.clamp(min=1)[:, None].to(rows.dtype) if option.pooling == "mean" else rows
            for option, feature, rows in zip(self.features, inputs.features, self.rows(inputs), strict=True)
        ]
        by = [feature.by for feature in inputs.features]
        if len(set(self.widths.values())) == 1:
            return side_by_side(parts, by)
        return torch.cat([part if one is None else expand(part, one) for part, one in zip(parts, by, strict=True)], 1)

    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Run the fused optimizer, if any, after the backward passes of a step. All ranks must call this method.

        Args:
            scaler: the GradScaler that scaled the loss; call ``step`` before ``scaler.update()``. ``step`` divides the
                gradients by the scale. If they are not finite on some rank, all ranks skip the update.

        Raises:
            CedarError: float16 autocast was used without a scaler, fbgemm has already updated the rows with scaled
                gradients, or another module uses a fused table as its weight.
        """
        if self._saw_float16 and scaler is None:
            raise CedarError(
                "rows were looked up under float16 autocast, but step() got no GradScaler",
                done="nothing was updated",
                fix="call embeddings.step(scaler) before scaler.update(), or step(torch.amp.GradScaler(enabled=False))",
            )
        if self.rule is not None and any(parameter.grad is not None for parameter in self.tables.parameters()):
            raise CedarError(
                "a table with a fused rule has a gradient: another module uses its weights",
                done="nothing was updated", fix="set rule=None if weights are tied",
            )  # fmt: skip
        with torch.autocast(self.device.type if self.device else "cpu", enabled=False):
            if self.rule is None or scaler is None or self._unscaled(scaler):
                self._begin()
                for store in self._each():
                    store.update()
                self.steps += 1
        self._forget()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard pending gradients, including those of a fused rule, to skip a step on all ranks.

        ``zero_grad`` of an enclosing model or of an optimizer does not discard fused gradients. fbgemm updates rows in
        the backward pass, which cannot be undone.
        """
        super().zero_grad(set_to_none)
        self._forget()

    def _read(self, batch: Mapping[str, Any] | Inputs) -> Inputs:
        return batch if isinstance(batch, Inputs) else read_batch(batch, self.features, [], None, device=self.device)

    def _gradient_arrived(self, _gradient: torch.Tensor) -> None:
        self.waiting = True

    def _check_taken(self) -> None:
        if not self.waiting or not (self._fbgemm or self.left_behind):
            return
        why = "an optimizer has made a step" if self.left_behind else "fbgemm has updated the rows"
        raise CedarError(
            f"{why} since the last backward pass, and embeddings.step() was not called", done="nothing was looked up",
            fix="call embeddings.step() after each optimizer.step(); to accumulate gradients over backward "
            "passes call neither in between, and set backend='torch'; to skip a step call embeddings.zero_grad()",
        )  # fmt: skip

    def _unscaled(self, scaler: torch.amp.GradScaler) -> bool:
        """Divide the gradients by the scaler's scale, and return whether they are finite on all ranks."""
        if self._fbgemm and scaler.is_enabled():
            raise CedarError(
                "fbgemm has updated the rows in the backward pass with scaled gradients",
                done="the rows of the table are wrong now", fix="load the last checkpoint, and set backend='torch'",
            )  # fmt: skip
        finite = all(store.unscale(1 / scaler.get_scale()) for store in self._each())
        return not float(self.group.add(torch.tensor([float(not finite)], device=self.device), GRADIENTS))

    def _each(self) -> tuple[Tables, ...]:
        return (*self.stores.values(), *self.replicas.values())

    def _begin(self) -> None:
        for store in self._each():
            store.begin(self.rate, self.steps + 1)

    def _forget(self) -> None:
        self.waiting, self.left_behind, self._saw_float16 = False, False, False
        for store in self._each():
            store.clear()

    def _result_dtype(self) -> torch.dtype:
        """Return the dtype of lookup results."""
        return self.dtype if self.rule is None else torch.promote_types(self.dtype, torch.float32)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> DedupEmbeddings:
        """Convert or move the tables. ``to``, ``cuda``, ``half`` and similar methods call this."""
        like = fn(torch.zeros(0, dtype=self.dtype, device=self.device))
        for store in self._each():
            store.check(like.dtype)
        self.state()  # writes cached and replicated rows back to the file or the table pieces
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.dtype, self.device = like.dtype, like.device
        for store in self._each():
            store.moved(like.device)
        if self.sharded is not None:
            self.sharded.moved(self._result_dtype(), like.device)
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        watch(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> DedupEmbeddings:
        """Copy the tables without pending gradients, as torch copies parameters without their gradients."""
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__dict__, memo))
        made._forget()
        return made

    # ---- state -------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        """Return this rank's weights and fused optimizer state, in row order, under names ``table.kind``. Changes to
        these tensors before the next lookup change the tables.
        """
        for store in self.replicas.values():
            store.keep()
        return {name: value for store in self.stores.values() for name, value in store.state().items()}

    def saved(self) -> dict[str, Part]:
        """Return ``state`` as parts of whole tables, for checkpoints that any number of ranks can load."""
        parts, state = {}, self.state()
        for one in self._own_pieces:
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
                errors.append(f"{name} is {list(state_dict[name].shape)}, but {list(value.shape)} in this model")
            else:
                value.copy_(state_dict.pop(name))
        self.steps = int(state_dict.pop(f"{prefix}steps", self.steps))
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)


def summed(
    inputs: Inputs, features: Sequence[FeatureOptions], lookup: Callable[[Sequence[Bags]], list[torch.Tensor]]
) -> list[torch.Tensor]:
    """Look up each feature of a batch: the sum of each list, or all rows of a sequence."""
    embeddings = lookup([_bags_to_look_up(f, o) for f, o in zip(inputs.features, features, strict=True)])
    return [
        rows if feature.windows is None else pool(rows, feature.windows)
        for feature, rows in zip(inputs.features, embeddings, strict=True)
    ]


def _bags_to_look_up(feature: Feature, option: FeatureOptions) -> Bags:
    """Return the bags to look up; each id of a sequence becomes its own bag."""
    bags = feature.bags
    if not option.sequence:
        return bags
    return Bags(bags.table, bags.ids, torch.arange(len(bags.ids) + 1, device=bags.ids.device))
