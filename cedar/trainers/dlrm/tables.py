"""Embedding tables in torch, all in one block of memory. A lookup reads all tables; an update touches a batch's rows.

The full gradient of a table is never allocated. A batch's ids are sorted; a row's gradient is the sum of the gradients
of the bags that contain it, computed as an embedding bag over those gradients. Rounding to float16 is stochastic but
reproducible: its random bits depend only on seed, step, table, row and column, through the finalizer of SplitMix64
(Steele et al., 2014).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from cedar.core.errors import CedarError
from cedar.trainers.dlrm.options import Rule

_GOLDEN = -7046029254386353131  # 2**64 / golden ratio, odd, as a signed number


def table_key(seed: int, step: int, table: str) -> int:
    """Return a hash of seed, step and table, from -2**63 to 2**63 - 1.

    Examples:
        >>> table_key(0, 1, "items") == table_key(0, 1, "items") != table_key(0, 2, "items")
        True
    """
    digest = hashlib.blake2b(f"{seed} {step} {table}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def uniform(keys: torch.Tensor, width: int) -> torch.Tensor:
    """Return float32 ``[rows, width]`` in [0, 1), with 24 random bits each. ``keys``: int64 ``[rows]``, the
    ``row_keys`` of the rows.
    """
    columns = torch.arange(1, width + 1, device=keys.device) * _GOLDEN
    bits = _mix(keys[:, None] + columns)
    return ((bits >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def row_keys(table_keys: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return int64 ``[n]``: a key for each row, from its table's key and its row number."""
    return _mix(table_keys ^ _mix(rows * _GOLDEN))


