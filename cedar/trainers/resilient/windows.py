"""Sparse checkpoints of a pipeline (MoEvement, arXiv 2412.15411): each step of a window saves a part of every stage.

A window is a folder for each of its steps, its slots. An operator is an expert or a parameter. A slot holds the weights
and the moments of its own operators, the weights alone of those whose turn comes later, and nothing of the others. A
stage begins with the first slot and takes the steps again; after each of them what the next slot holds takes the place
of what was stepped: so frozen operators compute with the weights that they had, and none is stepped before its turn.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Literal

from cedar.core.errors import CedarError
from cedar.trainers.common.checkpoint import path_of, read_index, say_damaged, steps, torn, whole_number
from cedar.trainers.common.files import Damaged
from cedar.trainers.common.tensors import Part, Reader
from cedar.trainers.common.windows import choose_window, plan_window
from cedar.trainers.resilient.checkpoint import KINDS, Checkpoints
from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control.board import Epoch
from cedar.trainers.resilient.model import Engine, State

WINDOWS = "windows"  # in the run's folder
WARM, LOOK = 2, 5  # steps that are left out, and steps that are measured
Operator = Mapping[str, range | None]  # what is saved together: parameters, each with its rows, or None for all of it
_EXPERT = re.compile(r"(?:.*\.)?experts?\.\d+(?=\.)")


def find_operators(engine: Engine, *, but: Iterable[str] = ()) -> list[Operator]:
    """The operators of a stage in the order in which they are saved: experts first. An expert is a module with a number
    in one that is called ``experts``, or a row of the parameters with three dimensions or more of a module that has
    ``expert`` in its name or theirs; anything else is an operator by itself, each parameter. ``but``: parameters that
    another stage saves.
    """
    mixed = {id(layer.weights) for layer in engine.mixtures}
    parameters = {n: p for n, p in zip(engine.names, engine.parameters, strict=True) if n not in set(but)}
    stacks = {
        (name.rpartition(".")[0], parameter.shape[0])
        for name, parameter in parameters.items()
        if ("expert" in name and parameter.dim() > 2) or id(parameter) in mixed
    }
    experts: dict[tuple[str, int], dict[str, range | None]] = {}
    rest: list[Operator] = []
    for name, parameter in parameters.items():
        numbered, stack = _EXPERT.match(name), (name.rpartition(".")[0], *parameter.shape[:1])
        if numbered:
            experts.setdefault((numbered[0], -1), {})[name] = None
        elif stack in stacks:
            for row in range(parameter.shape[0]):
                experts.setdefault((f"{stack[0]} {parameter.shape[0]}", row), {})[name] = range(row, row + 1)
        else:
            rest.append({name: None})
    return [*experts.values(), *rest]


class SparseCheckpoints(Checkpoints):
    """One worker's part in the windows of a run, one after the other; see ``Checkpoints`` for the rest.

    Args:
        window: steps of one; ``"auto"``: as few as take no longer to write than the steps do.
        stages: of the pipeline.
    """

    def __init__(
        self, folder: str, *args: Any, engine: Engine, window: int | Literal["auto"], stages: int, **more: Any
    ) -> None:
        super().__init__(folder, *args, **more)
        self._most = sys.maxsize  # slots go when newer windows are whole
        self.stages, self.window = stages, 0 if window == "auto" else window
        elsewhere = list(self.layout.shapes)[: self.layout.shared if self.shared_elsewhere else 0]
        self._operators = find_operators(engine, but=elsewhere)
        self._dtype = engine.parameters[0].dtype if engine.parameters else self.layout.dtype
        self._auto, self._times = window == "auto", list[float]()
        self.frozen: frozenset[str] = frozenset()  # parameters no part of which the last slot read has thawed

    # ---- saving ------------------------------------------------------------------------------------------------------

    def begin_step(self, state: State, epoch: Epoch) -> None:
        """Save what the step from this state on saves; call it once for each step that is taken, when the state can
        not change any more. A state that is not whole yet is part of the window that it comes from.
        """
        if state.whole_at or not (self.window or self._auto):
            return
        if self._auto:
            self._measure(epoch)
        if self.window:
            self.save(state, epoch)

    def _measure(self, epoch: Epoch) -> None:
        """The first step saves all, as a window of one step; those after it tell how long a step takes."""
        reported = self.board.take_all([keys.WINDOW(stage) for stage in range(self.stages)])
        if reported is not None:
            self.window, self._auto = max(reported), False
            return
        self._times.append(time.perf_counter())
        self.window = int(len(self._times) == 1)
        if len(self._times) == WARM + LOOK + 1:
            self.wait()
            step = statistics.median(b - a for a, b in pairwise(self._times[WARM:]))
            peers = sum(worker.stage == self.me.stage for worker in epoch.members)
            most = int(step * peers * self.wrote[0] / self.wrote[1])
            sizes, state, weights = self._sizes()
            self.board.first(keys.WINDOW(self.me.stage), choose_window(sizes, most, state=state, weights=weights))

    def _sizes(self) -> tuple[list[int], int, int]:
        """The values of each operator; bytes of a value's state, and of its weight."""
        pieces = {name: Part(piece) for name, piece in self.layout.pieces(self.layout.gather({})).items()}
        sizes = [sum(_rows(pieces[name], rows).box.size for name, rows in one.items()) for one in self._operators]
        return sizes, len(KINDS) * self.layout.dtype.itemsize, self._dtype.itemsize

    def _saved(self, state: State) -> dict[str, Part]:
        sizes, whole, weights = self._sizes()
        runs = plan_window(sizes, min(self.window, len(sizes)), state=whole, weights=weights) if sizes else []
        at = state.version % self.window
        if at >= len(runs):
            return {}
        parts = self._parts(state)
        own, later = _merged(self._operators[at] for at in runs[at]), _merged(self._operators[runs[at].stop :])
        saved = {f"{n}.{kind}": _rows(parts[f"{n}.{kind}"], rows) for n, rows in own.items() for kind in KINDS}
        for name, rows in later.items():
            part = _rows(parts[f"{name}.{KINDS[0]}"], rows)
            saved[f"{name}.weights"] = Part(part.tensor.to(self._dtype), part.whole, part.start)
        return saved

    def _more(self, state: State, epoch: Epoch) -> dict[str, Any]:
        start = state.version - state.version % self.window
        return {"window": [start, start + self.window - 1, epoch.line]}

    def _named(self, version: int) -> None:
        """The last slot makes a window whole: logs from before it are not needed any more, nor older windows, but for
        the one before it, which a lost stage may be about to load.
        """
        whole = whole_windows(self.folder)
        if whole and max(whole.values()) == version:
            self.board.put(keys.PERSISTED(), max(whole))
            for step in steps(self.folder):
                if step < sorted(whole)[-self.keep - 1 :][0]:
                    shutil.rmtree(path_of(self.folder, step), ignore_errors=True)

    # ---- recovering --------------------------------------------------------------------------------------------------

    def holds(self, path: str) -> bool:
        """Whether a checkpoint is one of these."""
        return os.path.dirname(path) == self.folder

    def load(self, path: str) -> State:
        """This stage's state in the first slot of a window."""
        index = read_index(path)
        with torn(path):
            start, last = map(whole_number, index.state["window"][:2])
            self._check_data(path, index.state.get("loader"))
            self._check_window(start, last)
            state = State.begin(self.layout.gather({}))
            updates = whole_number(index.state["updates"])
            return self.thaw(State(start, updates, state.master, state.first, state.second, last), last)

    def thaw(self, state: State, last: int) -> State:
        """The state in which what the slot of its version holds has taken its place. ``last``: step of the window."""
        path = path_of(self.folder, state.version)
        index = read_index(path)
        master, first, second = (getattr(state, kind).clone() for kind in KINDS)  # others may hold the same vectors
        whole = last if state.version < last else 0
        thawed = State(state.version, state.updates, master, first, second, whole)
        parts = self._parts(thawed)
        weights = {name: f"{name}.weights" for name in self.layout.shapes if f"{name}.weights" in index.entries}
        parts |= {entry: parts[f"{name}.{KINDS[0]}"] for name, entry in weights.items()}
        with torn(path), Reader(path, index.entries) as reader:
            reader.read({name: part for name, part in parts.items() if name in index.entries})
        saved = {name: sum(piece.box.size for piece in index.entries[entry].pieces) for name, entry in weights.items()}
        self.frozen = frozenset(name for name, size in saved.items() if size == parts[weights[name]].box.size)
        return thawed

    def _check_window(self, start: int, last: int) -> None:
        """That the slots have all of this stage together, and the first one all of its weights."""
        slots = [read_index(path_of(self.folder, step)).entries for step in range(start, last + 1)]
        for name, part in self._parts(State.begin(self.layout.gather({}))).items():
            found = [slot[name] for slot in slots if name in slot]
            sizes = [sum(piece.box.size for entry in found for piece in entry.pieces)]
            if (weight := name.removesuffix(f".{KINDS[0]}")) != name:
                first = [slots[0][entry] for entry in (name, f"{weight}.weights") if entry in slots[0]]
                sizes.append(sum(piece.box.size for entry in first for piece in entry.pieces))
            kinds = {(entry.dtype, entry.shape) for entry in found}
            if set(sizes) != {part.box.size} or kinds - {(part.tensor.dtype, part.shape)}:
                raise CedarError(
                    f"{path_of(self.folder, start)} does not fit this model or its settings: {name} is missing or has"
                    " another shape or dtype", done="nothing was loaded",
                    fix="resume with the model and the settings that it was saved with, or set another run.folder",
                )  # fmt: skip


