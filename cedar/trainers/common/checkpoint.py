"""Checkpoints of one format for all trainers: raw tensors, an index in JSON with a hash of each, nothing pickled.

A checkpoint is a folder ``step-00000040``: a file of tensors by each rank, and ``index.json``, which is written last
and holds a digest of itself. The folder is written aside and renamed when all ranks are done: what is there is whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Self

import torch

from cedar.core.errors import CedarError
from cedar.trainers.common.files import Damaged, read_sealed, sync_folder, write_sealed
from cedar.trainers.common.group import Group
from cedar.trainers.common.tensors import Entry, Part, Reader, entries_of, write_parts


class BackgroundWriter:
    """Writes checkpoints."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def begin(self, work: Callable[[], object], *, here: bool = False) -> None:
        """Begin it, once what was begun before is done. ``here``: do it at once, in this thread."""
        self.wait()

        def guarded() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - reported by wait()
                self._error = error

        if here:
            guarded()
            self.wait()
            return
        self._thread = threading.Thread(target=guarded, name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until what was begun is done."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise CedarError(
                f"a checkpoint could not be written into {self.folder}: {error}",
                done="older checkpoints are as they were", fix="look for space and rights there",
            ) from error  # fmt: skip


INDEX, FORMAT = "index.json", "cedar checkpoint 1"
NAME = re.compile(r"step-(\d{8,12})")
_FORMER = (".metadata", "state.json")  # what checkpoints were made of that held pickles
_TORN = (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RuntimeError, RecursionError)


class CheckpointedTrainer(Protocol):
    """A trainer, as checkpoints see it."""

    group: Group
    step: int
    device: torch.device

    @property
    def files(self) -> Mapping[str, str]:
        """To be copied into each checkpoint, by their names there."""

    def state_dict(self) -> dict[str, Any]:
        """All but tensors: JSON; all ranks call it."""

    def parts(self) -> dict[str, Part]:
        """The tensors of this rank, by names that any rank would give them."""

    def check(self, state: Mapping[str, Any], path: str) -> None:
        """Refuse a state that is of another model, other data or other settings."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` gave; tensors are read when it has returned."""

    def loaded(self) -> None:
        """Tensors have been read."""


@dataclass(frozen=True)
class Index:
    """What ``index.json`` says."""

    state: dict[str, Any]
    entries: dict[str, Entry]


