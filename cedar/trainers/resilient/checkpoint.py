"""Checkpoints that store parameters by name, so that any number of stages and replicas can load them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from cedar.core.errors import CedarError
from cedar.trainers.common.checkpoint import (
    NAME,
    BackgroundWriter,
    checked_step_count,
    path_of,
    read_index,
    rename_whole,
    torn,
    write_index,
)  # fmt: skip
from cedar.trainers.common.files import Damaged
from cedar.trainers.common.tensors import Part, Reader, write_parts
from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control.board import Board, Epoch
from cedar.trainers.resilient.control.protocol import Key
from cedar.trainers.resilient.model import Layout, State
from cedar.trainers.resilient.schedule import Worker

_DATA = ("pipeline", "sources", "seed")  # entries of the loader's state that must equal the checkpoint's
KINDS = ("master", "first", "second")


class Checkpoints:
    """Writes and loads one worker's part of the checkpoints, in a folder that all workers share.

    Each live worker of a stage writes a part of the stage's parameters. A background thread writes it to a temporary
    folder during training, because a ``State`` is immutable. The last worker to finish writes the index and renames
    the folder. ``every``: steps between checkpoints; 0: only at the end. ``about``: JSON to store in each checkpoint,
    such as the loader's state. ``shared_elsewhere``: another stage writes the parameters shared with this one.
    """

    def __init__(
        self, folder: str, me: Worker, layout: Layout, board: Board, *, every: int = 0, keep: int = 2,
        about: Mapping[str, Any] | None = None, shared_elsewhere: bool = False,
    ) -> None:  # fmt: skip
        self.folder, self.me, self.layout, self.board = folder, me, layout, board
        self.every, self.keep, self.about = every, keep, dict(about or {})
        self.shared_elsewhere = shared_elsewhere
        self._max_folders = keep  # max number of checkpoint folders
        self.last_write = 0, 0.0  # bytes that this worker wrote in the last save, and the seconds it took
        self._writing = BackgroundWriter(folder)

    def due(self, step: int) -> bool:
        return self.every > 0 and step > 0 and step % self.every == 0

    def save(self, state: State, epoch: Epoch) -> None:
        """Start to save a state. Each member of a generation must call this with a state of the same version."""
        peers = sorted(worker for worker in epoch.members if worker.stage == self.me.stage)
        mine = dict(list(self._parts_to_save(state).items())[peers.index(self.me) :: len(peers)])
        about = {"step": state.version, "updates": state.updates, **self.about, **self._extra_state(state, epoch)}
        self._writing.begin(partial(self._write, mine, about, epoch))

    def wait(self) -> None:
        """Wait until the save in progress has finished."""
        self._writing.wait()

    def load(self, path: str) -> State:
        """Load this stage's state from a checkpoint."""
        index = read_index(path)
        state = State.initial(self.layout.gather({}))
        with torn(path), Reader(path, index.entries) as reader:
            step, updates = checked_step_count(index.state["step"]), checked_step_count(index.state["updates"])
            self._check_data(path, index.state.get("loader"))
            parts = self._parts(state)
            reader.check(parts)
            reader.read(parts)
        return State(step, updates, state.master, state.first, state.second)

    def _parts(self, state: State) -> dict[str, Part]:
        return {
            f"{name}.{kind}": Part(piece)
            for kind in KINDS
            for name, piece in self.layout.pieces(getattr(state, kind)).items()
        }

    def _parts_to_save(self, state: State) -> dict[str, Part]:
        """Return the parameters that the workers of this stage save together."""
        names = list(self.layout.shapes)[self.layout.shared if self.shared_elsewhere else 0 :]
        parts = self._parts(state)
        return {f"{name}.{kind}": parts[f"{name}.{kind}"] for name in names for kind in KINDS}

    def _extra_state(self, _state: State, _epoch: Epoch) -> dict[str, Any]:
        """Return entries that a subclass adds to a checkpoint's index."""
        return {}

    def _check_data(self, path: str, saved: Mapping[str, Any] | None) -> None:
        """Raise if the pipeline, files or seed differ from the checkpoint's, since steps would then read other rows."""
        mine = self.about.get("loader")
        other = [] if saved is None or mine is None else [name for name in _DATA if saved.get(name) != mine.get(name)]
        if other:
            raise CedarError(
                f"{path} was saved with different data: {', '.join(other)}", done="nothing was loaded",
                fix="resume with the same text, length, batch and seed",
            )  # fmt: skip

    def _write(self, mine: Mapping[str, Part], about: Mapping[str, Any], epoch: Epoch) -> None:
        number, version = epoch.number, about["step"]
        path = path_of(self.folder, version)
        temporary = f"{path}.part-{number}"  # per generation, so that old workers cannot interfere
        os.makedirs(temporary, exist_ok=True)
        began = time.perf_counter()
        reported = write_parts(temporary, f"stage-{self.me.stage}-{self.me.replica}.safetensors", mine)
        self.last_write = sum(part.tensor.nbytes for part in mine.values()), time.perf_counter() - began
        kind = os.path.basename(self.folder)
        self.board.put(keys.SAVED_PART(kind, number, version, self.me), reported)
        if self.board.increment(keys.SAVED(kind, number, version)) == len(epoch.members):
            parts = [keys.SAVED_PART(kind, number, version, worker) for worker in epoch.members]
            self._complete(path, temporary, number, about, parts)
            self.board.delete(*parts, keys.SAVED(kind, number, version))
            self._on_complete(version)

    def _complete(
        self, path: str, temporary: str, number: int, about: Mapping[str, Any], parts: list[Key[list[Any]]]
    ) -> None:
        reported = self.board.get_all(parts)
        assert reported is not None, "all have put what they wrote before they counted"
        if self._is_complete(path):  # from another generation, with the same values; a worker may be loading it
            shutil.rmtree(temporary, ignore_errors=True)
            return
        write_index(temporary, about, [line for lines in reported for line in lines])
        rename_whole(temporary, path, self._max_folders)
        for name in os.listdir(self.folder):  # remove unfinished folders of generations that have ended
            begun, _, generation = name.partition(".part-")
            unfinished = generation.isdecimal() and NAME.fullmatch(begun) and begun <= os.path.basename(path)
            if unfinished and int(generation) <= number:
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)

    def _is_complete(self, path: str) -> bool:
        """Return whether a restore can use this checkpoint."""
        try:
            read_index(path)
        except Damaged:
            return False
        return True

    def _on_complete(self, version: int) -> None:
        self.board.put(keys.PERSISTED(), version)  # other workers can now drop the logs of earlier steps