def to_half(values: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """Round float32 values up or down to float16 at random, so that the mean over ``chance`` in [0, 1) is the value.
    ``chance``: float32 of the same shape. Values beyond the largest float16 become infinite, as with ``.half()``.

    Examples:
        >>> one = torch.tensor([1.0 + 2**-12])  # a quarter of the way from 1 to the next float16
        >>> to_half(one, torch.tensor([0.2])).item() > 1, to_half(one, torch.tensor([0.3])).item() == 1
        (True, True)
    """
    near = values.half()
    back = near.float()
    gap = values - back
    bits = near.view(torch.int16)
    # The next float16 toward the value: one bit step, upward if the value is farther from zero.
    away = (gap > 0) == (back >= 0)
    crossing = (back == 0) & (gap != 0)  # from zero: the smallest float16 with the sign of the value
    least = torch.where(gap > 0, 1, -32767).to(torch.int16)
    other = torch.where(crossing, least, torch.where(away, bits + 1, bits - 1).to(torch.int16)).view(torch.float16)
    share = (gap / (other.float() - back)).nan_to_num(0.0, 0.0, 0.0)
    return torch.where(chance < share, other, near)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


BETAS = (0.9, 0.999)
BLOCK = 4096  # number of rows updated at a time
_HUGE_PAGE_BYTES = 16 << 20  # from this many bytes on, memory uses huge pages
_ROWS_PER_DRAW = 1 << 16  # number of rows whose initial weights are drawn at a time


@dataclass(frozen=True)
class Table:
    """An embedding table, or a piece of one."""

    name: str
    rows: int
    of: str = ""  # for a piece: the name of the whole table; empty: not a piece
    start: tuple[int, int] = (0, 0)  # the piece's first row and column in the whole
    whole: tuple[int, int] = (0, 0)  # rows and columns of the whole


@dataclass(frozen=True, eq=False)
class Bags:
    """Lists of ids (bags) to look up in one table; each list is summed."""

    table: str
    ids: torch.Tensor  # int64 ``[n]``, each less than the table's rows
    offsets: torch.Tensor  # int64 ``[bags + 1]``, from 0 to n
    weights: torch.Tensor | None = None  # ``[n]``, factor of each row; None for 1

    def __len__(self) -> int:
        return len(self.offsets) - 1


class TableParameters(nn.Module):
    """Named parameters, whose names may contain dots, that FSDP must not shard.

    Args:
        fused: whether the enclosing module saves the tables' state, under other names.
        alone: whether there is a single rank, so that FSDP may shard parameters that are not fused.
    """

    def __init__(self, *, fused: bool = True, alone: bool = True) -> None:
        super().__init__()
        self.fused, self.whole = fused, fused or not alone

    def __getitem__(self, name: str) -> nn.Parameter:
        value: Any = self._parameters[name.replace(".", "/")]
        return value  # type: ignore[no-any-return]

    def __setitem__(self, name: str, value: nn.Parameter) -> None:
        self._parameters[name.replace(".", "/")] = value

    def items(self) -> Any:
        """Return names and parameters."""
        return self._parameters.items()

    def __setattr__(self, name: str, value: Any) -> None:
        self._check(value)
        super().__setattr__(name, value)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        self._check(param)
        super().register_parameter(name, param)

    def _check(self, value: object) -> None:
        if isinstance(value, torch.Tensor) and type(value).__module__.startswith("torch.distributed") and self.whole:
            raise sharding_error("fully_shard, or distribute_module")

    def _save_to_state_dict(self, *how: Any) -> None:
        if not self.fused:
            super()._save_to_state_dict(*how)

    def _load_from_state_dict(self, *how: Any) -> None:
        if not self.fused:
            super()._load_from_state_dict(*how)


def sharding_error(what: str) -> CedarError:
    """Return the error for a wrapper that would shard tables that are already sharded or that fused rules update."""
    return CedarError(
        f"{what} would shard the tables of DedupEmbeddings, which are sharded already",
        done="nothing was trained",
        fix="rebuild the model, and fully_shard(model, ignored_params=set(embeddings.parameters())), or wrap the "
        "other parts of the model",
    )


class Tables:
    """Interface of all table implementations. The weights are parameters in ``held``, which the enclosing module
    registers. Every lookup gets the parameters from ``held``, because other code may replace them.
    """

    tables: tuple[Table, ...]
    held: TableParameters

    def begin(self, rate: float, step: int) -> None:
        """Prepare the forward pass of the ``step``-th step, counted from 1."""

    def lookup(self, bags: Sequence[Bags]) -> list[torch.Tensor]:
        """Return the sums, ``[bags, width]`` for each of ``bags``."""
        raise NotImplementedError

    def unscale(self, factor: float) -> bool:
        """Multiply the pending gradients by ``factor``, and return whether they are finite."""
        return True

    def update(self) -> None:
        """Apply the pending gradients after the backward pass."""

    def clear(self) -> None:
        """Discard the pending gradients."""

    def check(self, dtype: torch.dtype) -> None:
        """Raise if the tables do not support this dtype."""

    def moved(self, device: torch.device) -> None:
        """Move the remaining state after the weights in ``held`` have changed device or dtype."""

    def state(self) -> dict[str, torch.Tensor]:
        """Return weights and optimizer state, named ``table.kind``. Writing to these tensors changes the tables."""
        raise NotImplementedError


def initial(table: Table, width: int, seed: int, into: torch.Tensor | None = None) -> torch.Tensor:
    """Return initial weights ``[rows, width]``, uniform within 1 / sqrt(rows); they do not depend on sharding.
    ``into``: tensor to write them to; None: a new float32 tensor.
    """
    values = torch.empty(table.rows, width) if into is None else into
    digest = hashlib.blake2b(f"{seed} {table.of or table.name}".encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    (rows, columns), (row, column) = table.whole if table.of else (table.rows, width), table.start
    most = rows**-0.5
    for first in range(0, row + table.rows, _ROWS_PER_DRAW):  # keeps values independent of sharding
        drawn = torch.empty(min(_ROWS_PER_DRAW, rows - first), columns).uniform_(-most, most, generator=generator)
        low, high = max(first, row), min(first + len(drawn), row + table.rows)
        if low < high:
            values[low - row : high - row] = drawn[low - first : high - first, column : column + width]
    return values


class PlainTables(Tables):
    """Tables of one width as ordinary parameters, with gradients by autograd; see ``TorchTables``."""

    def __init__(
        self, tables: Sequence[Table], width: int, *, dtype: torch.dtype, seed: int, device: torch.device | None,
        held: TableParameters,
    ) -> None:  # fmt: skip
        self.tables, self.held = tuple(tables), held
        for table in tables:
            value = initial(table, width, seed).to(device=device, dtype=dtype)
            held[table.name] = nn.Parameter(value)

    def lookup(self, bags: Sequence[Bags]) -> list[torch.Tensor]:
        sums = []
        for one in bags:
            table = self.held[one.table]
            given = None if one.weights is None else one.weights.to(table.dtype)
            sums.append(
                functional.embedding_bag(
                    one.ids, table, one.offsets, mode="sum", include_last_offset=True, per_sample_weights=given
                )
            )
        return sums

    def state(self) -> dict[str, torch.Tensor]:
        return {f"{table.name}.weight": self.held[table.name].detach() for table in self.tables}


class TorchTables(Tables):
    """Tables of one width in one block of memory, which is a single parameter; trained if it requires a gradient.

    Args:
        tables: the tables, with unique names.
        rule: the fused optimizer. ``rowwise_adagrad``: one sum of mean squares per row, as in fbgemm; ``adam``: updates
            only touched rows, like torch's SparseAdam.
        dtype: dtype of the weights: float64, float32, or float16 with stochastic rounding. Optimizer state is at least
            float32.
        seed: seed of the initial weights and of rounding.
        held: registers the block as a parameter; None: a new ``TableParameters``.
    """

    kind = "rows"

    def __init__(
        self, tables: Sequence[Table], width: int, *, rule: Rule = "rowwise_adagrad", eps: float = 1e-8,
        dtype: torch.dtype = torch.float32, seed: int = 0, device: torch.device | None = None,
        held: TableParameters | None = None,
    ) -> None:  # fmt: skip
        self.check(dtype)
        self.tables, self.width, self.rule, self.eps, self.seed = tuple(tables), width, rule, eps, seed
        self.rate, self.step, self.device = 0.0, 0, device
        starts = [0]
        for table in tables:
            starts.append(starts[-1] + table.rows)
        self.starts = {table.name: start for table, start in zip(tables, starts, strict=False)}
        self._ends = torch.tensor(starts[1:], device=device)
        weight = self._zeros((starts[-1], width), dtype)
        for table in tables:
            initial(table, width, seed, self._of(weight, table))
        self.held, self._key = TableParameters() if held is None else held, f"{self.kind} of {width}"
        self._keep(weight)
        self.wide = wide = torch.promote_types(dtype, torch.float32)
        shapes: dict[str, tuple[int, ...]] = {"rowwise_adagrad": (starts[-1],), "sgd": (), "adam": (starts[-1], width)}
        names = {"rowwise_adagrad": ("sum",), "sgd": (), "adam": ("first", "second")}[rule]
        self.moments = {name: self._zeros(shapes[rule], wide) for name in names}
        self._pending: list[tuple[Bags, torch.Tensor]] = []

    def _keep(self, weight: torch.Tensor) -> None:
        self.held[self._key] = nn.Parameter(weight)

    @property
    def weight(self) -> torch.Tensor:
        """All rows, ``[rows, width]``."""
        return self.held[self._key]

    def begin(self, rate: float, step: int) -> None:
        self.rate, self.step = rate, step

    def lookup(self, bags: Sequence[Bags]) -> list[torch.Tensor]:
        if not bags:
            return []
        ids, offsets, weights, counts = joined(bags, [self.starts[b.table] for b in bags], self.weight.dtype)
        sums: torch.Tensor = _Lookup.apply(self.held[self._key], self, ids, offsets, weights)  # type: ignore[no-untyped-call]
        return list(torch.split(sums, counts))

    @torch.no_grad()
    def update(self) -> None:
        for ids, offsets, weights, gradient in merged(self._pending):
            for rows, summed in row_gradients(ids, offsets, weights, gradient):
                self._apply(rows, summed)
        self.clear()

    def unscale(self, factor: float) -> bool:
        self._pending = [(bags, gradient * factor) for bags, gradient in self._pending]
        return all(bool(torch.isfinite(gradient).all()) for _, gradient in self._pending)

    def clear(self) -> None:
        self._pending.clear()

    def check(self, dtype: torch.dtype) -> None:
        if dtype not in (torch.float64, torch.float32, torch.float16):
            raise CedarError(
                f"fused rules update tables of float64, float32 and float16, not {str(dtype).removeprefix('torch.')}",
                fix="use torch.autocast and keep the tables' dtype, or set rule=None",
            )

    def moved(self, device: torch.device) -> None:
        self.device, self._ends = device, self._ends.to(device)
        self.wide = torch.promote_types(self.weight.dtype, torch.float32)
        self.moments = {name: value.to(device, self.wide) for name, value in self.moments.items()}

    def _apply(self, rows: torch.Tensor, gradient: torch.Tensor) -> None:
        """Apply one optimizer step to distinct rows; may overwrite ``gradient``."""
        if self.rule == "rowwise_adagrad":
            total = self._read("sum", rows) + torch.linalg.vecdot(gradient, gradient) / self.width
            self._write("sum", rows, total)
            change = gradient.mul_((-self.rate / (total.sqrt_() + self.eps))[:, None])
        elif self.rule == "sgd":
            change = gradient.mul_(-self.rate)
        else:
            (one, two), n = BETAS, self.step
            first = self._read("first", rows).lerp_(gradient, 1 - one)
            second = self._read("second", rows).mul_(two).addcmul_(gradient, gradient, value=1 - two)
            self._write("first", rows, first)
            self._write("second", rows, second)
            size = self.rate * (1 - two**n) ** 0.5 / (1 - one**n)
            change = first.div_(second.sqrt_().add_(self.eps)).mul_(-size)
        if self.weight.dtype == torch.float16:
            new = self._read("weight", rows).to(change.dtype).add_(change)
            self._write("weight", rows, self._rounded(new, rows))
        else:
            self._add(rows, change)

    # ---- storage of rows ---------------------------------------------------------------------------------------------

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return zeros(shape, dtype, self.device)

    def _all(self, kind: str) -> torch.Tensor:
        return self.weight.detach() if kind == "weight" else self.moments[kind]

    def _read(self, kind: str, rows: torch.Tensor) -> torch.Tensor:
        """Return the values of some rows; the caller may overwrite them."""
        return self._all(kind).index_select(0, rows)

    def _write(self, kind: str, rows: torch.Tensor, values: torch.Tensor) -> None:
        self._all(kind).index_copy_(0, rows, values)

    def _add(self, rows: torch.Tensor, change: torch.Tensor) -> None:
        self.weight.detach().index_add_(0, rows, change)

    def _compact(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return indices and a block of rows, such that ``block[indices]`` are the rows of ``ids``."""
        return ids, self.weight

    def _own(self, rows: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Return row numbers within their tables, whose first rows are ``starts``."""
        return rows - starts

    def _rounded(self, values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        which = torch.searchsorted(self._ends, rows, right=True)
        names = [table.of or table.name for table in self.tables]
        keys = torch.tensor([table_key(self.seed, self.step, name) for name in names], device=rows.device)
        firsts = [self.starts[table.name] - table.start[0] for table in self.tables]
        starts = torch.tensor(firsts, device=rows.device)
        return to_half(values, uniform(row_keys(keys[which], self._own(rows, starts[which])), self.width))

    def _of(self, values: torch.Tensor, table: Table) -> torch.Tensor:
        return values[self.starts[table.name] : self.starts[table.name] + table.rows]

    def state(self) -> dict[str, torch.Tensor]:
        kinds = {"weight": self.weight.detach(), **self.moments}
        return {
            f"{table.name}.{kind}": self._of(values, table) for table in self.tables for kind, values in kinds.items()
        }


def copy_error(what: str) -> CedarError:
    """Return the error for tables that cannot be deep-copied."""
    return CedarError(
        f"{what} cannot be copied by copy.deepcopy or weight averaging", done="nothing was copied",
        fix="create a DedupEmbeddings without them, and load the state_dict of this one",
    )  # fmt: skip


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None) -> torch.Tensor:
    """Return zeros. Large CPU tensors use huge pages if available, because rows are read at random, and a page-table
    lookup takes as long as the read itself.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < _HUGE_PAGE_BYTES or (device is not None and device.type != "cpu") or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # the kernel was built without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def joined(
    bags: Sequence[Bags], starts: Sequence[int], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, list[int]]:
    """Concatenate bags of several features: ids shifted by ``starts``, offsets, weights, and bag counts."""
    ids = torch.cat([b.ids + start if start else b.ids for b, start in zip(bags, starts, strict=True)])
    ends, parts = 0, [bags[0].offsets[:1]]
    for b in bags:
        parts.append(b.offsets[1:] + ends if ends else b.offsets[1:])
        ends += len(b.ids)
    weights = None
    if any(b.weights is not None for b in bags):
        given = [torch.ones(len(b.ids), device=ids.device) if b.weights is None else b.weights for b in bags]
        weights = torch.cat([weight.to(dtype) for weight in given])
    return ids, torch.cat(parts), weights, [len(b) for b in bags]


def row_gradients(
    ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None, gradient: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield blocks of (distinct ascending rows, their summed gradients). Blocks are small enough for the CPU cache.

    Args:
        ids: int64 ``[n]``.
        offsets: int64 ``[bags + 1]``.
        weights: ``[n]``, or None.
        gradient: gradients of the bags' sums, ``[bags, width]``.

    Examples:
        >>> (found,) = row_gradients(
        ...     torch.tensor([3, 1, 3]), torch.tensor([0, 2, 3]), None, torch.tensor([[1.0], [10.0]])
        ... )
        >>> found[0].tolist(), found[1].flatten().tolist()
        ([1, 3], [1.0, 11.0])
    """
    sorted_ids, order = torch.sort(ids, stable=True)
    bag = torch.repeat_interleave(offsets.diff(), output_size=len(ids))[order]
    given = None if weights is None else weights[order].to(gradient.dtype)
    rows, counts = torch.unique_consecutive(sorted_ids, return_counts=True)
    ends = functional.pad(counts.cumsum(0), (1, 0))
    gradient = gradient.contiguous()
    marks = [*ends[:-1:BLOCK].tolist(), len(ids)]
    for at, (start, stop) in enumerate(pairwise(marks)):
        block = slice(at * BLOCK, at * BLOCK + BLOCK)
        summed = functional.embedding_bag(
            bag[start:stop], gradient, ends[block.start : block.stop + 1] - start, mode="sum",
            include_last_offset=True, per_sample_weights=None if given is None else given[start:stop],
        )  # fmt: skip
        yield rows[block], summed


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _learns: torch.Tensor, tables: TorchTables, ids: Any, offsets: Any, weights: Any) -> Any:
        ctx.tables, ctx.bags = tables, Bags("", ids, offsets, weights)
        sums = functional.embedding_bag(
            *tables._compact(ids), offsets, mode="sum", include_last_offset=True, per_sample_weights=weights
        )
        return sums.float() if sums.dtype == torch.float16 else sums

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None, None, None, None]:
        ctx.tables._pending.append((ctx.bags, grads[0]))
        return None, None, None, None, None


def merged(pending: list[tuple[Bags, torch.Tensor]]) -> list[Any]:
    """Merge the pending gradients of several lookups, so that a row in several lookups is updated only once."""
    if not pending:
        return []
    bags, gradients = zip(*pending, strict=True)
    ids, offsets, weights, _ = joined(bags, [0] * len(bags), gradients[0].dtype)
    return [(ids, offsets, weights, torch.cat(gradients))]