def steps(folder: str) -> list[int]:
    """The steps of the checkpoints in a folder, damaged ones among them, oldest first."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(int(match[1]) for match in map(NAME.fullmatch, names) if match)


def path_of(folder: str, step: int) -> str:
    """
    Examples:
        >>> path_of("runs", 40)
        'runs/step-00000040'
    """
    return os.path.join(folder, f"step-{step:08d}")


def step_of(path: str) -> int:
    """The steps that the state of a checkpoint has taken; 0 for no checkpoint.

    Examples:
        >>> step_of("runs/checkpoints/step-00000040")
        40
    """
    match = NAME.fullmatch(os.path.basename(path))
    return 0 if match is None else int(match[1])


def write_index(path: str, state: Mapping[str, Any], reported: Sequence[Any], name: str = INDEX) -> None:
    """Write what is left when all ranks have called ``write_parts``, whose results are ``reported``."""
    write_sealed(os.path.join(path, name), {"format": FORMAT, "state": dict(state), "tensors": list(reported)})


def read_index(path: str, name: str = INDEX) -> Index:
    """The index of a checkpoint.

    Raises:
        Damaged: it is not what was written.
        CedarError: the checkpoint is of the format that earlier versions wrote.
    """
    file = os.path.join(path, name)
    if not os.path.exists(file) and any(os.path.exists(os.path.join(path, former)) for former in _FORMER):
        raise CedarError(
            f"{path} is of the format that earlier versions wrote, which holds pickles: reading those may run code",
            done="nothing was loaded",
            fix="if no other user can write there, cedar.trainers.common.dcp.import_dcp(OLD, NEW, trust=True) converts"
            " those of dlrm and moe; else set run.folder to another folder and start again",
        )
    index = read_sealed(file)
    if index.get("format") != FORMAT or not isinstance(index.get("state"), dict):
        raise Damaged(f"{file} is not an index of a checkpoint", done="nothing was loaded", fix="remove that folder")
    return Index(index["state"], entries_of(index.get("tensors"), file))


def newest(folder: str, *, thorough: bool = False) -> str:
    """The newest checkpoint whose index is whole; damaged ones are named on stderr; empty if there is none.
    ``thorough``: read all tensors, too, and compare their hashes.
    """
    for step in reversed(steps(folder)):
        path = path_of(folder, step)
        try:
            index = read_index(path)
            if thorough:
                with Reader(path, index.entries) as reader:
                    reader.verify_all()
        except Damaged as error:
            say_damaged(error)
            continue
        return path
    return ""


def say_damaged(error: CedarError) -> None:
    """That a checkpoint is passed over."""
    sys.stderr.write(f"{error}\nthe checkpoint before it is taken\n")


def rename_whole(aside: str, path: str, keep: int) -> None:
    """Give a checkpoint that is written wholly its name, and remove all but the newest ``keep``."""
    folder = os.path.dirname(path)
    shutil.rmtree(path, ignore_errors=True)
    os.rename(aside, path)
    sync_folder(folder)
    for step in steps(folder)[:-keep]:
        shutil.rmtree(path_of(folder, step), ignore_errors=True)


class Checkpoints:
    """The checkpoints in a folder that all ranks see, of a trainer whose ranks all do the same. ``keep``: how many;
    older ones are removed; ``next to``: write in a thread, on a copy of the tensors, while the training continues.
    """

    def __init__(self, folder: str, trainer: CheckpointedTrainer, *, keep: int = 2, beside: bool = False) -> None:
        self.folder, self.trainer, self.group = folder, trainer, trainer.group
        self.keep, self.beside = keep, beside
        os.makedirs(folder, exist_ok=True)
        self.group.side  # noqa: B018 - all ranks make it here: collectives of a thread must not meet those of the training
        self._writing = BackgroundWriter(folder)

    def save(self) -> str:
        """Save what the trainer holds now; the path of the checkpoint, which is there after ``wait``."""
        self.wait()
        path, state = path_of(self.folder, self.trainer.step), self.trainer.state_dict()
        mine = {
            name: part
            for at, (name, part) in enumerate(self.trainer.parts().items())
            if not part.alike or at % self.group.size == self.group.rank
        }
        if self.beside:
            mine = {name: replace(part, tensor=part.tensor.clone()) for name, part in mine.items()}
        self._writing.begin(partial(self._write, path, state, mine), here=not self.beside)
        return path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Until nothing is being written; an error in progress is not hidden behind one of a checkpoint."""
        with suppress(CedarError) if kind is not None else nullcontext():
            self.wait()

    def wait(self) -> None:
        """Until the checkpoint that is being written is there."""
        self._writing.wait()

    def _write(self, path: str, state: dict[str, Any], mine: dict[str, Part]) -> None:
        aside, first = path + ".part", self.group.rank == 0
        self._together(lambda: self._prepare(aside) if first else None)
        reported = self._together(lambda: write_parts(aside, f"rank-{self.group.rank}.safetensors", mine))

        def finish() -> None:
            write_index(aside, state, [line for lines in reported for line in lines])
            rename_whole(aside, path, self.keep)

        self._together(finish if first else lambda: None)

    def _prepare(self, aside: str) -> None:
        for name in os.listdir(self.folder):
            if name.endswith(".part") and NAME.fullmatch(name.removesuffix(".part")):  # what a killed run left
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        os.makedirs(aside)
        for name, source in self.trainer.files.items():
            os.makedirs(os.path.dirname(os.path.join(aside, name)), exist_ok=True)
            shutil.copyfile(source, os.path.join(aside, name))

    def _together(self, work: Callable[[], Any]) -> list[Any]:
        """What each rank's work gives, JSON; if one fails, all ranks are notified and none waits for it."""
        value, error = None, None
        try:
            value = work()
        except Exception as failed:  # noqa: BLE001 - raised below
            error = failed
        reported = self.group.tell([None if error is None else str(error), value])
        if error is not None:
            raise error
        for rank, (why, _) in enumerate(reported):
            if why is not None:
                raise OSError(f"rank {rank}: {why}")
        return [value for _, value in reported]

    def resume(self) -> str:
        """Load the newest checkpoint that is whole, on as many ranks or on others; empty if there is none.

        Damaged ones are named on stderr.
        """
        saved_steps = steps(self.folder)
        self.group.agree(
            {"the newest checkpoint": saved_steps}, "give all ranks a run.folder that they share", self.trainer.device
        )
        damaged: Damaged | None = None
        for step in reversed(saved_steps):
            try:
                self.load(path_of(self.folder, step))
            except Damaged as error:
                damaged = error
                if self.group.rank == 0:
                    say_damaged(error)
            else:
                return path_of(self.folder, step)
        if damaged is not None:
            raise damaged
        return ""

    def load(self, path: str) -> None:
        """Make the trainer what it was when it saved, on as many ranks or on others.

        Raises:
            Damaged: it is not what was written; nothing was changed.
            CedarError: it is of another model, other data or settings, or of an earlier format; nothing was changed.
        """
        problem: CedarError | None = None
        parts = self.trainer.parts()
        reader: Reader | None = None
        try:
            index = read_index(path)
            with torn(path):
                self.trainer.check(index.state, path)
            reader = Reader(path, index.entries)
            reader.check(parts)
        except CedarError as error:
            problem = error
        reported = self.group.tell(None if problem is None else [isinstance(problem, Damaged), problem.what])
        if problem is None and (others := [one for one in reported if one is not None]):
            problem = (Damaged if others[0][0] else CedarError)(others[0][1], done="nothing was loaded")
        if problem is not None or reader is None:
            if reader is not None:
                reader.close()
            assert problem is not None
            raise problem
        with reader, torn(path):
            self.trainer.load_state_dict(index.state)
            reader.read(parts)
        self.trainer.loaded()


