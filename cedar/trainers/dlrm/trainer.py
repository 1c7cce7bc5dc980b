"""The DLRM training loop: one global batch per step, the same on any number of ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn import functional

import cedar
from cedar.core.errors import CedarError
from cedar.trainers.common import run as common
from cedar.trainers.common.checkpoint import check_settings, checked_step_count
from cedar.trainers.common.compute import keyed
from cedar.trainers.common.config import constant
from cedar.trainers.common.group import Group, cut
from cedar.trainers.common.tensors import Part
from cedar.trainers.dlrm.data import Batches, sized
from cedar.trainers.dlrm.inputs import Inputs, read_batch, rows_of
from cedar.trainers.dlrm.metrics import Scores, StepRecord, Window, score
from cedar.trainers.dlrm.model import Model, dense_optimizer, looked_at, tables_of
from cedar.trainers.dlrm.options import Options
from cedar.trainers.dlrm.unique import tells_apart

DENSE, METRICS, VOCABULARIES = "dense gradients", "metrics", "vocabularies"
_MIN_SCORE_REPORTS = 20  # AUC and entropy are computed at least this often in a run, for progress


class Trainer(common.Trainer):
    """A model, its tables, its optimizers and its data on one rank.

    Args:
        options: options of the run.
        group: the ranks that train together; None for all of torch.distributed, or this process as a single rank.
        rows: a pipeline that replaces ``data.paths``.
        held_out: a pipeline of rows only for evaluation, which replaces ``data.held_out``.

    ``step`` is the number of completed steps, ``notes`` lists what was chosen with reasons, and ``statistics`` is what
    the table sharding is based on.
    """

    name = "dlrm"
    options: Options

    def __init__(
        self, options: Options, group: Group | None = None, rows: cedar.Pipeline | None = None,
        held_out: cedar.Pipeline | None = None,
    ) -> None:  # fmt: skip
        options = sized(options)
        super().__init__(options, group)
        run = options.run
        self.dtype = torch.float64 if run.dtype == "float64" else torch.float32
        self.batches = Batches(options, self.group, rows, held_out)
        self.statistics, counted = looked_at(
            options, self.group, lambda count: map(self._read, self.batches.sample(count))
        )
        self.tables, reported = tables_of(options, self.group, self.statistics, counted, self.device)
        self.notes += reported
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            self.model = Model(options.model, options.features, len(options.data.dense), self.tables.rows)
        self.model.to(self.device, self.dtype)
        for at, feature in enumerate(options.features):
            why = tells_apart(self.model.pooling[f"at {at}"]) if feature.sequence else ""
            if why and options.data.dedup != "off" and not options.model.repeat_dropout:
                self.notes.append(f"{feature.column} is pooled for all rows, not for unique ones: {why}")
        self.optimizer = dense_optimizer(self.model, options.optimizer)
        self.window = Window(-(-run.window // self.group.size))
        self.group.meter.take()

    def _read(self, batch: dict[str, Any]) -> Inputs:
        data = self.options.data
        return read_batch(batch, self.options.features, data.dense, data.label, dtype=self.dtype, device=self.device)

    def train_step(self) -> StepRecord:
        """Train on the next batch."""
        began = time.perf_counter()
        inputs = self._read(next(self.batches))
        assert inputs.labels is not None
        rows, rate = self.options.data.batch, self.rate(self.options.tables.rate)
        self.model.train()
        self.tables.rate, self.tables.steps = rate, self.step
        logits = self._forward(inputs)
        loss = functional.binary_cross_entropy_with_logits(logits, inputs.labels, reduction="sum")
        total = loss.detach()
        if not bool(torch.isfinite(total)):
            raise CedarError(
                f"the loss of step {self.step} is {float(total)}",
                done="training stopped; checkpoints are unchanged",
                fix="lower the learning rates, or check the dense features for infinities",
            )
        self.optimizer.zero_grad(set_to_none=True)
        (loss / rows).backward()  # type: ignore[no-untyped-call]
        self.tables.step()
        total = self._reduce(total)
        for settings in self.optimizer.param_groups:
            settings["lr"] = self.rate(self.options.optimizer.rate)
        self.optimizer.step()
        self.window.add(logits.detach().float().cpu(), inputs.labels.float().cpu())
        sent, _ = self.group.meter.take()
        record = StepRecord(
            self.step, rows, float(total) / rows, rate, time.perf_counter() - began, self.batches.waited,
            inputs.looked_up, sent,
        )  # fmt: skip
        self.step += 1
        return record

    def _forward(self, inputs: Inputs) -> torch.Tensor:
        run = self.options.run
        with (  # dropout masks are the same after a resume
            keyed(self.device, run.seed, self.step, self.group.rank),
            torch.autocast(self.device.type, torch.bfloat16, enabled=run.dtype == "bfloat16"),
        ):
            logits: torch.Tensor = self.model(inputs)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _reduce(self, total: torch.Tensor) -> torch.Tensor:
        """Sum the gradients of replicated parameters and the loss over ranks, bitwise identically on all of them."""
        if self.group.size == 1:
            return total
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
        summed = self.group.add(torch.cat([flat, total.to(flat.dtype)[None]]), DENSE)
        for parameter, part in zip(parameters, torch.split(summed[:-1], [p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
        return summed[-1]

    def rate(self, peak: float) -> float:
        """Return the learning rate of the next step."""
        return constant(self.step, peak=peak, warmup=self.options.optimizer.warmup)

    def recent(self) -> Scores:
        """Return scores of the most recent rows, predicted before training on them. All ranks must call it."""
        return self._scores(*self.window.parts())

    def _scores(self, logits: torch.Tensor, labels: torch.Tensor) -> Scores:
        """Compute scores over the rows of all ranks."""
        if self.group.size > 1:
            count = self.group.gather(torch.tensor([len(logits)], device=self.device), METRICS)[:, 0].tolist()
            rows = torch.zeros(max(count), 2)
            rows[: len(logits)] = torch.stack([logits, labels], 1)
            parts = self.group.gather(rows.to(self.device), METRICS).cpu()
            both = torch.cat([part[:n] for part, n in zip(parts, count, strict=True)])
            logits, labels = both[:, 0], both[:, 1]
        self.group.meter.take()
        return score(logits, labels)

    @torch.no_grad()
    def evaluate(self) -> Scores | None:
        """Return scores of the held-out rows, or None if there are none. All ranks must call it."""
        if self.batches.held_out is None:
            return None
        logits, labels = self.predict(self.batches.evaluation())
        return self._scores(logits, labels)

    @torch.no_grad()
    def predict(self, batches: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and labels, float32 ``[rows]``, of this rank's share of global batches."""
        self.model.eval()
        predictions: list[tuple[torch.Tensor, torch.Tensor]] = []
        for batch in batches:
            inputs = self._read(batch)
            if self.group.size > 1:
                inputs = rows_of(inputs, cut(len(inputs), self.group.size)[self.group.rank])
            assert inputs.labels is not None
            predictions.append((self._forward(inputs).float().cpu(), inputs.labels.float().cpu()))
        if not predictions:
            return torch.zeros(0), torch.zeros(0)
        logits, labels = zip(*predictions, strict=True)
        return torch.cat(logits), torch.cat(labels)

    # ---- progress of a run -------------------------------------------------------------------------------------------

    def begin(self, stack: ExitStack) -> None:
        self._said, self._rows, self._seconds, self._waited = "", 0, 0.0, 0.0

    def steps(self) -> int:
        """Return the number of steps of the run, by default one epoch."""
        self._steps = super().steps() or self.batches.epoch()
        return self._steps

    def describe(self, record: Any, *, last: bool) -> str:
        self._rows, self._seconds = self._rows + record.rows, self._seconds + record.seconds
        self._waited += record.waited
        if last or self.step % max(1, self._steps // _MIN_SCORE_REPORTS) == 0:
            recent = self.recent()
            self._said = f"AUC {recent.auc:.4f}, entropy {recent.entropy:.4f}"
            self._said += f", {self._rows / self._seconds:,.0f} rows/s, waited {self._waited / self._seconds:.0%}"
            self._rows, self._seconds, self._waited = 0, 0.0, 0.0
        return self._said

    # ---- checkpoints: the rank that has a table or piece saves it under the table's name -----------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state without tensors, as JSON values. All ranks must call it."""
        return {"step": self.step, "loader": self.group.tell(self.batches.state_dict()), **self._required_settings()}

    def parts(self) -> dict[str, Part]:
        """Return this rank's tables, and the tensors that are identical on all ranks."""
        parts = {f"table.{name}": part for name, part in self.tables.saved().items()}
        for name, parameter in self.model.named_parameters():
            parts[f"model.{name}"] = Part(parameter.detach(), alike=True)
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if torch.is_tensor(value):
                    parts[f"optimizer.{name}.{key}"] = Part(value, alike=True)
        return parts

    def check(self, state: Mapping[str, Any], path: str) -> None:
        """Raise if the state has another model, other tables, another seed or other vocabularies."""
        check_settings({name: state.get(name) for name in self._required_settings()}, self._required_settings(), path)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state_dict``; the number of ranks may differ."""
        step = checked_step_count(state["step"])
        self.batches.load_state_dict(state["loader"])
        self.step = step

    @property
    def files(self) -> dict[str, str]:
        """The vocabulary files by their names in a checkpoint."""
        return {f"{VOCABULARIES}/{name}": path for name, path in self._vocabularies().items()}

    def _vocabularies(self) -> dict[str, str]:
        return {f"{at}-{os.path.basename(path)}": path for at, path in enumerate(self.batches.vocabularies)}

    def _required_settings(self) -> dict[str, Any]:
        """Return the settings that must match for a checkpoint to be loaded."""
        options, digests = self.options, self.batches.vocabularies
        return {
            "seed": options.run.seed,
            "tables": {f.home: [f.rows, f.width or options.model.width] for f in options.features},
            "table state": {
                "dtype": options.tables.dtype,
                "rule": options.tables.rule,
                "compute": "float64" if options.run.dtype == "float64" else "float32",
            },
            "columns": [f.column for f in options.features],
            "model": {name: list(value.shape) for name, value in self.model.named_parameters()},
            "optimizer": options.optimizer.rule,
            "vocabularies": {name: digests[path] for name, path in self._vocabularies().items()},
        }
