"""Sparse checkpoints: each step of a window saves a part of the model, so that no step saves the whole model.

A window does not contain the complete state of any single step. Recovery replays the window's steps: operators whose
state has been loaded are trained, and the others compute with saved weights. Frozen experts get no gradients, so the
global gradient norm is unknown. Clip factors, skips, rates, counts and biases therefore come from a log of all steps.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch

from cedar.core.errors import CedarError
from cedar.trainers.common.checkpoint import checked_step_count, read_index, torn, write_index
from cedar.trainers.common.files import Damaged, finite, replacing, seal, unseal
from cedar.trainers.common.group import Group
from cedar.trainers.common.tensors import Part, Reader, write_parts
from cedar.trainers.common.windows import plan_window
from cedar.trainers.moe.optimizer import Outcome, ReplayRecord

if TYPE_CHECKING:
    from cedar.trainers.moe.trainer import Trainer

_WINDOW = re.compile(r"window-(\d{8})\.(\d+)x(\d+)")  # first step, number of ranks, number of steps
_FREE = (  # settings that a replay takes from the log or that do not affect it
    "optimizer.rate", "optimizer.least", "optimizer.warmup", "optimizer.schedule", "optimizer.clip",
    "optimizer.most_skips", "run.steps", "run.evaluate_every", "run.save_every", "run.keep", "run.save_async",
)  # fmt: skip
Operator = tuple[int, int]  # (part, slice)


class SparseCheckpoints:
    """The windows of a run, in a folder that all ranks share.

    Call ``before_step`` before every step. Each rank saves its own slices; a thread writes them.
    """

    def __init__(self, folder: str, trainer: Trainer, window: int, *, keep: int = 1) -> None:
        self.folder, self.trainer, self.window, self.keep = folder, trainer, window, keep
        self.group: Group = trainer.group
        rows = sum(len(part.shards.slices) for part in trainer.optimizer.parts)
        if not 1 <= window <= rows:
            raise CedarError(
                f"cannot split {rows} operators over a sparse window of {window} steps",
                fix=f"set run.sparse_window to 1 to {rows}",
            )
        os.makedirs(folder, exist_ok=True)
        self.bytes: list[int] = []  # bytes that this rank saved, by step
        self._plan: list[list[Operator]] = []
        self._start = -1
        self._thread = ThreadPoolExecutor(1, "sparse-checkpoint")
        self._writing: list[Future[None]] = []
        self._log = os.path.join(folder, "log.jsonl")
        self._last_record: ReplayRecord | None = None  # the last step, which is not in the log yet
        trainer.log = self._keep_record

    # ---- saving ------------------------------------------------------------------------------------------------------

    def before_step(self) -> None:
        """Save this step's part of the window."""
        self._check()
        self._write_log()
        if self._start < 0:
            self._discard_later_steps()
        at = self.trainer.step - self._start
        if self._start < 0 or at >= self.window:
            self._start, at = self.trainer.step, 0
            self._plan = self._cut()
            self._remove_old_windows()
        own, later = self._plan[at], [op for slot in self._plan[at + 1 :] for op in slot]
        saved = {_name("active", op): torch.stack(self._state(op)).cpu() for op in own}
        saved |= {_name("later", op): self._weights(op).cpu() for op in later}
        self.bytes.append(sum(value.nbytes for value in saved.values()))
        about = {
            "plan": self._plan[at:], "counts": [float(self._moments(op)["step"]) for op in own],
            "trainer": self.trainer.state_dict() if at == 0 else None,
        }  # fmt: skip
        wait(self._writing[: 1 - self.window or None])  # so that a slow disk delays training, not fills memory
        self._writing.append(
            self._thread.submit(self._write, self._path(self._start, at, self.group.rank), about, saved)
        )

    def _cut(self) -> list[list[Operator]]:
        """Return the operators of each step: experts from the least popular on, then replicated parameters."""
        parts = self.trainer.optimizer.parts
        experts = [
            (layer.basis[row], at, row)
            for at, layer in enumerate(self.trainer.layers, 1)
            for row in range(parts[at].shards.rows)
        ]
        order = [(at, row) for _, at, row in sorted(experts)] + [(0, row) for row in range(len(parts[0].shards.slices))]
        sizes = [len(parts[at].shards.slices[row]) for at, row in order]
        shards = parts[0].shards
        state, weights = 3 * shards.master.element_size(), shards.dtype.itemsize
        return [[order[at] for at in run] for run in plan_window(sizes, self.window, state=state, weights=weights)]

    def _path(self, start: int, at: int, rank: int) -> str:
        name = f"window-{start:08d}.{self.group.size}x{self.window}"
        return os.path.join(self.folder, name, f"slot-{at}.rank-{rank}")

    @staticmethod
    def _write(path: str, about: dict[str, Any], saved: dict[str, torch.Tensor]) -> None:
        folder, name = os.path.split(path)
        os.makedirs(folder, exist_ok=True)
        reported = write_parts(folder, f"{name}.safetensors", {key: Part(value) for key, value in saved.items()})
        write_index(folder, about, reported, f"{name}.json")

    def _keep_record(self, done: ReplayRecord) -> None:
        """Remember a step, to log it when the next step begins. Only then have the step's metrics been reported; if the
        run stops before, a resumed run repeats the step.
        """
        self._last_record = done

    def _write_log(self) -> None:
        done, self._last_record = self._last_record, None
        if done is not None and self.group.rank == 0:
            with open(self._log, "ab") as file:
                file.write(seal(finite(asdict(done))))

    def _logged(self) -> dict[int, ReplayRecord]:
        """Return the logged steps, without those whose line is damaged."""
        by_step: dict[int, ReplayRecord] = {}
        with suppress(FileNotFoundError), open(self._log, "rb") as file:
            for line in file:
                with suppress(Damaged), torn(self._log):
                    logged = _logged(unseal(line, self._log))
                    by_step[logged.step] = logged
        return by_step

    def _check(self) -> None:
        done = [future for future in self._writing if future.done()]
        self._writing = [future for future in self._writing if not future.done()]
        for future in done:
            if (error := future.exception()) is not None:
                raise CedarError(
                    f"a part of a sparse checkpoint could not be written into {self.folder}: {error}",
                    done="complete windows are unchanged",
                    fix="check the free space and the permissions of that folder",
                ) from error

    def _remove_old_windows(self) -> None:
        """Remove windows that newer complete windows replace, and the log before the oldest remaining window."""
        whole = self._own_windows() if self.group.rank == 0 else []
        if len(whole) > self.keep:
            self._remove_other_steps(range(whole[-self.keep], sys.maxsize))

    def _discard_later_steps(self) -> None:
        """Remove data that an earlier run saved for later steps, because this run may diverge from that run."""
        if self.group.rank == 0:
            self._remove_other_steps(range(self.trainer.step))
        self.group.add(torch.zeros(1, device=self.trainer.device), "metrics")  # barrier: no rank writes earlier

    def _remove_other_steps(self, steps: range) -> None:
        """Remove windows that are not entirely within ``steps``, and log entries of steps outside."""
        for name in os.listdir(self.folder):
            if match := _WINDOW.fullmatch(name):
                start, _, window = map(int, match.groups())
                if not (start in steps and start + window - 1 in steps):
                    shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        kept = [seal(finite(asdict(logged))) for step, logged in self._logged().items() if step in steps]
        with replacing(self._log) as file:
            file.writelines(kept)

    def wait(self) -> None:
        """Wait until everything saved so far has been written."""
        wait(self._writing)
        self._check()

    def close(self) -> None:
        """Wait until everything has been written, and stop saving."""
        self._thread.shutdown(wait=True)
        self._check()
        self._write_log()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # the last step is not logged, so that a resumed run repeats it
            self._thread.shutdown(wait=True)

    # ---- recovering --------------------------------------------------------------------------------------------------

    def _complete_windows(self) -> Iterator[tuple[int, int, int]]:
        """Yield (first step, number of ranks, number of steps) of the windows that all ranks have saved completely."""
        for name in sorted(os.listdir(self.folder)):
            if match := _WINDOW.fullmatch(name):
                start, ranks, window = map(int, match.groups())
                slots = (f"slot-{at}.rank-{rank}.json" for at in range(window) for rank in range(ranks))
                if all(os.path.exists(os.path.join(self.folder, name, slot)) for slot in slots):
                    yield start, ranks, window

    def _own_windows(self) -> list[int]:
        """Return the first steps of the complete windows with this run's ranks and number of steps."""
        own = self.group.size, self.window
        return [start for start, *saved_with in self._complete_windows() if tuple(saved_with) == own]

    def check_unused(self) -> None:
        """Raise if a run that continues without the windows would remove one that reaches beyond the trainer's step."""
        step, until = self.trainer.step, max(self._logged(), default=-1) + 1
        for start, ranks, window in reversed(list(self._complete_windows())):
            end = start + window
            if end <= step or end == until + 1:  # the run stopped in the window's last step, so it cannot be replayed
                continue
            why, fix = f"steps are missing in {self._log}, or damaged", ""
            if (ranks, window) != (self.group.size, self.window):
                why = f"they were saved by {ranks} ranks with run.sparse_window = {window}"
                fix = f"resume with {ranks} ranks and run.sparse_window={window}, or "
            raise CedarError(
                f"the sparse checkpoints of steps {start} to {end - 1} in {self.folder} cannot be used: {why}",
                done=f"the run did not start from step {step}, and no sparse checkpoint was removed",
                fix=f"{fix}remove {self.folder} to start from step {step}",
            )

    def end(self) -> int | None:
        """Return the number of steps that ``recover`` would reach; None without a complete window."""
        steps = self._logged()
        until = max(steps, default=-1) + 1
        return until if self._recovery_start(until, steps) is not None else None

    def _recovery_start(self, until: int, logged: Collection[int]) -> int | None:
        """Return the first step of the last complete window from which all steps before ``until`` are logged."""
        whole = [start for start in self._own_windows() if start + self.window <= until]
        return whole[-1] if whole and set(range(whole[-1], until)).issubset(logged) else None

    def recover(self, until: int | None = None) -> None:
        """Restore the trainer bit for bit to its state after ``until`` steps; None: after the last logged step."""
        log = self._logged()
        until = until if until is not None else max(log, default=-1) + 1
        start = self._recovery_start(until, log)
        if start is None:
            raise CedarError(
                f"{self.folder} holds no window of {self.window} steps by {self.group.size} ranks before step {until}",
                done="nothing was loaded",
                fix="recover with the same number of ranks and run.sparse_window, or use a dense checkpoint",
            )
        self._begin(start)
        for at in range(self.window):
            last = at + 1 == self.window
            self.trainer.train_step(log[start + at], None if last else partial(self._load, start, at + 1))
        while self.trainer.step < until:
            self.trainer.train_step(log[self.trainer.step])
        self._start = -1  # start a new window at the next step

    def _begin(self, start: int) -> None:
        path = self._path(start, 0, self.group.rank)
        index = read_index(*os.path.split(f"{path}.json"))
        with torn(path):
            state = index.state["trainer"]
            self.trainer.check(state, path, _FREE)
            self.trainer.load_state_dict(state)
        self._load(start, 0)
        self.trainer.optimizer.publish()

    def _load(self, start: int, at: int) -> None:
        """Load the state of this step's operators. Operators of later steps stay frozen, with weights saved here."""
        folder, name = os.path.split(self._path(start, at, self.group.rank))
        index = read_index(folder, f"{name}.json")
        with torn(folder), Reader(folder, index.entries) as reader:
            own, later = index.state["plan"][0], [op for slot in index.state["plan"][1:] for op in slot]
            counts = [float(count) for count in index.state["counts"]]
            active = {tuple(op): torch.stack(self._state(op)) for op in own}
            frozen = {tuple(op): self._weights(op) for op in later}
            wanted = {_name("active", op): Part(value) for op, value in active.items()}
            wanted |= {_name("later", op): Part(value) for op, value in frozen.items()}
            reader.check(wanted)
            reader.read(wanted)
        parts = self.trainer.optimizer.parts
        for part in parts:
            part.shards.frozen = {}
        for (at_part, row), value in frozen.items():
            parts[at_part].shards.frozen[row] = value
        for (op, value), count in zip(active.items(), counts, strict=True):
            for values, saved in zip(self._state(op), value, strict=True):
                values.copy_(saved)
            self._moments(op)["step"].fill_(count)

    def _moments(self, op: Operator) -> dict[str, torch.Tensor]:
        optimizer = self.trainer.optimizer
        moments: dict[str, torch.Tensor] = optimizer.inner.state[optimizer.parts[op[0]].shards.slices[op[1]]]
        return moments

    def _state(self, op: Operator) -> list[torch.Tensor]:
        moments, master = self._moments(op), self.trainer.optimizer.parts[op[0]].shards.slices[op[1]].detach()
        return [master, moments["exp_avg"], moments["exp_avg_sq"]]

    def _weights(self, op: Operator) -> torch.Tensor:
        shards = self.trainer.optimizer.parts[op[0]].shards
        return shards.slices[op[1]].detach().to(shards.dtype, copy=True)


def _name(kind: str, operator: Operator) -> str:
    return f"{kind} {operator[0]}/{operator[1]}"


def _logged(line: dict[str, Any]) -> ReplayRecord:
    outcome = line["outcome"]
    return ReplayRecord(
        checked_step_count(line["step"]),
        tuple(map(tuple, line["counts"])),
        Outcome(
            math.nan if outcome["norm"] is None else outcome["norm"],
            outcome["scale"],
            outcome["skipped"],
            tuple(outcome["ranks"]),
        ),
        line["rate"],
        tuple(map(tuple, line["bias"])),
    )
