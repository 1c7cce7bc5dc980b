"""Checkpoints by the names of parameters: any number of stages and replicas can load them."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Mapping
from typing import Any

import torch

from cedar.errors import CedarError
from cedar.trainers.resilient.control.board import Board, Epoch
from cedar.trainers.resilient.model import Layout, State
from cedar.trainers.resilient.schedule import Worker

STATE = "state.json"
_NAME = re.compile(r"step-(\d{8})")
_DATA = ("pipeline", "sources", "seed")  # of the loader's state
_KINDS = ("master", "first", "second")


def latest(folder: str) -> str:
    """The newest whole checkpoint; empty where there is none."""
    found = sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name)) if os.path.isdir(folder) else []
    return os.path.join(folder, found[-1]) if found else ""


class Checkpoints:
    """One worker's part in the checkpoints of a folder that all workers see.

    The live workers of a stage share out its parameters. States do not change, so they are written by a thread, beside
    the training, without a copy. A checkpoint is written aside; the worker that is last to be done gives it its name.

    Args:
        folder: of the run's checkpoints.
        me: this worker.
        layout: of the stage.
        board: shared by all.
        every: steps between two checkpoints; 0: only at the end.
        keep: how many.
        about: JSON to keep with each: the model, the loader's state.
        device: where states are.
    """

    def __init__(
        self, folder: str, me: Worker, layout: Layout, board: Board, *, every: int = 0, keep: int = 2,
        about: Mapping[str, Any] | None = None, device: str = "cpu",
    ) -> None:  # fmt: skip
        self.folder, self.me, self.layout, self.board = folder, me, layout, board
        self.every, self.keep, self.about, self.device = every, keep, dict(about or {}), device
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        os.makedirs(folder, exist_ok=True)

    def due(self, step: int) -> bool:
        return self.every > 0 and step > 0 and step % self.every == 0

    def save(self, state: State, epoch: Epoch) -> None:
        """Begin to save; all members of a generation do, at the same version."""
        self.wait()
        self._thread = threading.Thread(target=self._guarded, args=(state, epoch), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until what was begun is written.

        Raises:
            CedarError: it could not be.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise CedarError(
                f"a checkpoint could not be written into {self.folder}: {error}",
                done="older checkpoints are as they were", fix="look for space and rights there",
            ) from error  # fmt: skip

    def load(self, path: str) -> State:
        """This stage's state.

        Raises:
            CedarError: the checkpoint is damaged, or of another model.
        """
        try:
            with open(os.path.join(path, STATE), encoding="utf-8") as file:
                told = json.load(file)
            files = {name: torch.load(os.path.join(path, name), mmap=True, weights_only=True) for name in told["files"]}
            step, updates = int(told["step"]), int(told["updates"])
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise CedarError(
                f"the checkpoint {path} cannot be read: {error}", fix="remove it, and resume again"
            ) from error
        self._check_data(path, told.get("loader"))
        found = {name: piece for pieces in files.values() for name, piece in pieces.items()}
        for name, shape in self.layout.shapes.items():
            there = tuple(found[name]["master"].shape) if name in found else None
            if there != shape:
                raise CedarError(
                    f"{path}: {name} should be {list(shape)}, and is {'missing' if there is None else list(there)}",
                    fix="resume with the model of the checkpoint",
                )
        vectors = [
            self.layout.gather({n: found[n][kind] for n in self.layout.shapes}).to(self.device) for kind in _KINDS
        ]
        return State(step, updates, *vectors)

    def _check_data(self, path: str, saved: Mapping[str, Any] | None) -> None:
        """Steps mean the same rows only with the same pipeline, files and seed."""
        mine = self.about.get("loader")
        other = [] if saved is None or mine is None else [name for name in _DATA if saved.get(name) != mine.get(name)]
        if other:
            raise CedarError(
                f"{path} was made with other data: {', '.join(other)}",
                fix="resume with the same text, length, batch and seed",
            )

    def _guarded(self, state: State, epoch: Epoch) -> None:
        try:
            self._write(state, epoch)
        except BaseException as error:  # noqa: BLE001 - told by wait()
            self._error = error

    def _write(self, state: State, epoch: Epoch) -> None:
        path = os.path.join(self.folder, f"step-{state.version:08d}")
        aside = f"{path}.part-{epoch.number}"  # of a generation: what fenced workers write is in nobody's way
        os.makedirs(aside, exist_ok=True)
        pieces = {kind: self.layout.pieces(getattr(state, kind)) for kind in _KINDS}
        mine = {name: {kind: pieces[kind][name].clone() for kind in _KINDS} for name in self._share(epoch)}
        file = os.path.join(aside, f"stage-{self.me.stage}-{self.me.replica}.pt")
        with open(file, "wb") as out:
            torch.save(mine, out)
            out.flush()
            os.fsync(out.fileno())
        if self.board.count(f"saved/{epoch.number}/{state.version}") == len(epoch.members):
            self._name(path, aside, state)

    def _share(self, epoch: Epoch) -> list[str]:
        """The parameters that this worker writes; a shared table belongs to the first stage."""
        peers = sorted(worker for worker in epoch.members if worker.stage == self.me.stage)
        names = list(self.layout.shapes)
        if self.layout.tied and self.me.stage > 0:
            names = names[1:]
        return names[peers.index(self.me) :: len(peers)]

    def _name(self, path: str, aside: str, state: State) -> None:
        files = sorted(name for name in os.listdir(aside) if name.endswith(".pt"))
        told = {"step": state.version, "updates": state.updates, "files": files, **self.about}
        with open(os.path.join(aside, STATE), "w", encoding="utf-8") as file:
            json.dump(told, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(path, ignore_errors=True)
        os.rename(aside, path)
        self.board.put("persisted", state.version)  # logs from before are not needed any more
        names = sorted(name for name in os.listdir(self.folder) if _NAME.match(name))
        whole = [name for name in names if _NAME.fullmatch(name)]
        newest = whole[-1]
        for name in names:
            if name in whole[: -self.keep] or (name not in whole and name[: len(newest)] <= newest):
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)


def step_of(path: str) -> int:
    """The steps that the state of a checkpoint has taken; 0 for no checkpoint.

    Example:
        >>> step_of("runs/checkpoints/step-00000040")
        40
    """
    match = _NAME.fullmatch(os.path.basename(path))
    return 0 if match is None else int(match[1])
