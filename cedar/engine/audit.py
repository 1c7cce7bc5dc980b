"""Audits: compare the rows of a plan with those of the pipeline as written, bit for bit, in a share of the time."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.block import Block, concat_blocks
from cedar.core.columns import OBJECT, numbers
from cedar.core.cursor import Keys
from cedar.core.groups import plain
from cedar.core.stream import PENDING, Flow, Piece
from cedar.engine.binding import Binding
from cedar.plan.graph import source_of

_SHARE = 0.03  # of the time
_PAUSE = 0.001  # seconds between two checks whether an audit's result is ready


# ---- audits in a run -------------------------------------------------------------------------------------------------


class AuditBudget:
    """Decides when an audit is due.

    Args:
        binding: the bound operators of the pipeline as written.
    """

    def __init__(self, binding: Binding) -> None:
        self.share = _SHARE  # fraction of the time for audits; 1 or more audits every piece
        self._binding = binding
        self.restart()

    def restart(self) -> None:
        """Begin again, as the streams of a plan are opened."""
        self._opened = time.perf_counter()
        self._spent = self._next = 0.0  # seconds of audits, and estimated seconds of the next one

    def due(self, opening: float) -> bool:
        """Whether to audit the next piece.

        Args:
            opening: seconds until the first rows arrived, a lower bound for the duration of an audit.
        """
        if self.share >= 1:
            return self._possible
        enough = self.seconds >= max(self._next, opening)
        return enough and self._possible and not self._has_streams  # streaming splits seek slowly

    @property
    def seconds(self) -> float:
        """Seconds that the next audit may take at most."""
        return math.inf if self.share >= 1 else (time.perf_counter() - self._opened) * self.share - self._spent

    def record(self, seconds: float, *, done: bool) -> None:
        """Record an audit. If it was stopped for taking too long, the next one is expected to take twice as long."""
        self._spent += seconds
        self._next = seconds if done else 2 * seconds

    @cached_property
    def _has_streams(self) -> bool:
        return any(self._binding.splits(source).streams for source in self._binding.sources)

    @cached_property
    def _possible(self) -> bool:
        """Whether rows can be read again unchanged. One-pass iterators and objects that functions may modify cannot."""
        sources = [(node, source_of(node)) for node in self._binding.sources]
        if any(source.one_pass for _, source in sources):
            return False
        return not any(
            source.holds_objects and OBJECT in self._binding.types(node).values() for node, source in sources
        )


def audited(piece: Piece, flow: Flow, limit: float) -> tuple[list[Piece], str | None] | None:
    """Compare a piece with the units of a flow of the pipeline as written, and close the flow.

    Args:
        piece: a piece that a plan computed.
        flow: delivers the same units as written.
        limit: maximum seconds; inf waits for the units.

    Returns:
        The pieces as written, and a description of the first difference (None if equal); None if the time was up.
    """
    began = time.perf_counter()
    as_written: list[Piece] = []
    try:
        while sum(each.units for each in as_written) < piece.units:
            each = flow.pull(limit == math.inf)
            if each is PENDING and time.perf_counter() - began > limit:
                return None
            if each is PENDING:
                time.sleep(_PAUSE)
            elif each is None:
                break
            elif each.units:
                as_written.append(each)
    finally:
        flow.close()
    units = [each.slice(0, each.units) for each in as_written]
    over = sum(each.units for each in units) - piece.units
    if over > 0:
        units[-1] = units[-1].slice(0, units[-1].units - over)
    return as_written, compared([piece.rows.gather()], [each.rows.gather() for each in units], batched=piece.batch)


# ---- comparison ------------------------------------------------------------------------------------------------------


def compared(done: Sequence[Block], written: Sequence[Block], batched: bool) -> str | None:
    """Describe the first difference between two runs; None if equal. Block boundaries matter only if ``batched``."""
    if done and written and list(done[0].columns) != list(written[0].columns):
        return f"columns {list(done[0].columns)}, {list(written[0].columns)} as written"
    if not batched:
        return difference(done, written)
    if len(done) != len(written):
        return f"{len(done)} batch(es) in the plan, {len(written)} as written"
    for number, (ours, theirs) in enumerate(zip(done, written, strict=True)):
        mismatch = difference([ours], [theirs])
        if mismatch is not None:
            return f"batch {number}: {mismatch}"
    return None


def difference(done: Sequence[Block], written: Sequence[Block]) -> str | None:
    """Describe the first difference between a plan's rows and those of the pipeline as written; None if equal.

    The order of columns and the boundaries between blocks may differ.
    """
    ours, theirs = _joined(done), _joined(written)
    if ours is None or theirs is None:
        some = ours or theirs
        return None if some is None else f"{some.slots} row(s) on one side, none on the other"
    if ours.slots != theirs.slots:
        return f"{ours.slots} row(s) in the plan, {theirs.slots} as written"
    if not _same_keys(ours.keys, theirs.keys):
        return "other rows, or in another order"
    if ours.dead != theirs.dead:
        return "other rows were skipped"
    if set(ours.columns) != set(theirs.columns):
        return f"columns {sorted(set(ours.columns) ^ set(theirs.columns))} are on one side only"
    for name, column in ours.columns.items():
        why = _differs(column, theirs.columns[name])
        if why is not None:
            return f"column {name!r}: {why}"
    return None


def _joined(blocks: Sequence[Block]) -> Block | None:
    blocks = [block for block in blocks if block.slots]
    return concat_blocks(blocks) if blocks else None


def _same_keys(ours: Keys, theirs: Keys) -> bool:
    count = len(ours)
    if count != len(theirs):
        return False
    for field in fields(Keys):
        mine, other = getattr(ours, field.name), getattr(theirs, field.name)
        if mine is None or other is None:
            if mine is not other:
                return False
        elif not np.array_equal(np.broadcast_to(mine, count), np.broadcast_to(other, count)):
            return False
    return True


def _differs(ours: Any, theirs: Any) -> str | None:
    """Describe the first difference between two columns, or their parts; equal tensors may be laid out differently."""
    ours, theirs = plain(ours), plain(theirs)
    if isinstance(ours, pa.Array) and isinstance(theirs, pa.Array):
        if ours.type != theirs.type:
            return f"{ours.type} in the plan, {theirs.type} as written"
        return None if same_array(ours, theirs) else _first_diff(ours.to_pylist(), theirs.to_pylist())
    if type(ours) is not type(theirs) and not (isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray)):
        return f"{type(ours).__name__} in the plan, {type(theirs).__name__} as written"
    if hasattr(ours, "expand_weights"):
        pairs = [(column, theirs.expand().get(name)) for name, column in ours.expand().items()]
        return next((unlike for pair in pairs if (unlike := _differs(*pair)) is not None), None)
    if hasattr(ours, "offsets"):
        return _differs(ours.values, theirs.values) or _differs(ours.offsets, theirs.offsets)
    if not hasattr(ours, "dtype"):
        return None if _same_object(ours, theirs) else f"{ours!r:.60} in the plan, {theirs!r:.60} as written"
    ours, theirs = _on_host(ours), _on_host(theirs)
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{ours.dtype}{ours.shape} in the plan, {theirs.dtype}{theirs.shape} as written"
    if ours.dtype == object:
        return None if all(map(_same_object, ours, theirs)) else _first_diff(ours, theirs)
    same = _plain_nan(ours).tobytes() == _plain_nan(theirs).tobytes()
    return None if same else _first_diff(ours, theirs)


def _on_host(values: Any) -> Any:
    """Return a tensor as a NumPy array; dtypes that NumPy lacks (bfloat16) are viewed as integers."""
    if not hasattr(values, "detach"):
        return values
    values = values.detach().cpu()
    try:
        return values.numpy()
    except TypeError:
        import torch

        return values.view(torch.int16).numpy()


def _plain_nan(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Replace every NaN by one bit pattern, because the NaN bits of a sum or product depend on the block size."""
    if values.dtype.kind not in "fc" or not np.isnan(values).any():
        return np.ascontiguousarray(values)
    return np.where(np.isnan(values), values.dtype.type(np.nan), values)


