"""Movers: copy the tensors of a batch to a device.

A copy has two steps. ``begin`` runs ahead of time in the loader's copying thread; ``end`` runs in the caller's thread
when the caller requests the batch. On CUDA, ``begin`` copies tensors to page-locked memory, and starts a copy to the
device on a separate stream; ``end`` makes the caller's stream wait for that copy. On other devices, ``begin`` copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from numpy import ndarray

from cedar.core.errors import PipelineError, Site
from cedar.core.jagged import each


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
    import torch

    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise PipelineError(
            f"device={device!r} is not a torch device: {str(error).splitlines()[0]}",
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
