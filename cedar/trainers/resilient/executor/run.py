"""Execute a worker's instruction list, keep results in case the step is repeated, and sum gradients over workers."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import torch

from cedar.trainers.common.group import cut
from cedar.trainers.resilient.data import FinalError
from cedar.trainers.resilient.executor.transport import Transport
from cedar.trainers.resilient.model import Engine, Signature
from cedar.trainers.resilient.schedule import COMPUTING, RECEIVING, Instruction, Schedule, Worker

if TYPE_CHECKING:
    from cedar.trainers.resilient.data import MicroBatches

Key = tuple[int, int]


@dataclass
class FinishedWork:
    """One step's micro-batches that this worker has finished, with their results."""

    step: int
    outputs: dict[Key, torch.Tensor] = field(default_factory=dict)  # result of F by micro-batch
    # result of B_INPUT by micro-batch; None at the first stage
    gradients: dict[Key, torch.Tensor | None] = field(default_factory=dict)
    # result of B_WEIGHT by micro-batch; with ``fast`` reduction, results are added to ``total`` instead
    rows: dict[Key, torch.Tensor] = field(default_factory=dict)
    losses: dict[Key, float] = field(default_factory=dict)
    summed: set[Key] = field(default_factory=set)
    total: torch.Tensor | None = None

    @property
    def done(self) -> set[Key]:
        """Return the micro-batches that are completely computed."""
        return set(self.rows) | self.summed

    def drop_unfinished(self, mine: set[Key], *, logs: bool) -> None:
        """Drop unfinished micro-batches, and those that the new plan assigns to other workers. ``mine``: this worker's
        micro-batches in the new plan. ``logs``: keep finished micro-batches; otherwise, drop everything.
        """
        if not logs or not self.summed <= mine:
            self.summed, self.total = set(), None
        if not logs:
            self.rows.clear()
        self.rows = {key: row for key, row in self.rows.items() if key in mine}
        done = self.done
        self.outputs = {key: tensor for key, tensor in self.outputs.items() if key in done}
        self.gradients = {key: tensor for key, tensor in self.gradients.items() if key in done}
        self.losses = {key: loss for key, loss in self.losses.items() if key in done}


Reduction: TypeAlias = Literal["exact", "fast"]
Row: TypeAlias = tuple[int, int, int]  # replica, micro-batch, stage


