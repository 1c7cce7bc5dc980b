"""Checkpoints that any number of ranks can load: shards by torch.distributed.checkpoint, the rest as JSON beside them.

A placement is not saved: it follows from the popularity that is, and its digest is compared after loading.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import warnings
from collections.abc import Collection
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from cedar.errors import CedarError
from cedar.trainers.group import Group
from cedar.trainers.moe.options import settings
from cedar.trainers.moe.parts import Part
from cedar.trainers.moe.trainer import Trainer

STATE = "state.json"
_KINDS = ("master", "first", "second")
_SHAPE = (  # of weights, of the data, of random numbers
    "model.layers", "model.width", "model.heads", "experts.experts", "experts.hidden", "experts.shared",
    "data.length", "data.batch", "data.held_out", "data.shuffle", "run.seed",
)  # fmt: skip
_NAME = re.compile(r"step-(\d{8})")


class Checkpoints:
    """The checkpoints in a folder that all ranks see.

    A checkpoint is written aside and renamed when all ranks are done: what is there is whole.

    Args:
        folder: its parents must exist.
        group: the ranks.
        keep: how many; older ones are removed.
        beside: write in a thread, on a copy of the shards, while the training goes on.
    """

    def __init__(self, folder: str, group: Group, *, keep: int = 2, beside: bool = False) -> None:
        self.folder, self.group, self.keep, self.beside = folder, group, keep, beside
        os.makedirs(folder, exist_ok=True)
        self._side = group.side  # collectives of a thread must not meet those of the training
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, trainer: Trainer) -> str:
        """Save what a trainer holds now; the path of the checkpoint, which is there after ``wait``.

        Raises:
            CedarError: it could not be written, or the one before.
        """
        self.wait()
        path = os.path.join(self.folder, f"step-{trainer.step:08d}")
        state = saved_state(trainer)
        copies = _tensors(trainer.optimizer.parts, self.group, copy=self.beside)
        if self.beside:
            self._thread = threading.Thread(target=self._guarded, args=(path, state, copies), name="checkpoint")
            self._thread.start()
        else:
            self._guarded(path, state, copies)
            self.wait()
        return path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Until nothing is being written; an error under way is not hidden behind one of a checkpoint."""
        with suppress(CedarError) if kind is not None else nullcontext():
            self.wait()

    def wait(self) -> None:
        """Until the checkpoint that is being written is there.

        Raises:
            CedarError: it could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise CedarError(
                f"a checkpoint could not be written into {self.folder}: {error}",
                done="older checkpoints are as they were",
                fix="look for space and rights there",
            ) from error

    def latest(self) -> str | None:
        """The newest whole checkpoint, None where there is none."""
        found = self._names()
        return os.path.join(self.folder, found[-1]) if found else None

    def _names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.folder) if _NAME.fullmatch(name))

    def load(self, trainer: Trainer, path: str) -> None:
        """Make a trainer what it was when it saved, on as many ranks or on others.

        Raises:
            CedarError: the checkpoint is of a model of another shape, damaged, or of another placement than
                its own counts lead to.
        """
        try:
            with open(os.path.join(path, STATE), encoding="utf-8") as file:
                state = json.load(file)
            check(trainer, state, path)
            load_state(trainer, state, path)
            tensors = _tensors(trainer.optimizer.parts, self.group, copy=False)
            with _quiet():
                load_shards(tensors, checkpoint_id=path, process_group=self._side, no_dist=self._side is None)
        except (OSError, ValueError, KeyError, RuntimeError, CheckpointException) as error:
            raise CedarError(
                f"the checkpoint {path} cannot be read: {error}",
                fix="take an older one: remove this folder",
            ) from error
        for part in trainer.optimizer.parts:
            for kind in _KINDS:
                found = tensors[f"{part.shards.name}.{kind}"]
                local = found.to_local() if self._side is not None else found
                getattr(part.shards, kind)[:, : local.shape[1]].copy_(local)
        trainer.optimizer.publish()

    def _guarded(self, *what: Any) -> None:
        try:
            self._write(*what)
        except (Exception, CheckpointException) as error:  # noqa: BLE001 - told by wait()
            self._error = error

    def _write(self, path: str, state: dict[str, Any], tensors: dict[str, Any]) -> None:
        aside = path + ".part"
        if self.group.rank == 0:
            shutil.rmtree(aside, ignore_errors=True)
            os.makedirs(aside)
        self._meet()
        with _quiet():
            save_shards(tensors, checkpoint_id=aside, process_group=self._side, no_dist=self._side is None)
        if self.group.rank == 0:
            with open(os.path.join(aside, STATE), "w", encoding="utf-8") as file:
                json.dump(state, file)
                file.flush()
                os.fsync(file.fileno())
            shutil.rmtree(path, ignore_errors=True)
            os.rename(aside, path)
            unfinished = [name for name in os.listdir(self.folder) if name.endswith(".part")]
            for name in [*self._names()[: -self.keep], *unfinished]:
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        self._meet()

    def _meet(self) -> None:
        if self._side is not None:
            dist.barrier(self._side)


def saved_state(trainer: Trainer) -> dict[str, Any]:
    """Everything but the shards: JSON."""
    return {
        "step": trainer.step,
        "updates": trainer.optimizer.steps,
        "skips": trainer.optimizer.skips,
        "settings": settings(trainer.options),
        "loader": trainer.batches.state_dict(),
        "layers": {
            layer.name: {
                "policy": asdict(layer.policy),
                "basis": list(layer.basis),
                "bias": layer.router.bias.tolist(),
                "ranks": layer.placement.ranks,
                "slots": layer.placement.slots,
                "digest": layer.placement.digest,
            }
            for layer in trainer.layers
        },
    }


def load_state(trainer: Trainer, state: dict[str, Any], path: str) -> None:
    """The inverse of ``saved_state``; placements are worked out anew.

    Raises:
        CedarError: a placement is not the one that was saved.
    """
    trainer.batches.load_state_dict(state["loader"])  # which refuses other data, before anything is changed
    trainer.step = state["step"]
    trainer.optimizer.steps, trainer.optimizer.skips = state["updates"], state["skips"]
    for layer in trainer.layers:
        found = state["layers"][layer.name]
        layer.basis = tuple(found["basis"])
        layer.router.bias.copy_(torch.tensor(found["bias"]))
        layer.placement = layer.place()
        same = found["policy"] == asdict(layer.policy)
        alike = (found["ranks"], found["slots"]) == (layer.placement.ranks, layer.placement.slots)
        if same and alike and layer.policy.kind != "oracle" and layer.placement.digest != found["digest"]:
            raise CedarError(
                f"{path} leads to another placement of {layer.name} than was saved with it",
                fix="the file was changed, or experts.rule was: set it as it was",
            )


def check(trainer: Trainer, state: dict[str, Any], path: str, free: Collection[str] | None = None) -> None:
    """Compare the settings that were saved with those of a trainer, before anything of the trainer is changed.

    Args:
        trainer: that is to take the state.
        state: what ``saved_state`` gave.
        path: of it.
        free: settings that may differ; None: all but those of shapes, data and random numbers.

    Raises:
        CedarError: they differ.
    """
    saved, own = state["settings"], json.loads(json.dumps(settings(trainer.options)))
    bound = _SHAPE if free is None else [name for name in own if name not in free]
    odd = [f"{name} was {saved.get(name)!r} and is {own[name]!r}" for name in bound if own[name] != saved.get(name)]
    if odd:
        raise CedarError(
            f"{path} was saved with other settings: {'; '.join(odd)}",
            done="nothing was loaded",
            fix="give the settings that it was saved with, or another run.folder",
        )


def _tensors(parts: list[Part], group: Group, *, copy: bool) -> dict[str, Any]:
    """All shards as torch.distributed.checkpoint takes them: whole where there is one rank, else parts of a whole."""
    found: dict[str, Any] = {}
    mesh: Any = None
    if group.size > 1:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Shard

        mesh = DeviceMesh.from_group(group.ranks, parts[0].shards.master.device.type)
    for part in parts:
        shards = part.shards
        mine = max(0, min(shards.width, shards.size - group.rank * shards.width))
        for kind in _KINDS:
            local = getattr(shards, kind)[:, :mine]
            local = local.clone() if copy else local.contiguous()
            if mesh is None:
                found[f"{shards.name}.{kind}"] = local
                continue
            whole = DTensor.from_local(
                local, mesh, [Shard(1)], run_check=False, shape=torch.Size((shards.rows, shards.size)),
                stride=(shards.size, 1),
            )  # fmt: skip
            found[f"{shards.name}.{kind}"] = whole
    return found


class _quiet(warnings.catch_warnings):  # noqa: N801 - reads as a statement
    """Without the warnings that torch raises about itself."""

    def __enter__(self) -> Any:
        found = super().__enter__()
        warnings.simplefilter("ignore")
        return found