def same_array(ours: pa.Array, theirs: pa.Array) -> bool:
    """Compare types, nulls and values; floats are compared by their bits, except that any NaN equals any NaN."""
    if len(ours) != len(theirs) or not ours.is_null().equals(theirs.is_null()):
        return False
    kind = ours.type
    if pa.types.is_floating(kind):
        bits = np.dtype(f"u{kind.bit_width // 8}")
        mine, other = (_plain_nan(numbers(a.drop_null())).view(bits) for a in (ours, theirs))
        return np.array_equal(mine, other)
    if pa.types.is_struct(kind):
        return all(same_array(a, b) for a, b in zip(ours.flatten(), theirs.flatten(), strict=True))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        same = ours.value_lengths().equals(theirs.value_lengths())
        return bool(same) and same_array(ours.flatten(), theirs.flatten())
    if pa.types.is_fixed_size_list(kind):
        return same_array(ours.flatten(), theirs.flatten())
    return bool(ours.equals(theirs))


def _same_object(ours: Any, theirs: Any) -> bool:
    if ours is theirs:
        return True
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, tuple | list):
        return len(ours) == len(theirs) and all(map(_same_object, ours, theirs))
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(map(_same_object, ours.values(), theirs.values()))
    try:
        if hasattr(ours, "__array__"):  # includes tensors, since the pickle of a view contains its whole storage
            ours, theirs = np.asarray(ours), np.asarray(theirs)
            return (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
        return bool(ours == theirs) or pickle.dumps(ours) == pickle.dumps(theirs)
    except Exception:  # noqa: BLE001 - objects without a usable == are equal if their pickles are
        try:
            return pickle.dumps(ours) == pickle.dumps(theirs)
        except Exception:  # noqa: BLE001 - objects that cannot be compared or pickled, such as file handles, are equal
            return True


def _first_diff(ours: Any, theirs: Any) -> str:
    for row, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not _same_object(a, b):
            return f"row {row}: {a!r:.60} in the plan, {b!r:.60} as written"
    return "other bits"