def refuse_others(saved_with: Mapping[str, Any], here: Mapping[str, Any], path: str) -> None:
    """Compare what a checkpoint was made with, and what is at hand: values of JSON by name, mappings name by name."""
    odd = []
    for key, own in json.loads(json.dumps(here)).items():
        saved = saved_with.get(key)
        if isinstance(own, dict) and isinstance(saved, dict):
            names = [name for name in {**own, **saved} if own.get(name) != saved.get(name)]
            odd += [f"{key} {name} was {saved.get(name)!r} and is {own.get(name)!r}" for name in names]
        elif saved != own:
            odd.append(f"{key} was {saved!r} and is {own!r}")
    if odd:
        raise CedarError(
            f"{path} was saved with other settings: {'; '.join(odd[:8])}", done="nothing was loaded",
            fix="give the settings and the vocabularies that it was saved with, or another run.folder",
        )  # fmt: skip


def as_integer_option(value: Any) -> int:
    """A number of steps that a state tells."""
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise ValueError(f"{value!r} is not a number of steps")
    return value


@contextmanager
def torn(path: str) -> Iterator[None]:
    """Reports errors inside the block as a checkpoint at ``path`` whose state this version does not write."""
    try:
        yield
    except _TORN as error:
        if isinstance(error, CedarError):
            raise
        raise Damaged(
            f"the state in {path} cannot be taken: {type(error).__name__} {error}",
            fix="remove that folder, or take an older checkpoint",
        ) from error
