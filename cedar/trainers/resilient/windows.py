"""Sparse checkpoints of a pipeline (MoEvement, arXiv 2412.15411): each step of a window saves a part of every stage.

An operator is an expert or a parameter. Each step of a window writes a folder, called a slot. A slot contains weights
and moments of some operators, and only the weights of operators that later slots save completely. To restore, a stage
loads the first slot and redoes the window's steps. After each step, it overwrites its state with the next slot. An
operator is frozen until its moments are loaded; until then, it uses the weights that it had in the original run.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Literal

from cedar.core.errors import CedarError
from cedar.trainers.common.checkpoint import checked_step_count, path_of, read_index, say_damaged, step_of, steps, torn
from cedar.trainers.common.files import Damaged
from cedar.trainers.common.tensors import Part, Reader
from cedar.trainers.common.windows import choose_window, plan_window
from cedar.trainers.resilient.checkpoint import KINDS, Checkpoints
from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control.board import Epoch
from cedar.trainers.resilient.manager import MEASURED_STEPS, WARMUP_STEPS
from cedar.trainers.resilient.model import Engine, State

WINDOWS = "windows"  # folder within the run's folder
Operator = Mapping[str, range | None]  # parameters saved together: from name to rows; None: all rows
_EXPERT = re.compile(r"(?:.*\.)?experts?\.\d+(?=\.)")


def find_operators(engine: Engine, *, excluded: Iterable[str] = ()) -> list[Operator]:
    """Return the operators of a stage in the order in which they are saved, experts first. An expert is a numbered
    module in a module called ``experts``. For parameters with at least three dimensions whose name contains ``expert``,
    each row is an expert. Every other parameter is an operator. ``excluded``: parameters that another stage saves.
    """
    mixed = {id(layer.weights) for layer in engine.mixtures}
    parameters = {n: p for n, p in zip(engine.names, engine.parameters, strict=True) if n not in set(excluded)}
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
    """Writes and loads one worker's part of a run's windows. ``Checkpoints`` describes the other arguments.

    Args:
        window: steps per window; ``"auto"``: the smallest number that the storage can keep up with.
        stages: number of stages in the pipeline.
    """

    def __init__(
        self, folder: str, *args: Any, engine: Engine, window: int | Literal["auto"], stages: int, **more: Any
    ) -> None:
        super().__init__(folder, *args, **more)
        self._max_folders = sys.maxsize  # slots are removed when newer windows are complete
        self.stages, self.window = stages, 0 if window == "auto" else int(window)
        saved_elsewhere = list(self.layout.shapes)[: self.layout.shared if self.shared_elsewhere else 0]
        self._operators = find_operators(engine, excluded=saved_elsewhere)
        self._dtype = engine.parameters[0].dtype if engine.parameters else self.layout.dtype
        self._auto, self._times = window == "auto", list[float]()
        self.frozen: frozenset[str] = frozenset()  # parameters that the last loaded slot leaves entirely frozen

    # ---- saving ------------------------------------------------------------------------------------------------------

    def begin_step(self, state: State, epoch: Epoch) -> None:
        """Save this step's slot. Call this once for each step, with a state that will not be undone. A state with
        frozen operators is not saved, because the window that it was restored from already covers it.
        """
        if state.whole_at or not (self.window or self._auto):
            return
        if self._auto:
            self._measure(epoch)
        if self.window:
            self.save(state, epoch)

    def _measure(self, epoch: Epoch) -> None:
        """Choose the window's length from two measurements: the time of a full save, and the time of a step."""
        reported = self.board.get_all([keys.WINDOW(stage) for stage in range(self.stages)])
        if reported is not None:
            self.window, self._auto = max(reported), False
            return
        self._times.append(time.perf_counter())
        self.window = int(len(self._times) == 1)
        if len(self._times) == WARMUP_STEPS + MEASURED_STEPS + 1:
            self.wait()
            step = statistics.median(b - a for a, b in pairwise(self._times[WARMUP_STEPS:]))
            peers = sum(worker.stage == self.me.stage for worker in epoch.members)
            max_window = int(step * peers * self.last_write[0] / self.last_write[1])
            sizes, state, weights = self._sizes()
            window = choose_window(sizes, max_window, state=state, weights=weights)
            self.board.put_if_absent(keys.WINDOW(self.me.stage), window)

    def _sizes(self) -> tuple[list[int], int, int]:
        """Return the number of values of each operator, bytes of state per value, and bytes of weight per value."""
        pieces = {name: Part(piece) for name, piece in self.layout.pieces(self.layout.gather({})).items()}
        sizes = [sum(_rows(pieces[name], rows).box.size for name, rows in one.items()) for one in self._operators]
        return sizes, len(KINDS) * self.layout.dtype.itemsize, self._dtype.itemsize

    def _parts_to_save(self, state: State) -> dict[str, Part]:
        sizes, whole, weights = self._sizes()
        runs = plan_window(sizes, min(self.window, len(sizes)), state=whole, weights=weights) if sizes else []
        at = state.version % self.window
        if at >= len(runs):
            return {}
        parts = self._parts(state)
        own, later = _merge(self._operators[at] for at in runs[at]), _merge(self._operators[runs[at].stop :])
        saved = {f"{n}.{kind}": _rows(parts[f"{n}.{kind}"], rows) for n, rows in own.items() for kind in KINDS}
        for name, rows in later.items():
            part = _rows(parts[f"{name}.{KINDS[0]}"], rows)
            saved[f"{name}.weights"] = Part(part.tensor.to(self._dtype), part.whole, part.start)
        return saved

    def _extra_state(self, state: State, epoch: Epoch) -> dict[str, Any]:
        start = state.version - state.version % self.window
        return {"window": [start, start + self.window - 1, epoch.line]}

    def _is_complete(self, path: str) -> bool:
        return any(start <= step_of(path) <= last for start, last in whole_windows(self.folder).items())

    def _on_complete(self, version: int) -> None:
        """If a window is complete, let workers drop older logs, and remove old windows. Keep the previous window,
        because a lost stage may be about to load it.
        """
        whole = whole_windows(self.folder)
        if whole and max(whole.values()) == version:
            self.board.put(keys.PERSISTED(), max(whole))
            for step in steps(self.folder):
                if step < sorted(whole)[-self.keep - 1 :][0]:
                    shutil.rmtree(path_of(self.folder, step), ignore_errors=True)

    # ---- recovering --------------------------------------------------------------------------------------------------

    def contains(self, path: str) -> bool:
        """Whether a path is a slot of these windows."""
        return os.path.dirname(path) == self.folder

    def load(self, path: str) -> State:
        """Load this stage's state from the first slot of a window."""
        index = read_index(path)
        with torn(path):
            start, last = map(checked_step_count, index.state["window"][:2])
            self._check_data(path, index.state.get("loader"))
            self._check_window(start, last)
            state = State.initial(self.layout.gather({}))
            updates = checked_step_count(index.state["updates"])
            return self.thaw(State(start, updates, state.master, state.first, state.second, last), last)

    def thaw(self, state: State, last: int) -> State:
        """Return a state with the operators of its step's slot loaded. ``last``: the window's last step."""
        path = path_of(self.folder, state.version)
        index = read_index(path)
        # clone, because other objects may share the original vectors
        master, first, second = (getattr(state, kind).clone() for kind in KINDS)
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
        """Check that the slots together contain this stage's whole state, and the first slot all its weights."""
        slots = [read_index(path_of(self.folder, step)).entries for step in range(start, last + 1)]
        for name, part in self._parts(State.initial(self.layout.gather({}))).items():
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


