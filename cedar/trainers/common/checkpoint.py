"""The checkpoint format of all trainers: raw tensors and a JSON index with a hash of each tensor, without pickles.

A checkpoint is a folder ``step-00000040``. Each rank writes one file of tensors; rank 0 writes ``index.json`` last,
with a digest of itself. The folder gets its final name only after all ranks have finished, so it is always complete.
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
from cedar.trainers.common.files import Damaged, Unreadable, not_written, read_sealed, sync_folder, write_sealed
from cedar.trainers.common.group import Group
from cedar.trainers.common.tensors import Entry, Part, Reader, entries_of, write_parts


class BackgroundWriter:
    """Runs one checkpoint write at a time in a background thread."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def begin(self, work: Callable[[], object], *, here: bool = False) -> None:
        """Start ``work`` after the previous write has finished. ``here``: run ``work`` in the calling thread."""
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
        """Wait until the current write has finished, and raise its error if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise CedarError(
                f"a checkpoint could not be written into {self.folder}: {getattr(error, 'what', error)}",
                done="older checkpoints are unchanged", fix="check the free space and the permissions of that folder",
            ) from error  # fmt: skip


INDEX, FORMAT = "index.json", "cedar checkpoint 1"
NAME = re.compile(r"step-(\d{8,12})")
_FORMER_FILES = (".metadata", "state.json")  # files of the earlier checkpoint format, which contained pickles
_BAD_STATE = (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RuntimeError, RecursionError)


class CheckpointedTrainer(Protocol):
    """The interface that checkpoints require of a trainer."""

    group: Group
    step: int
    device: torch.device

    @property
    def files(self) -> Mapping[str, str]:
        """Files to copy into each checkpoint, as a dict from the path within the checkpoint to the source path."""

    def state_dict(self) -> dict[str, Any]:
        """Return the trainer's state without tensors, as JSON values. All ranks must call this method."""

    def parts(self) -> dict[str, Part]:
        """Return this rank's tensors by name; a tensor has the same name on every rank."""

    def check(self, state: Mapping[str, Any], path: str) -> None:
        """Raise if the state belongs to another model, other data or other settings."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state_dict``. The tensors are read after this call returns."""

    def loaded(self) -> None:
        """Finish loading. Called after all tensors have been read."""


@dataclass(frozen=True)
class Index:
    """The parsed content of ``index.json``."""

    state: dict[str, Any]
    entries: dict[str, Entry]


def steps(folder: str) -> list[int]:
    """Return the step numbers of all checkpoints in a folder, including damaged ones, oldest first."""
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
    """Return the number of training steps in a checkpoint's name; 0 if the path does not name a checkpoint.

    Examples:
        >>> step_of("runs/checkpoints/step-00000040")
        40
    """
    match = NAME.fullmatch(os.path.basename(path))
    return 0 if match is None else int(match[1])


def write_index(path: str, state: Mapping[str, Any], reported: Sequence[Any], name: str = INDEX) -> None:
    """Write the index. ``reported``: the results of ``write_parts`` from all ranks."""
    write_sealed(os.path.join(path, name), {"format": FORMAT, "state": dict(state), "tensors": list(reported)})


def read_index(path: str, name: str = INDEX) -> Index:
    """Read the index of a checkpoint.

    Raises:
        Damaged: the index is missing, truncated or altered.
        CedarError: the checkpoint has the format of earlier versions.
    """
    file = os.path.join(path, name)
    if not os.path.exists(file) and any(os.path.exists(os.path.join(path, former)) for former in _FORMER_FILES):
        raise CedarError(
            f"{path} has the format of earlier versions, which contains pickles: reading them could run code",
            done="nothing was loaded",
            fix="if no other user can write there, cedar.trainers.common.dcp.import_dcp(OLD, NEW, trust=True) converts"
            " those of dlrm and moe; else set run.folder to another folder and start again",
        )
    index = read_sealed(file)
    if index.get("format") != FORMAT or not isinstance(index.get("state"), dict):
        raise Damaged(f"{file} is not a checkpoint index", done="nothing was loaded", fix="remove that folder")
    return Index(index["state"], entries_of(index.get("tensors"), file))


