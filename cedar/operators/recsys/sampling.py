"""Sampling: keep a random fraction of the rows or of the sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.columns import UNKNOWN, Column
from cedar.core.cursor import hash_array, mix64
from cedar.core.errors import PipelineError, invalid_call, missing_column
from cedar.core.groups import plain
from cedar.operators.base import BlockKernel, Bound, Effects, Env, Kernel, RowOperator, Schema
from cedar.operators.calls import pick
from cedar.operators.failures import ErrorContext
from cedar.operators.recsys.lists import as_int64, is_ids, values_of

_TWO_53 = float(1 << 53)


@dataclass(frozen=True)
class Sampling(RowOperator):
    """Keep each row with probability ``rate``: ``p.apply(Sampling(0.1))``.

    A row's draw depends only on seed, epoch and row key, so each epoch keeps different rows. With ``by``, all rows with
    the same value in that column, such as a session id, are kept or dropped together; values then repeat in the sample
    as often as in the log. Rows with true or a nonzero integer in the column ``keep`` are always kept, even if their
    session is dropped, for example to keep all clicks.

    Args:
        rate: probability of keeping a row or session, 0 .. 1.
        by: name of a column of integers or strings; null is a value like any other.
        keep: name of a column of booleans or integers; null counts as false.
        named: a name that seeds the draws instead of the operator's position in the pipeline.

    Raises:
        PipelineError: the rate is outside 0 .. 1, or a column has the wrong type.

    Examples:
        >>> import cedar
        >>> rows = cedar.from_items([{"x": i} for i in range(100)])
        >>> rows.apply(Sampling(1.0)).count(), rows.apply(Sampling(0.0)).count()
        (100, 0)
    """

    rate: float
    by: str | None = None
    keep: str | None = None
    named: str | None = None
    name: ClassVar[str] = "sampling"

    def __post_init__(self) -> None:
        if isinstance(self.rate, bool) or not isinstance(self.rate, int | float) or not 0 <= self.rate <= 1:
            raise invalid_call(f"Sampling({self.rate!r}): the rate must be between 0 and 1")

    def label(self) -> str:
        return f"sampling({self.rate:g}{f', by={self.by!r}' if self.by else ''})"

    def effects(self) -> Effects:
        reads = frozenset(name for name in (self.by, self.keep) if name is not None)
        return Effects(reads, frozenset(), random=True, rows="1:0..1")

    def parameters(self) -> dict[str, Any]:
        return {"rate": self.rate, "by": self.by, "keep": self.keep}

    def schema(self, *inputs: Schema) -> Schema:
        (known,) = inputs
        for name in (self.by, self.keep):
            if known is not None and name is not None and name not in known:
                raise missing_column(name, list(known), self.label(), None)
        for name, fits, wants in ((self.by, _is_hashable, "integers or strings"), (self.keep, _is_flag, "booleans")):
            kind = UNKNOWN if known is None or name is None else known[name]
            if kind is not UNKNOWN and not fits(kind):
                raise PipelineError(f"{self.label()}: column {name!r} of {kind}, not {wants}", fix="cast it first")
        return known

    def bind(self, bound: Bound) -> Kernel:
        if bound.batched:
            raise bound.refusal("it samples rows, not batches", fix="apply it before batch()")
        blame = ErrorContext.at(bound)
        return SampleRows(float(self.rate), self.by, self.keep, bound.draw, blame)


@dataclass(frozen=True)
class SampleRows(BlockKernel):
    """The function that samples the rows of a block for ``Sampling``."""

    rate: float
    by: str | None
    keep: str | None
    draw: int
    blame: ErrorContext
    row_wise: ClassVar[bool] = True

    def __call__(self, block: Block, env: Env) -> Block:
        mask = self._draw_rows(block, env) < self.rate
        if self.keep is not None:
            mask |= _flags(pick(block, self.keep, self.blame))
        return block.filter(mask)

    def _draw_rows(self, block: Block, env: Env) -> npt.NDArray[np.float64]:
        """Draw a number in [0, 1) for each row; a row is kept if its number is below ``rate``."""
        seed = env.draw_seed(self.draw)
        if self.by is None:
            hashes = block.live_keys().hash(seed)
        else:
            hashes = np.asarray(
                hash_array(mix64(seed), _stable_hashes(plain(pick(block, self.by, self.blame)))), dtype=np.uint64
            )
        return np.asarray((hashes >> np.uint64(11)).astype(np.float64) / _TWO_53, dtype=np.float64)

    def describe(self, block: Block, env: Env) -> list[dict[str, Any]]:
        return [{"drawn": number} for number in self._draw_rows(block, env).tolist()]


def _is_hashable(kind: Any) -> bool:
    return is_ids(kind) or kind in (pa.large_string(), pa.large_binary())


def _is_flag(kind: Any) -> bool:
    return kind == pa.bool_() or is_ids(kind)


def _flags(column: Column) -> npt.NDArray[np.bool_]:
    filled = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    return filled.to_numpy(zero_copy_only=False).astype(bool)  # type: ignore[no-any-return]


def _stable_hashes(column: Column) -> npt.NDArray[np.int64]:
    """Return an int64 hash for each value, which is the same in every block and on every machine."""
    if is_ids(column.type):
        hashes = as_int64(values_of(column))
    else:
        encoded = column.dictionary_encode()
        level_hashes = np.array(
            [_stable_hash(value) for value in encoded.dictionary.to_pylist()] or [0], dtype=np.int64
        )
        hashes = level_hashes[encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    if column.null_count:
        hashes = np.where(column.is_null().to_numpy(zero_copy_only=False), np.int64(-(1 << 63)), hashes)
    return hashes


def _stable_hash(value: str | bytes) -> int:
    from hashlib import blake2b

    data = value.encode() if isinstance(value, str) else value
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)
