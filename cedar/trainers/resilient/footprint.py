"""Measure how many bytes a stage keeps for a micro-batch, to compute how many micro-batches fit into memory."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from cedar.core.errors import CedarError
from cedar.core.limits import size_text
from cedar.trainers.resilient.model import Engine
from cedar.trainers.resilient.process import preload
from cedar.trainers.resilient.sharing import ask_process

if TYPE_CHECKING:
    from cedar.trainers.resilient.pipeline import ResilientPipeline


class LiveTensorBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of live tensors that were created inside the block. Views of older tensors do not count."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._allocated: dict[int, tuple[Any, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {value.untyped_storage()._cdata for value in _tensors((args, kwargs))}
        results = func(*args, **(kwargs or {}))
        for value in _tensors(results):
            storage = value.untyped_storage()
            if storage._cdata not in given:
                weak: Any = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._allocated[storage._cdata] = weak, storage.nbytes()
        return results

    @property
    def nbytes(self) -> int:
        return sum(size for storage, size in self._allocated.values() if not storage.expired())


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]


def footprint(engine: Engine, x: Any, targets: Any = None) -> tuple[int, torch.Tensor]:
    """Return the peak bytes that a micro-batch keeps from F to the end of B_WEIGHT, and the output of the stage.

    The bytes include the stage's input and output, but not temporary tensors of a computation. ``x``: input of the
    stage. ``targets``: targets of the loss, for the last stage.
    """
    key, alive = (0, 0), LiveTensorBytes()
    engine.load(engine.initial_state)
    with alive:
        output = engine.forward(0, key, *pytree.tree_map_only(torch.Tensor, torch.clone, (x, targets)))
    peak = alive.nbytes
    with alive:
        engine.backward_input(key, None if engine.last else torch.ones_like(output))
    peak = max(peak, alive.nbytes)
    engine.discard(key)
    return peak, output


def caps(pipeline: ResilientPipeline, memory: int) -> tuple[int, ...]:
    """Return for each stage how many micro-batches' activations fit into ``memory`` bytes.

    A separate process runs one micro-batch through all stages, because this one must not run torch before it forks.

    Raises:
        CedarError: one micro-batch already needs more memory at some stage, or the measurement failed.
    """
    preload()
    sizes: list[int] = ask_process(
        lambda: _measure(pipeline), pipeline.run.threads, "the process that measures stages died"
    )
    for stage, size in enumerate(sizes):
        if size > memory:
            raise CedarError(
                f"stage {stage} keeps {size_text(size)} of activations for a micro-batch,"
                f" more than the {size_text(memory)} of pipeline.memory",
                done="nothing was trained", fix="give more memory, smaller micro-batches, or more stages",
            )  # fmt: skip
    return tuple(memory // size for size in sizes)


def _measure(pipeline: ResilientPipeline) -> list[int]:
    sizes = []
    with closing(pipeline.open()) as data:
        x = data.inputs(0, (0, 0))
        for stage in range(len(pipeline.stages)):
            engine = pipeline.engine(stage)
            size, x = footprint(engine, x, data.targets(0, (0, 0)) if engine.last else None)
            sizes.append(size)
    return sizes
