"""The MoE training loop: one global batch per step, the same on any number of ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn import functional

from cedar.core.errors import CedarError
from cedar.trainers.common import run as common
from cedar.trainers.common.checkpoint import Checkpoints, check_settings, checked_step_count, set_aside, steps
from cedar.trainers.common.data import VOCABULARY
from cedar.trainers.common.files import PLOT, Damaged, Unreadable, read_lines
from cedar.trainers.common.group import Group, cut
from cedar.trainers.common.tensors import Part
from cedar.trainers.moe.data import Batches
from cedar.trainers.moe.layer import router_losses
from cedar.trainers.moe.metrics import BYTES, StepRecord, by_phase, describe, plot
from cedar.trainers.moe.model import Model
from cedar.trainers.moe.optimizer import Outcome, ReplayRecord, SymiOptimizer
from cedar.trainers.moe.options import Options, settings
from cedar.trainers.moe.placement import Placement
from cedar.trainers.moe.sparse import SparseCheckpoints

_SHAPE = (  # settings that determine weights, data and random numbers
    "model.layers", "model.width", "model.heads", "experts.experts", "experts.hidden", "experts.shared",
    "data.length", "data.batch", "data.held_out", "data.shuffle", "run.seed",
)  # fmt: skip
_SAME_FILES = "start all ranks with the same configuration and files"


class Trainer(common.Trainer):
    """A model, its optimizer and its data on one rank."""

    name = "moe"
    options: Options
    sparse: SparseCheckpoints | None = None

    def __init__(self, options: Options, group: Group | None = None) -> None:
        super().__init__(options, group)
        group, run = self.group, options.run
        self.dtype: torch.dtype = getattr(torch, run.dtype)
        group.agree(settings(options), _SAME_FILES, self.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            self.model = Model(
                options.model, options.experts, group, length=options.data.length, vocabulary=VOCABULARY, seed=run.seed
            ).to(self.device)
        self.optimizer = SymiOptimizer(self.model, options.optimizer, mean=False, dtype=self.dtype)
        self.layers = self.optimizer.layers
        self.batches = Batches(options.data, run.seed, self.device, run.serve)
        experts = options.experts
        self.notes = [
            f"placement: {experts.policy}, {experts.slots} slots on each rank for {experts.experts} experts a layer"
        ]
        self.log: Callable[[ReplayRecord], None] | None = None
        if group.size > 1:  # a single rank need not list the files
            state = self.batches.state_dict()
            # only contents, not times and inodes, since each node may have its own copy
            hashes = [marks and marks[1] for marks in state.get("files", ())]
            group.agree({"the files of data.paths": [state["sources"], hashes]}, _SAME_FILES, self.device)
        group.meter.take()

    def train_step(
        self, logged: ReplayRecord | None = None, before_publish: Callable[[], None] | None = None
    ) -> StepRecord:
        """Train on the next global batch. ``logged``: the record of an earlier run, to replay the step;
        ``before_publish``: called after the optimizer's update, before weights are sent.
        """
        began = time.perf_counter()
        bias = tuple(tuple(layer.router.bias.tolist()) for layer in self.layers)
        loss = self._accumulate(next(self.batches))
        counts = tuple(tuple(layer.counts.tolist()) for layer in self.layers)
        if logged is not None and (logged.counts != counts or logged.bias != bias or logged.step != self.step):
            raise CedarError(
                f"step {self.step} routes tokens to other experts than in the original run",
                done="the replay was stopped",
                fix="replay with the same data, configuration, ranks and library versions, or use a dense checkpoint",
            )
        rate = logged.rate if logged else self.rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        outcome = self.optimizer.update(logged.outcome if logged else None)
        before = [layer.placement for layer in self.layers]
        if not outcome.skipped:
            self.optimizer.follow(self.step)
        if before_publish is not None:
            before_publish()
        if before_publish is not None or not outcome.skipped:
            self.optimizer.publish()
        record = self._record(loss, rate, outcome, before, began)
        for layer in self.layers:
            layer.clear()
        if self.log is not None and logged is None:
            self.log(ReplayRecord(self.step, counts, outcome, rate, bias))
        self.step += 1
        return record

    def _accumulate(self, batch: torch.Tensor) -> torch.Tensor:
        """Run forward and backward passes on this rank's micro-batches. Return the float64 sum of token losses."""
        self.model.train()
        tokens = batch[:, 1:].numel()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for rows in cut(len(batch), self.options.data.accumulate):
            own = cut(len(rows), self.group.size)[self.group.rank]
            mine = range(rows.start + own.start, rows.start + own.stop)
            self.model.at(self.options.run.seed, self.step, mine)
            loss = self._loss(batch[mine.start : mine.stop])
            total += loss.detach().double()
            extra = router_losses(self.model, mean=False) / self.options.data.accumulate
            (loss / tokens + extra).backward()  # type: ignore[no-untyped-call]
        return total

    def _loss(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the sum of token losses of some rows."""
        logits = self.model(rows[:, :-1])
        wide = torch.promote_types(logits.dtype, torch.float32)
        return functional.cross_entropy(logits.flatten(0, 1).to(wide), rows[:, 1:].flatten(), reduction="sum")

    def rate(self) -> float:
        """Return the learning rate of the next step."""
        return self.options.optimizer.rate_at(self.step, self.options.run.steps)

    def _record(
        self, loss: torch.Tensor, rate: float, outcome: Outcome, before: list[Placement], began: float
    ) -> StepRecord:
        sent, seconds = self.group.meter.take()
        names = [self.optimizer.parts[0].shards.name, *(layer.name for layer in self.layers)]
        keys = [f"{phase} {name}" for name in names for phase in BYTES]
        own = torch.tensor([float(loss), *(float(sent.get(key, 0)) for key in keys)], dtype=torch.float64)
        total = self.group.add(own.to(self.device), "metrics").tolist()
        self.group.meter.take()
        bytes_of = {key: int(value) for key, value in zip(keys, total[1:], strict=True) if value}
        records = [describe(layer, was, bytes_of, seconds) for layer, was in zip(self.layers, before, strict=True)]
        return StepRecord(
            self.step, total[0] / (self.options.data.batch * self.options.data.length), rate, outcome.norm,
            outcome.scale, outcome.skipped, time.perf_counter() - began, tuple(records),
            by_phase(bytes_of, names[0], BYTES),
        )  # fmt: skip

    @torch.no_grad()
    def evaluate(self) -> float | None:
        """Return the mean cross-entropy per token of the held-out rows, in nats; None if there are none."""
        self.model.eval()
        total = torch.zeros(2, dtype=torch.float64)
        for batch in self.batches.evaluation():
            own = cut(len(batch), self.group.size)[self.group.rank]
            total[0] += float(self._loss(batch[own.start : own.stop]))
            total[1] += batch[own.start : own.stop, 1:].numel()
        loss, tokens = self.group.add(total.to(self.device), "metrics").tolist()
        self.group.meter.take()
        return loss / tokens if tokens else None

    # ---- hooks that a run calls around its loop
    # -----------------------------------------------------------------------------

    def begin(self, stack: ExitStack) -> None:
        chosen = self.options.run
        if chosen.sparse_window:
            folder = os.path.join(chosen.folder, "sparse")
            self.sparse = stack.enter_context(SparseCheckpoints(folder, self, chosen.sparse_window))

    def resume(self, files: Checkpoints) -> None:
        """Continue from the newest intact checkpoint, or from a sparse one that reaches a later step."""
        dense = max(steps(files.folder), default=-1)
        reached = None if self.sparse is None else self.sparse.end()
        ends = {"the newest checkpoint": dense, "the end of the sparse checkpoint": reached}
        self.group.agree(ends, "give all ranks a run.folder that they share", self.device)
        if reached is None or reached <= dense:
            try:
                files.resume()
            except Damaged as error:
                if reached is None or isinstance(error, Unreadable):
                    raise
        if self.sparse is not None and reached is not None and reached > self.step:
            self.sparse.recover()
            if self.group.rank == 0:
                set_aside(files.folder, reached - 1)  # those from this step on are damaged
        elif self.sparse is not None:
            self.sparse.check_unused()

    def before_step(self) -> None:
        if self.sparse is not None:
            self.sparse.before_step()

    def describe(self, record: Any, *, last: bool) -> str:
        return f"survival {sum(layer.survival for layer in record.layers) / len(record.layers):.3f}"

    def drawn(self, path: str) -> None:
        if find_spec("matplotlib") is not None and (lines := read_lines(path)):
            plot(lines, os.path.join(self.options.run.folder, PLOT))

    # ---- checkpoints: save the popularity, from which the placement is computed --------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the shards, as JSON values."""
        return {
            "step": self.step,
            "updates": self.optimizer.steps,
            "skips": self.optimizer.skips,
            "settings": settings(self.options),
            "loader": self.batches.state_dict(),
            "layers": {
                layer.name: {
                    "policy": asdict(layer.policy),
                    "basis": list(layer.basis),
                    "bias": layer.router.bias.tolist(),
                    "ranks": layer.placement.ranks,
                    "slots": layer.placement.slots,
                    "digest": layer.placement.digest,
                }
                for layer in self.layers
            },
        }

    def parts(self) -> dict[str, Part]:
        """Return this rank's slices of all rows."""
        return self.optimizer.saved()

    def check(self, state: Mapping[str, Any], path: str, free: Collection[str] | None = None) -> None:
        """Raise if saved settings differ from this trainer's. ``free``: settings that may differ; None: all but those
        that determine shapes, data and random numbers.
        """
        own = settings(self.options)
        names = _SHAPE if free is None else [name for name in own if name not in free]
        check_settings(state["settings"], {name: own[name] for name in names}, path)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state_dict``; placements are recomputed."""
        counts = [checked_step_count(state[name]) for name in ("step", "updates", "skips")]
        layers = [state["layers"][layer.name] for layer in self.layers]
        bases = [tuple(map(checked_step_count, saved["basis"])) for saved in layers]
        biases = [torch.tensor(saved["bias"], dtype=torch.float32) for saved in layers]
        for layer, basis, bias in zip(self.layers, bases, biases, strict=True):
            if len(basis) != layer.count or bias.shape != layer.router.bias.shape:
                raise ValueError(f"{layer.name} has {layer.count} experts")
        self.batches.load_state_dict(state["loader"])  # raises for other data before anything is changed
        self.step, self.optimizer.steps, self.optimizer.skips = counts
        for layer, saved, basis, bias in zip(self.layers, layers, bases, biases, strict=True):
            layer.router.bias.copy_(bias)
            layer.place_by(basis)
            same = saved["policy"] == asdict(layer.policy)
            alike = (saved["ranks"], saved["slots"]) == (layer.placement.ranks, layer.placement.slots)
            if same and alike and layer.policy.kind != "oracle" and layer.placement.digest != saved["digest"]:
                raise CedarError(
                    f"the checkpoint's placement of {layer.name} differs from the one computed from its popularity",
                    fix="restore experts.rule, or use a checkpoint that was not modified",
                )

    def loaded(self) -> None:
        """Send every rank its weights, after the shards have been read."""
        self.optimizer.publish()
