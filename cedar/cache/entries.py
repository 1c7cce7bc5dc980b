"""Writes blocks as the body of an entry. See ``entry_reader`` for reading them.

Each block has an Arrow IPC stream of its columns, one of its keys, and two for each group of columns whose rows repeat
(the stored rows and the inverse). The entry's JSON has the positions of these streams and all data unsuited to Arrow.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.cache.group_columns import write_groups
from cedar.core.block import Block
from cedar.core.columns import TensorType, type_of
from cedar.core.cursor import Keys
from cedar.core.packages import version_of
from cedar.store.arrow import write_batch
from cedar.store.entry import FORMAT

CONSTANT = ("file", "sub", "repeat", "branch", "source")


def versions() -> dict[str, str]:
    """Return the versions that affect the bytes of an entry and the results of operators."""
    packages = {name: version_of(name) for name in ("cedar", "pyarrow", "numpy", "polars")}
    return {"format": str(FORMAT), "python": version_of("sys"), **packages, **_decoders()}


@functools.cache
def _decoders() -> dict[str, str]:
    """Return the versions of installed image and sound decoders, since results may differ between versions."""
    found = {}
    for name in ("pillow", "simplejpeg", "imagecodecs", "soxr", "miniaudio", "soundfile"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def storable(blocks: Sequence[Block]) -> str:
    """Return why the blocks cannot be written; empty if they can."""
    for block in blocks:
        if not block.aligned:
            return "its batches have no row keys"
        for name, column in block.columns.items():
            if isinstance(column, np.ndarray) and (column.dtype.hasobject or column.dtype.kind == "V"):
                return f"column {name!r} holds Python objects"
    return ""


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_body(blocks: Sequence[Block], sink: Any, ordinals: Sequence[int]) -> dict[str, Any]:
    """Write the Arrow parts to ``sink``, and return their description.

    Args:
        blocks: blocks that are ``storable``.
        sink: a pyarrow output stream at its beginning.
        ordinals: the cached operators. An entry stores indices into this list, so that other pipelines can use it.
    """
    places = {ordinal: place for place, ordinal in enumerate(ordinals)}
    described = []
    for block in blocks:
        arrays, tensors = _as_arrays(block)
        keys, constant = _keys(block.keys)
        dead = [
            [slot, places.get(w.operator, -1), w.label, w.error, w.refill, w.lost] for slot, w in block.dead.items()
        ]
        described.append({
            "rows": len(block), "slots": block.slots, "names": list(block.columns), "tensors": tensors,
            "constant": constant, "dead": dead, "columns": _write(sink, arrays), "keys": _write(sink, keys),
            "groups": write_groups(block.columns, lambda arrays: _write(sink, arrays)),
        })  # fmt: skip
    return {"blocks": described}


def _write(sink: Any, arrays: dict[str, pa.Array]) -> list[int] | None:
    if not arrays:
        return None
    return write_batch(sink, pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays)))


def _as_arrays(block: Block) -> tuple[dict[str, pa.Array], dict[str, Any]]:
    arrays: dict[str, pa.Array] = {}
    tensors: dict[str, Any] = {}
    for number, (name, column) in enumerate(block.columns.items()):
        if not isinstance(column, np.ndarray):  # a GroupColumn is written separately
            arrays[str(number)] = column if isinstance(column, pa.Array) else pa.nulls(len(column))
            continue
        kind = type_of(column)
        assert isinstance(kind, TensorType)
        tensors[name] = [list(kind.shape), column.dtype.str]
        arrays[str(number)] = _bytes_of(column)
    return arrays, tensors


def _bytes_of(column: Any) -> pa.Array:
    """Return one fixed-size binary per row, without a copy if the array is contiguous."""
    width = column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
    if not width or not len(column):
        return pa.nulls(len(column))
    flat = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(column), [None, pa.py_buffer(flat)])


def _keys(keys: Keys) -> tuple[dict[str, pa.Array], dict[str, int]]:
    arrays = {"row": pa.array(keys.row)}
    constant = {}
    for name in CONSTANT:
        part = getattr(keys, name)
        if isinstance(part, int):
            constant[name] = part
        else:
            arrays[name] = pa.array(part)
    return arrays, constant


def relabeled(blocks: list[Block], source: int, lap: int) -> list[Block]:
    """Return the blocks with the source and repetition in the row keys set to ``source`` and ``lap``."""
    return [Block(b.columns, replace(b.keys, repeat=lap, source=source), b.dead, b.aligned) for b in blocks]