def newest(folder: str, *, thorough: bool = False) -> str:
    """Return the path of the newest checkpoint with an intact index, or an empty string. Report damaged checkpoints on
    stderr. ``thorough``: also read all tensors and compare their hashes; raise an error if a file cannot be read.
    """
    for step in reversed(steps(folder)):
        path = path_of(folder, step)
        try:
            index = read_index(path)
            if thorough:
                with Reader(path, index.entries) as reader:
                    reader.verify_all()
        except Damaged as error:
            say_damaged(error, skip_unreadable=not thorough)
            continue
        return path
    return ""


def set_aside(folder: str, after: int) -> None:
    """Rename the checkpoints after this step, which are damaged, to ``step-00000040.damaged``. Otherwise, a later
    restore could use them, and new checkpoints of earlier steps would be removed as old.
    """
    for path in [path_of(folder, step) for step in steps(folder) if step > after]:
        shutil.rmtree(f"{path}.damaged", ignore_errors=True)
        os.rename(path, f"{path}.damaged")
        sys.stderr.write(f"renamed {path} to {path}.damaged\n")


def say_damaged(error: Damaged, *, skip_unreadable: bool = False) -> None:
    """Report on stderr that a damaged checkpoint is skipped. Raise ``error`` if the checkpoint may be intact, unless
    ``skip_unreadable``.
    """
    if isinstance(error, Unreadable) and not skip_unreadable:
        raise error
    sys.stderr.write(f"{error}\nskipping it; an older checkpoint is used\n")


def rename_whole(aside: str, path: str, keep: int) -> None:
    """Rename a completely written checkpoint to its final name, and remove all but the newest ``keep`` checkpoints."""
    folder = os.path.dirname(path)
    shutil.rmtree(path, ignore_errors=True)
    os.rename(aside, path)
    sync_folder(folder)
    for step in steps(folder)[:-keep]:
        shutil.rmtree(path_of(folder, step), ignore_errors=True)


