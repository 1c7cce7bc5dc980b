"""One worker's lists, carried out instruction by instruction; what it has done of a step, and sums of gradients."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import torch

from cedar.trainers.common.group import cut
from cedar.trainers.resilient.executor.transport import Lost, Transport
from cedar.trainers.resilient.model import Engine, Signature
from cedar.trainers.resilient.schedule import COMPUTING, RECEIVING, Instruction, Schedule, Worker

if TYPE_CHECKING:
    from cedar.trainers.resilient.data import MicroBatches

Key = tuple[int, int]


@dataclass
class FinishedWork:
    """The micro-batches of one step that this worker has finished."""

    step: int
    outputs: dict[Key, torch.Tensor] = field(default_factory=dict)  # what F gave, by micro-batch
    # what B_INPUT gave; None at the first stage
    gradients: dict[Key, torch.Tensor | None] = field(default_factory=dict)
    # what B_WEIGHT gave; with ``fast`` reduction a row is in ``total`` instead
    rows: dict[Key, torch.Tensor] = field(default_factory=dict)
    losses: dict[Key, float] = field(default_factory=dict)
    summed: set[Key] = field(default_factory=set)
    total: torch.Tensor | None = None

    @property
    def done(self) -> set[Key]:
        """Micro-batches of which nothing is left to compute."""
        return set(self.rows) | self.summed

    def narrow(self, mine: set[Key], *, logs: bool) -> None:
        """Forget what is not finished, and what others work now. ``mine``: the micro-batches that the new plan gives to
        this worker; ``logs``: finished work is kept; else everything is forgotten.
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
    """The sum of the rows of all workers in the order of their keys, the same bits no matter which worker has which
    row.

    Args:
        group: all who meet, in the same order everywhere.
        rows: this worker's, ``[size]`` each.
        like: of the size, the dtype and the device of a row.

    Returns:
        ``[size]``.
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


# called before each instruction: the step, its place in the list, what begins, who is waited for
Progress: TypeAlias = Callable[[int, int, Instruction, Worker | None], None]


class TimedInstruction(NamedTuple):
    """An instruction of a step, and when it was done: from the end of the one before it, by ``time.time()``."""

    step: int
    instruction: Instruction
    began: float
    ended: float


@dataclass(frozen=True)
class Result:
    """What a list led to."""

    gradient: torch.Tensor | None  # the sum over the stage, ``[size]``; None if the stage only served
    norm: float  # sum of its squares, shared elements counted at the first of their stages only
    losses: dict[Key, float]  # of this worker's micro-batches, at the last stage


class Executor:
    """Carries out lists on an engine and a transport.

    Args:
        transport: to the others of this generation.
        data: for the first and the last stage.
        reduction: ``exact``: gradients are added in the order (replica, micro-batch), the same bits no matter which
        worker computed
            them; ``fast``: each worker adds up its own first.
        progress: called before each instruction, and when one begins to wait.
        pace: seconds that each F, B_INPUT and B_WEIGHT takes at least: a rehearsal of other hardware.
    """

    def __init__(
        self, me: Worker, engine: Engine, transport: Transport, data: MicroBatches, *,
        reduction: Reduction = "exact", progress: Progress | None = None, pace: float = 0.0,
    ) -> None:  # fmt: skip
        self.me, self.engine, self.transport, self.data = me, engine, transport, data
        self.reduction, self.pace = reduction, pace
        self.progress: Progress = progress or (lambda _step, _at, _done, _waiting: None)
        self.records: list[TimedInstruction] | None = None
        self._ended = 0, 0.0  # the last list: its step, and when
        self.on_compute: Callable[[], None] = lambda: None

    def run(self, schedule: Schedule, step: int, kept: FinishedWork) -> Result:
        """All instructions of one step but STEP.

        Args:
            schedule: proven; the same on all workers.
            step: of the run.
            kept: this worker's finished work of that step, and where more of it is put.

        Raises:
            Superseded: a newer generation has begun.
            Lost: a message cannot come.
        """
        assert kept.step == step, "work is kept for one step"
        last = self._between()
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
                gradient, norm = self.sum(schedule, kept)
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

    def _between(self) -> float:
        """The time; STEP is all that happened since the last list was done."""
        now, (step, ended) = time.time(), self._ended
        if self.records is not None and ended:
            self.records.append(TimedInstruction(step, Instruction("STEP"), ended, now))
        return now

    def compute(
        self, done: Instruction, step: int, kept: FinishedWork, inputs: dict[Key, torch.Tensor | None],
        gradients: dict[Key, torch.Tensor | None], *, serving: bool = False,
    ) -> None:  # fmt: skip
        """F, B_INPUT, B_WEIGHT or B of a micro-batch; takes what it needs out of ``inputs`` and ``gradients``."""
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
                engine.give_up(key)
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
        """Of what is sent or received: activations and their gradients are alike on both sides of a boundary."""
        signature = self.engine.outputs if kind in {"SEND_F", "RECV_B"} else self.engine.inputs
        assert signature is not None, "the engine has looked at an input"
        return signature

    def _send(self, done: Instruction, message: torch.Tensor | None) -> None:
        expected = self._signature(done.kind)
        if message is None or Signature.of(message) != expected:
            actual = "nothing" if message is None else str(Signature.of(message))
            raise Lost(
                f"{self.me} should {done}, {expected}, and has {actual}",
                fix="a stage must give activations of one shape for all micro-batches",
            )
        self.transport.send(done.other(self.me), message.contiguous())

    def sum(
        self, schedule: Schedule, kept: FinishedWork, logged: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, float]:
        """ALL_REDUCE: the gradient of the stage and the sum of its squares. ``schedule``: says who has which rows;
        ``logged``: the sum of the part that another stage shares, where it is known.
        """
        stage = self.me.stage
        peers = schedule.peers(stage)
        rows, owners = self._rows(schedule, kept, [stage])
        shared = self.engine.layout.tied
        like = self.engine.begin.master
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
        """This worker's rows, and who has which, over these stages."""
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
