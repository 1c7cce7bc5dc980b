"""Convert batches to the format that a loader delivers, and copy their tensors to a device.

A copy has two steps. ``begin`` runs ahead of time in the loader's copying thread; ``end`` runs in the caller's thread
when the caller requests the batch. On CUDA, ``begin`` copies tensors to page-locked memory, and starts a copy to the
device on a separate stream; ``end`` makes the caller's stream wait for that copy. On other devices, ``begin`` copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import pyarrow as pa
from numpy import ndarray

from cedar.core.block import Block
from cedar.core.boundary import first_line
from cedar.core.columns import writeable
from cedar.core.errors import VALUE, CedarError, PipelineError, Site
from cedar.core.groups import GroupColumn
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
        own = dict(block.columns)
        for name, column in block.columns.items():
            if isinstance(column, ndarray):
                own[name] = writeable(column)
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


class Mover(Protocol):
    """Copies batches to a device. Each iteration of a loader has its own mover."""

    def begin(self, columns: dict[str, Any]) -> Any:
        """Start to copy a batch, in the copying thread; return the argument for ``end``.

        Raises:
            PipelineError: a column cannot be copied to the device.
        """

    def end(self, begun: Any) -> dict[str, Any]:
        """Return the batch on the device, ready for use in the caller's thread, which calls this method."""


def check_device(device: Any, format: str, site: Site | None) -> None:
    """Raise PipelineError if ``device`` is not a device or is not available."""
    if format not in ("torch", "tuple"):
        fix = "leave format= out" if format != "jax" else "call jax.device_put(batch, device)"
        raise PipelineError(f'device= needs format="torch" or "tuple", not {format!r}', site=site, fix=fix)
    kind = _device(device, site).type
    if kind == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise PipelineError(
                f"device={str(device)!r}: torch finds no CUDA device",
                site=site,
                fix='use device="cpu", or install a torch build for the GPU of this machine',
            )


def make_mover(device: Any) -> Mover | None:
    """Return the mover for an iteration; None if tensors need no copy. Must be called in the thread that iterates.

    "cuda" without a number means that thread's current device, since other threads may have other current devices.
    """
    import torch

    target = _device(device, None)
    if target.type == "cpu":
        return None
    if target.type == "cuda":
        return CudaMover(torch.cuda.current_device() if target.index is None else target.index)
    return PlainMover(target)


def _device(device: Any, site: Site | None) -> Any:
    if find_spec("torch") is None:
        raise PipelineError(f"device={device!r:.80} needs torch", site=site, fix="pip install 'cedar-data[torch]'")
    import torch

    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise PipelineError(
            f"device={device!r} is not a torch device: {first_line(error)}",
            site=site,
            fix='for example "cuda:0"',
        ) from error


@dataclass(frozen=True)
class PlainMover:
    """Copies by ``tensor.to(device)`` in ``begin``, for devices such as "mps", "xpu" and "meta".

    Args:
        device: a torch.device.
    """

    device: Any

    def begin(self, columns: dict[str, Any]) -> dict[str, Any]:
        return on_tensors(columns, lambda tensor: tensor.to(self.device), self.device)

    def end(self, begun: dict[str, Any]) -> dict[str, Any]:
        return begun


class CudaMover:
    """Copies through page-locked memory on a separate CUDA stream.

    torch reuses page-locked memory for later batches once the copy from it is done.

    Args:
        index: number of the CUDA device.
    """

    def __init__(self, index: int) -> None:
        import torch

        self._device = torch.device("cuda", index)
        make: Any = torch.cuda.Stream
        self._stream = make(self._device)

    def begin(self, columns: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        import torch

        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            moved = on_tensors(columns, self._start, self._device)
            return moved, self._stream.record_event()

    def _start(self, tensor: Any) -> Any:
        if tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)

    def end(self, begun: tuple[dict[str, Any], Any]) -> dict[str, Any]:
        import torch

        columns, copied = begun
        theirs = torch.cuda.current_stream(self._device)
        theirs.wait_event(copied)

        def used(tensor: Any) -> Any:  # prevents torch from reusing the memory before the caller's stream is done
            tensor.record_stream(theirs)
            return tensor

        on_tensors(columns, used, self._device)
        return columns


def on_tensors(columns: dict[str, Any], fn: Callable[[Any], Any], device: Any) -> dict[str, Any]:
    """Apply ``fn`` to each tensor in the columns, and return the results. A tensor that occurs repeatedly is done once.

    Strings and other objects are unchanged; dicts, lists, tuples, JaggedTensors and groups keep their structure.

    Raises:
        PipelineError: ``fn`` failed; the error names the column.
    """
    done: dict[int, Any] = {}

    def once(tensor: Any) -> Any:
        if isinstance(tensor, ndarray):  # an array of dates or strings, for which torch has no dtype
            return tensor
        if id(tensor) not in done:
            done[id(tensor)] = tensor, fn(tensor)  # the reference to the tensor prevents that its id is reused
        return done[id(tensor)][1]

    moved: dict[int, Any] = {}
    for name, column in columns.items():
        if id(column) in moved:
            continue
        try:
            moved[id(column)] = each(column, once)
        except Exception as error:
            raise PipelineError(
                f"column {name!r} cannot be copied to {device}: {type(error).__name__}: {error}", fix=_fix(name, error)
            ) from error
    return {name: moved[id(column)] for name, column in columns.items()}


def _fix(name: str, error: Exception) -> str:
    if type(error).__name__ == "OutOfMemoryError":
        return "use smaller batches: the device holds two in addition to the one in use"
    return f"cast it to what the device can hold, for example with_columns({name}=col({name!r}).cast(polars.Float32))"