def whole_windows(folder: str) -> dict[int, int]:
    """The windows all of whose slots are there, saved by one line of steps: of each its first step and its last."""
    reported: dict[int, list[Any]] = {}
    for step in steps(folder):
        try:
            reported[step] = read_index(path_of(folder, step)).state["window"]
        except Damaged:  # or it has just been removed
            continue
    return {
        start: last
        for step, (start, last, line) in reported.items()
        if step == start and all(reported.get(at) == [start, last, line] for at in range(start, last + 1))
    }


def newest_window(folder: str, until: int, *, thorough: bool = False) -> str:
    """The first slot of the newest window that is whole before step ``until``; damaged ones are named on stderr; empty
    if there is none. ``thorough``: read all tensors, too, and compare their hashes.
    """
    for start, last in sorted(whole_windows(folder).items(), reverse=True):
        try:
            for path in [path_of(folder, step) for step in range(start, last + 1) if thorough]:
                with Reader(path, read_index(path).entries) as reader:
                    reader.verify_pieces()
        except Damaged as error:
            say_damaged(error)
            continue
        if last <= until:
            return path_of(folder, start)
    return ""


def forget_windows(folder: str, but: str) -> None:
    """Remove all slots but those of the window that begins with ``but``: a run that continues may take another way."""
    whole = [run for run in whole_windows(folder).items() if path_of(folder, run[0]) == but]
    for step in steps(folder):
        if not any(start <= step <= last for start, last in whole):
            shutil.rmtree(path_of(folder, step), ignore_errors=True)


def _rows(part: Part, rows: range | None) -> Part:
    if rows is None:
        return part
    return Part(part.tensor[rows.start : rows.stop], part.shape, (rows.start, *(0 for _ in part.shape[1:])))


def _merged(operators: Iterable[Operator]) -> dict[str, range | None]:
    """Of each parameter the rows of all of these; rows of a parameter follow one another."""
    merged: dict[str, range | None] = {}
    for name, rows in (pair for one in operators for pair in one.items()):
        before = merged.get(name)
        merged[name] = rows if before is None or rows is None else range(before.start, rows.stop)
    return merged