class Checkpoints:
    """Saves and loads the checkpoints of a data-parallel trainer in a folder that all ranks share. ``keep``: the number
    of checkpoints to keep; ``beside``: copy the tensors and write the copy in a thread while training continues.
    """

    def __init__(self, folder: str, trainer: CheckpointedTrainer, *, keep: int = 2, beside: bool = False) -> None:
        self.folder, self.trainer, self.group = folder, trainer, trainer.group
        self.keep, self.beside = keep, beside
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise not_written(folder, error) from error
        self.group.side  # noqa: B018 - creates the writer thread's process group, on all ranks at the same point
        self._writing = BackgroundWriter(folder)

    def save(self) -> str:
        """Start saving the trainer's current state, and return the checkpoint's path, which exists after ``wait``."""
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
        """Wait for the current write. If the block raised an error, suppress an error of the write."""
        with suppress(CedarError) if kind is not None else nullcontext():
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is complete."""
        self._writing.wait()

    def _write(self, path: str, state: dict[str, Any], mine: dict[str, Part]) -> None:
        aside, first = path + ".part", self.group.rank == 0
        self._run_on_all_ranks(lambda: self._prepare(aside) if first else None)
        reported = self._run_on_all_ranks(lambda: write_parts(aside, f"rank-{self.group.rank}.safetensors", mine))

        def finish() -> None:
            write_index(aside, state, [line for lines in reported for line in lines])
            rename_whole(aside, path, self.keep)

        self._run_on_all_ranks(finish if first else lambda: None)

    def _prepare(self, aside: str) -> None:
        for name in os.listdir(self.folder):
            if name.endswith(".part") and NAME.fullmatch(name.removesuffix(".part")):  # from a killed run
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        os.makedirs(aside)
        for name, source in self.trainer.files.items():
            os.makedirs(os.path.dirname(os.path.join(aside, name)), exist_ok=True)
            shutil.copyfile(source, os.path.join(aside, name))

    def _run_on_all_ranks(self, work: Callable[[], Any]) -> list[Any]:
        """Run ``work`` on each rank, and return all ranks' results as JSON values. If a rank fails, all ranks raise."""
        value, error = None, None
        try:
            value = work()
        except Exception as failed:  # noqa: BLE001 - raised below
            error = failed
        reported = self.group.tell([None if error is None else getattr(error, "what", str(error)), value])
        if error is not None:
            raise error
        for rank, (why, _) in enumerate(reported):
            if why is not None:
                raise OSError(f"rank {rank}: {why}")
        return [value for _, value in reported]

    def resume(self) -> str:
        """Load the newest intact checkpoint, from any number of ranks. Return its path, or "" if there is none.

        Damaged checkpoints are reported on stderr, skipped, and renamed once an older one has been loaded.
        """
        saved_steps = steps(self.folder)
        self.group.agree(
            {"the newest checkpoint": saved_steps}, "give all ranks a run.folder that they share", self.trainer.device
        )
        damaged: Damaged | None = None
        for step in reversed(saved_steps):
            try:
                self.load(path_of(self.folder, step))
            except Unreadable:
                raise
            except Damaged as error:
                damaged = error
                if self.group.rank == 0:
                    say_damaged(error)
            else:
                if self.group.rank == 0:
                    set_aside(self.folder, step)
                return path_of(self.folder, step)
        if damaged is not None:
            raise damaged
        return ""

    def load(self, path: str) -> None:
        """Restore the trainer from a checkpoint, which may have been saved with a different number of ranks.

        Raises:
            Damaged: a file is missing, truncated or altered, or ``Unreadable``; the trainer is unchanged.
            CedarError: it has another model, other data or settings, or an earlier format; the trainer is unchanged.
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
        kinds = [Damaged, Unreadable, CedarError]  # all ranks raise the last kind that any rank reports
        kind = -1 if problem is None else kinds.index(type(problem)) if isinstance(problem, Damaged) else 2
        last, what = max(self.group.tell([kind, "" if problem is None else problem.what]))
        if last > kind:
            problem = kinds[last](what, done="nothing was loaded")
        if problem is not None or reader is None:
            if reader is not None:
                reader.close()
            assert problem is not None
            raise problem
        with reader, torn(path):
            self.trainer.load_state_dict(index.state)
            reader.read(parts)
        self.trainer.loaded()


def check_settings(saved_with: Mapping[str, Any], here: Mapping[str, Any], path: str) -> None:
    """Raise if a checkpoint's settings, as JSON values, differ from the current ones. Mappings are compared by key."""
    odd = []
    for key, own in json.loads(json.dumps(here)).items():
        saved = saved_with.get(key)
        if isinstance(own, dict) and isinstance(saved, dict):
            names = [name for name in {**own, **saved} if own.get(name) != saved.get(name)]
            odd += [f"{key} {name} was {saved.get(name)!r} and is now {own.get(name)!r}" for name in names]
        elif saved != own:
            odd.append(f"{key} was {saved!r} and is now {own!r}")
    if odd:
        raise CedarError(
            f"{path} was saved with other settings: {'; '.join(odd[:8])}", done="nothing was loaded",
            fix="use the settings and vocabularies that it was saved with, or set another run.folder",
        )  # fmt: skip


def checked_step_count(value: Any) -> int:
    """Return the number of steps in a saved state, or raise ``ValueError`` if it is invalid."""
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise ValueError(f"{value!r} is not a number of steps")
    return value


@contextmanager
def torn(path: str) -> Iterator[None]:
    """Report errors inside the block as a damaged checkpoint at ``path``."""
    try:
        yield
    except _BAD_STATE as error:
        if isinstance(error, CedarError):
            raise
        raise Damaged(
            f"the state in {path} cannot be loaded: {type(error).__name__} {error}",
            fix="remove that folder, or resume from an older checkpoint",
        ) from error
