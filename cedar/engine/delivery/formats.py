"""Convert batches to the format that a loader delivers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from numpy import ndarray

from cedar.core.block import Block
from cedar.core.columns import writeable
from cedar.core.errors import VALUE, CedarError, PipelineError, Site
from cedar.core.groups.column import GroupColumn
from cedar.core.jagged import each
from cedar.operators.base import BlockKernel, Env
from cedar.operators.batch_calls import delivered
from cedar.operators.dedup import in_groups

FORMATS = ("numpy", "torch", "arrow", "jax", "tuple")


def check_format(name: str, site: Site | None) -> None:
    """Raise PipelineError for an unknown format."""
    if name not in FORMATS:
        raise PipelineError(f"format={name!r}: use one of {', '.join(map(repr, FORMATS))}", site=site)
    if name in ("torch", "jax") and find_spec(name) is None:
        raise PipelineError(f'format="{name}" needs {name}', site=site, fix=f'pip install "cedar-data[{name}]"')


def in_form(columns: dict[str, Any], format: str) -> Any:
    """Return a finished batch as delivered to the caller: a dict, a tuple or an Arrow table.

    If a function returned one object for the whole batch, that object is delivered, or {} if all rows were skipped.
    """
    if format == "jax":
        from jax import numpy as jnp

        columns = each(columns, lambda array: jnp.asarray(array) if array.dtype.kind in "biufc" else array)
    if VALUE in columns:
        return columns[VALUE][0] if columns[VALUE] else {}
    if format == "tuple":
        return tuple(columns.values())
    return pa.table(columns) if format == "arrow" else columns


@dataclass(frozen=True)
class Finish(BlockKernel):
    """Kernel that converts a batch's columns to the loader's format. The caller may modify the result.

    Args:
        format: see ``FORMATS``.
        marked: the groups of ``dedup()``; under each of its column names, a group's tensor is delivered.
    """

    format: str
    marked: Any = None

    def __call__(self, block: Block, env: Env) -> Block:
        from cedar.core.convert import to_arrow, to_numpy_each, to_torch_each

        tensors = self.format == "torch" or (self.format == "tuple" and find_spec("torch") is not None)
        if VALUE in block.columns:
            value = {VALUE: delivered(block.columns[VALUE], tensors)}
            return Block(value, block.keys, block.dead, aligned=False)
        own = {n: writeable(column) if isinstance(column, ndarray) else column for n, column in block.columns.items()}
        if self.format == "arrow":
            columns = {name: to_arrow(column, name) for name, column in own.items()}
        else:
            convert = to_torch_each if tensors else to_numpy_each
            groups = {} if self.marked is None else group_tensors(in_groups(block, self.marked.groups), convert)
            alone = {name: column for name, column in own.items() if name not in groups} if groups else own
            keys = block.live_keys() if block.dead else block.keys
            columns = own | convert(alone, keys if block.aligned else None) | groups
        return Block(columns, block.keys, block.dead, aligned=False)


def group_tensors(columns: dict[str, GroupColumn], convert: Callable[..., Any]) -> dict[str, Any]:
    """Return one tensor object for each group of columns, under the names of all its columns.

    A group that cannot be converted is omitted. Its columns are then converted one by one, which reports the bad row.
    """
    from cedar.core.inverse import InverseKeyedJaggedTensor

    sharing: dict[int, dict[str, GroupColumn]] = {}
    for name, column in columns.items():
        sharing.setdefault(id(column.sharing), {})[name] = column
    tensors: dict[str, Any] = {}
    for group in sharing.values():
        try:
            lists = convert({name: column.values for name, column in group.items()})
        except CedarError:
            continue
        inverse = convert({"inverse": next(iter(group.values())).sharing.inverse})["inverse"]
        values, offsets = ({name: getattr(j, part) for name, j in lists.items()} for part in ("values", "offsets"))
        tensors.update(dict.fromkeys(group, InverseKeyedJaggedTensor(tuple(group), values, offsets, inverse)))
    return tensors