def reduce(
    transport: Transport, me: Worker, group: Sequence[Worker], rows: Mapping[Row, torch.Tensor],
    owners: Mapping[Row, Worker], like: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Sum the rows of all workers in the order of their keys. The sum is bitwise the same whichever worker has a row.

    Args:
        group: the workers that have rows, in the same order on each of them.
        rows: this worker's rows, ``[size]`` each.
        owners: for each row of any worker, the worker that has it.
        like: a tensor with a row's size, dtype and device.

    Returns:
        The sum, ``[size]``.
    """
    keys, size = sorted(owners), len(like)
    parts = cut(size, len(group))
    owned = {worker: [key for key in keys if owners[key] == worker] for worker in group}
    here = parts[group.index(me)]
    for other in group:
        if other != me and owned[other]:
            transport.expect(other, (len(owned[other]), here.stop - here.start), like.dtype)
    mine = torch.stack([rows[key] for key in owned[me]]) if owned[me] else like.new_empty(0, size)
    for other, part in zip(group, parts, strict=True):
        if other != me and owned[me]:
            transport.send(other, mine[:, part.start : part.stop].contiguous())
    slices: dict[Row, torch.Tensor] = dict(zip(owned[me], mine[:, here.start : here.stop], strict=True))
    for other in group:
        if other != me and owned[other]:
            slices.update(zip(owned[other], transport.receive(other).to(like.device), strict=True))
    total = like.new_zeros(here.stop - here.start)
    for key in keys:
        total += slices[key]
    return _exchange(transport, me, group, total, parts)


def _exchange(
    transport: Transport, me: Worker, group: Sequence[Worker], mine: torch.Tensor, parts: Sequence[range]
) -> torch.Tensor:
    for other, part in zip(group, parts, strict=True):
        if other != me:
            transport.expect(other, (len(part),), mine.dtype)
            transport.send(other, mine)
    return torch.cat([mine if other == me else transport.receive(other).to(mine.device) for other in group])


# called before each instruction: step, position in the list, instruction, worker to wait for
Progress: TypeAlias = Callable[[int, int, Instruction, Worker | None], None]


class TimedInstruction(NamedTuple):
    """An instruction, when the previous instruction ended, and when this one ended, by ``time.time()``."""

    step: int
    instruction: Instruction
    began: float
    ended: float


@dataclass(frozen=True)
class Result:
    """The result of an instruction list."""

    gradient: torch.Tensor | None  # sum over the stage, ``[size]``; None if the stage had already taken the step
    norm: float  # the gradient's sum of squares; only the first of the stages that share weights counts these
    losses: dict[Key, float]  # losses of this worker's micro-batches, at the last stage


class Executor:
    """Executes instruction lists with an engine and a transport.

    Args:
        transport: connections to the other workers of this generation.
        data: micro-batches, for the first and the last stage.
        reduction: ``exact``: gradients are added in the order (replica, micro-batch), so that the sum is bitwise the
            same whichever worker computed them; ``fast``: each worker first adds up its own gradients.
        progress: called before each instruction, and whenever an instruction begins to wait.
        pace: min seconds for each F, B_INPUT and B_WEIGHT, to imitate other hardware.
    """

    def __init__(
        self, me: Worker, engine: Engine, transport: Transport, data: MicroBatches, *,
        reduction: Reduction = "exact", progress: Progress | None = None, pace: float = 0.0,
    ) -> None:  # fmt: skip
        self.me, self.engine, self.transport, self.data = me, engine, transport, data
        self.reduction, self.pace = reduction, pace
        self.progress: Progress = progress or (lambda _step, _at, _done, _waiting: None)
        self.records: list[TimedInstruction] | None = None
        self._ended = 0, 0.0  # step of the last list that was executed, and when it ended
        self.on_compute: Callable[[], None] = lambda: None

    def run(self, schedule: Schedule, step: int, kept: FinishedWork) -> Result:
        """Execute all instructions of a step except STEP.

        Args:
            schedule: a validated schedule; the same on all workers.
            step: the step's number in the run.
            kept: this worker's results of the step so far; ``run`` skips finished micro-batches and adds new results.

        Raises:
            Superseded: a newer generation has begun.
            Lost: a message cannot arrive any more.
            FinalError: activations have other shapes than in the first micro-batch.
        """
        assert kept.step == step, "work is kept for one step"
        last = self._record_step()
        self.engine.reset()
        skip = kept.done
        inputs: dict[Key, torch.Tensor | None] = {}
        gradients: dict[Key, torch.Tensor | None] = {}
        serving = self.me.stage in schedule.serving
        gradient: torch.Tensor | None = None
        norm = 0.0
        for done in schedule.work[self.me]:
            if done.kind in RECEIVING:
                self.transport.expect(done.other(self.me), *self._signature(done.kind))
        for at, done in enumerate(schedule.work[self.me]):
            kind, key = done.kind, (done.replica, done.micro_batch)
            waiting_for = done.other(self.me) if kind in RECEIVING else None
            self.progress(step, at, done, waiting_for)
            if kind == "RECV_F":
                inputs[key] = self.transport.receive(done.other(self.me))
            elif kind == "RECV_B":
                gradients[key] = self.transport.receive(done.other(self.me))
            elif kind == "SEND_F":
                self._send(done, kept.outputs[key])
            elif kind == "SEND_B":
                self._send(done, kept.gradients[key])
            elif kind == "ALL_REDUCE":
                gradient, norm = self.sum_gradients(schedule, kept)
            elif kind in COMPUTING:
                if key in skip:
                    inputs.pop(key, None)
                    gradients.pop(key, None)
                    continue
                self.compute(done, step, kept, inputs, gradients, serving=serving)
            if self.records is not None and kind != "STEP":
                self.records.append(TimedInstruction(step, done, last, last := time.time()))
        self._ended = step, time.time()
        return Result(gradient, norm, dict(kept.losses))

    def _record_step(self) -> float:
        """Return the time. If instructions are being timed, record the time since the last list ended as STEP."""
        now, (step, ended) = time.time(), self._ended
        if self.records is not None and ended:
            self.records.append(TimedInstruction(step, Instruction("STEP"), ended, now))
        return now

    def compute(
        self, done: Instruction, step: int, kept: FinishedWork, inputs: dict[Key, torch.Tensor | None],
        gradients: dict[Key, torch.Tensor | None], *, serving: bool = False,
    ) -> None:  # fmt: skip
        """Run F, B_INPUT, B_WEIGHT or B of a micro-batch, and remove its entries from ``inputs`` and ``gradients``."""
        engine, kind, key = self.engine, done.kind, (done.replica, done.micro_batch)
        self.on_compute()
        end = time.perf_counter() + self.pace * (2 if kind == "B" else 1)
        if kind == "F":
            x = self.data.inputs(step, key) if engine.first else inputs.pop(key)
            targets = self.data.targets(step, key) if engine.last else None
            kept.outputs[key] = engine.forward(step, key, x, targets)
            if engine.last:
                kept.losses[key] = engine.losses[key]
        if kind in {"B_INPUT", "B"}:
            kept.gradients[key] = engine.backward_input(key, gradients.pop(key, None))
            if serving:
                engine.discard(key)
        if kind in {"B_WEIGHT", "B"}:
            row = engine.backward_weight(key)
            if self.reduction == "exact":
                kept.rows[key] = row
            else:
                kept.total = row if kept.total is None else kept.total + row
                kept.summed.add(key)
        if self.pace:
            time.sleep(max(0.0, end - time.perf_counter()))

    def _signature(self, kind: str) -> Signature:
        """Return the shape and dtype of a message. Activations and their gradients have the same shape and dtype."""
        signature = self.engine.outputs if kind in {"SEND_F", "RECV_B"} else self.engine.inputs
        assert signature is not None, "the engine has looked at an input"
        return signature

    def _send(self, done: Instruction, message: torch.Tensor | None) -> None:
        expected = self._signature(done.kind)
        if message is None or Signature.from_tensor(message) != expected:
            actual = "nothing" if message is None else str(Signature.from_tensor(message))
            raise FinalError(
                f"{self.me} must run {done} with {expected}, but has {actual}",
                fix="return activations of the same shape for all micro-batches",
            )
        self.transport.send(done.other(self.me), message.contiguous())

    def sum_gradients(
        self, schedule: Schedule, kept: FinishedWork, logged: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, float]:
        """Run ALL_REDUCE: return the stage's gradient and its sum of squares. ``schedule``: determines which worker has
        which rows. ``logged``: the sum of the gradients of shared weights, if it is known from a log.
        """
        stage = self.me.stage
        peers = schedule.peers(stage)
        rows, owners = self._rows(schedule, kept, [stage])
        shared = self.engine.layout.tied
        like = self.engine.initial_state.master
        gradient = reduce(
            self.transport, self.me, peers, {k: row[shared:] for k, row in rows.items()}, owners, like[shared:]
        )
        if shared and logged is not None:
            gradient = torch.cat([logged.to(gradient), gradient])
        elif shared:
            peers = tuple(worker for each in schedule.tied for worker in schedule.peers(each))
            _, owners = self._rows(schedule, kept, schedule.tied)
            tied = reduce(
                self.transport, self.me, peers, {k: row[:shared] for k, row in rows.items()}, owners, like[:shared]
            )
            gradient = torch.cat([tied, gradient])
        counted = gradient if stage == min(schedule.tied, default=stage) else gradient[shared:]
        return gradient, float((counted * counted).sum())

    def _rows(
        self, schedule: Schedule, kept: FinishedWork, stages: Sequence[int]
    ) -> tuple[dict[Row, torch.Tensor], dict[Row, Worker]]:
        """Return this worker's rows, and for each row of these stages the worker that has it."""
        work: dict[Worker, list[Row]] = defaultdict(list)
        for stage in stages:
            for replica in range(schedule.replicas):
                for micro_batch in range(schedule.micro_batches):
                    work[schedule.route(stage, replica, micro_batch)].append((replica, micro_batch, stage))
        if self.reduction == "exact":
            mine = {(*key, self.me.stage): row for key, row in kept.rows.items()}
            return mine, {row: worker for worker, rows in work.items() for row in rows}
        assert kept.total is not None, "every live worker has a micro-batch"
        return {(self.me.replica, 0, self.me.stage): kept.total}, {(w.replica, 0, w.stage): w for w in work}