def whole_windows(folder: str, on_damaged: Callable[[Damaged], object] = lambda _: None) -> dict[int, int]:
    """Return a mapping from first to last step of complete windows. No restore happened between a window's slots.
    ``on_damaged``: called with the error of each slot whose index cannot be read.
    """
    reported: dict[int, list[Any]] = {}
    for step in steps(folder):
        try:
            reported[step] = read_index(path_of(folder, step)).state["window"]
        except Damaged as error:  # damaged, or another process has just removed it
            on_damaged(error)
    return {
        start: last
        for step, (start, last, line) in reported.items()
        if step == start and all(reported.get(at) == [start, last, line] for at in range(start, last + 1))
    }


def newest_window(folder: str, until: int, *, thorough: bool = False) -> str:
    """Return the path of the first slot of the newest window that ends by step ``until``; empty if there is none.
    Damaged windows are reported on stderr. ``thorough``: also read all tensors and compare their hashes.
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


def forget_windows(folder: str, kept: str) -> None:
    """Remove all slots outside the window that starts with ``kept``, since a resumed run may take different steps."""
    whole = [run for run in whole_windows(folder).items() if path_of(folder, run[0]) == kept]
    for step in steps(folder):
        if not any(start <= step <= last for start, last in whole):
            shutil.rmtree(path_of(folder, step), ignore_errors=True)


def _rows(part: Part, rows: range | None) -> Part:
    if rows is None:
        return part
    return Part(part.tensor[rows.start : rows.stop], part.shape, (rows.start, *(0 for _ in part.shape[1:])))


def _merge(operators: Iterable[Operator]) -> dict[str, range | None]:
    """Merge operators into one mapping from parameter to rows; the rows of a parameter must be consecutive."""
    merged: dict[str, range | None] = {}
    for name, rows in (pair for one in operators for pair in one.items()):
        before = merged.get(name)
        merged[name] = rows if before is None or rows is None else range(before.start, rows.stop)
    return merged
