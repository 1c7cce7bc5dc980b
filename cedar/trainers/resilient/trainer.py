"""The training loop of one worker, and how workers agree which steps count."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control.board import Epoch
from cedar.trainers.resilient.control.protocol import Entry
from cedar.trainers.resilient.executor import FinishedWork, Lost, Result, Superseded, Waiting
from cedar.trainers.resilient.history import recover
from cedar.trainers.resilient.member import Fenced, Member, MovedAway, Pending
from cedar.trainers.resilient.model import State
from cedar.trainers.resilient.schedule import Schedule, serve

_CLEANUP_INTERVAL = 4  # steps between removals of old logs; reports are removed after as many steps


class Trainer(Member):
    """The training loop of one worker; see ``Member`` for its arguments."""

    def train(self) -> State:
        """Train until every worker has taken the last step, and return this stage's state.

        Raises:
            Fenced: the other workers continue without this one.
            MovedAway: a new process continues this worker's work at another position in the grid.
            Lost: a wait has taken longer than ``patience``.
        """
        generation = self.since
        while True:
            # a new worker joins after the current step, before which a stage may redo steps from logs
            patience = math.inf if generation and not self._has_state else self.job.patience
            waiting = Waiting(generation, self.newest, patience)
            try:
                self.idle(waiting)
            except Superseded:
                generation = self.board.generation()
            epoch = self.board.epoch(generation)
            if not self._has_state and self.me not in epoch.members:
                continue  # this worker is new, and the coordinator has not added it yet
            try:
                self._enter(epoch)
                self._steps()
                return self.state
            except Superseded:
                continue
            except Lost as error:
                self.board.report("lost", generation=generation, worker=self.me, error=str(error))

    def _enter(self, epoch: Epoch) -> None:
        """Enter a generation: connect to its members, and find the step to continue with."""
        if self.me in epoch.leaves:
            raise MovedAway
        if self.me not in epoch.members:
            raise Fenced(
                f"generation {epoch.number} continues without worker {self.me}",
                done="what this worker did since does not count", fix="start it again: it joins as a new one",
            )  # fmt: skip
        self.epoch, self.times = epoch, {"seen": time.time()}
        # a stage may take as long to redo its steps as the run took for them; heartbeats detect workers that hang
        patience = math.inf if epoch.lost else self.job.patience
        self.waiting = Waiting(epoch.number, self.newest, patience)
        self._report_progress("STEP", waits=True)
        if self.transport is not None:
            self.transport.close()
        transport = self.transport = self.connect(epoch, self.waiting)
        self.times["connected"] = time.time()
        if epoch.restore is not None and (not epoch.lost or self.me.stage in epoch.lost):
            self._restore(epoch.restore)
        versions = self._exchange_versions()
        if epoch.lost:
            self.make_plan()
            recover(self, versions, transport)
        self._agree(versions, transport)
        if not epoch.lost:
            self.make_plan()
        if self.kept.step != self.step:
            self.kept = FinishedWork(self.step)
        mine = {(d.replica, d.micro_batch) for d in self.schedule.work[self.me] if d.kind == "F"}
        self.kept.drop_unfinished(mine, logs=self.job.logs)
        self.redone = len(self.kept.done)
        if self.data is None:
            self.data = self.open()
            if self.me.stage in (0, self.job.stages - 1) and self.step < self.job.steps and mine:
                self.data.inputs(self.step, min(mine))  # load the first batch early, as it may take long
        self.executor = self.make_executor(transport)
        self.durations.begin(self.executor)

    def _steps(self) -> None:
        job, saver = self.job, self.saver
        while self.step < job.steps:
            self._pass_gate()
            state = self._state_at(self.step)
            self.engine.load(state)
            schedule: Schedule = serve(self.schedule, self.ahead) if self.ahead else self.schedule
            result = self.executor.run(schedule, self.step, self.kept)
            if result.gradient is None:
                self._begin_step(state)
                self.log_messages(self.step, self.kept, None)
                self._advance()
            elif job.mode == "sync":
                self._step_sync(result)
            else:
                self._step_staggered(result)
            self.ahead = frozenset()
            self.durations.after_step(self.board, self.me)
            state_bytes = self.state.nbytes + (0 if self.pending is None else self.pending.nbytes)
            self.peak = max(self.peak, state_bytes)
            if saver is not None and saver.due(self.step) and self.step < job.steps and not self.state.whole_at:
                self._validate()
                self._report_progress("STEP", waits=True)  # the disk may still be writing the previous checkpoint
                saver.save(self.state, self.epoch)
        self._finish()

    def _begin_step(self, state: State) -> None:
        """Save this step's slot of the sparse checkpoint. Call this once the state before the step cannot be undone."""
        if self.windows is not None:
            self._report_progress("STEP", waits=True)  # the disk may still be writing the previous slot
            self.windows.begin_step(state, self.epoch)

    def _state_at(self, step: int) -> State:
        if self.state.version == step:
            return self.state
        assert self.pending is not None, "W_k is kept while others need it"
        assert self.pending.state.version == step, "W_k is kept while others need it"
        return self.pending.state

    def _pass_gate(self) -> None:
        """Start the step, or wait for joining workers. All workers do what the first one to reach this step decides."""
        number = self.epoch.number
        wanted = self.board.increment(keys.PAUSE(number), 0) > 0
        if self.board.put_if_absent(keys.GATE(number, self.step), "pause" if wanted else "go") == "pause":
            # a pending step of this number is validated later, since other stages have not taken it
            if self.pending is not None and self.pending.state.version < self.step:
                self._validate()
            self.board.increment(keys.PAUSED(number))
            self.idle(self.waiting)

    def _step_sync(self, result: Result) -> None:
        """Vote on a step in sync mode. It counts if all workers vote before one of them sees a newer generation."""
        board, number, members = self.board, self.epoch.number, len(self.epoch.members)
        assert result.gradient is not None
        self._report_progress("STEP", waits=True)
        self._begin_step(self.state)
        board.put_if_absent(keys.NORM(number, self.step, self.me.stage), result.norm.hex())
        self.publish_losses(result)
        key = keys.DECISION(number, self.step)
        if board.increment(keys.VOTES(number, self.step)) == members:
            board.put_if_absent(key, "commit")
        try:
            self.waiting.poll(partial(board.get, key), "the votes of all workers")
        except Superseded:
            if board.put_if_absent(key, "abort") == "abort":
                raise
        if board.get(key) != "commit":
            raise Superseded
        norms = self._norms(number, self.step)
        scale = self.optimizer.scale(norms)
        self.log_messages(self.step, self.kept, result.gradient)
        self.history.log_scale(self.step, scale)
        self.state = self.take_step(self.state, result.gradient, scale)
        self.commit(self.step)
        if self.me == self.epoch.members[0]:
            self._forget(number, keys.DECISION, keys.VOTES)
        self._advance()
        self.waiting.check()

    def _step_staggered(self, result: Result) -> None:
        """Take a step in staggered mode, assuming that no gradient is clipped; first validate the previous step."""
        assert result.gradient is not None
        if not self._validate():
            return  # the step ran with invalid weights, so it is repeated
        self._begin_step(self.state)
        self.publish_losses(result)
        self.log_messages(self.step, self.kept, result.gradient)
        self.step_eagerly(result)
        self.commit(self.step - 1)
        if self.me == self.epoch.members[0]:
            self._forget(self.epoch.line)
        self._advance()

    def step_eagerly(self, result: Result) -> None:
        """Take a staggered optimizer step before all norms are known, and keep the data to undo it."""
        assert result.gradient is not None
        line, version = self.epoch.line, self.state.version
        self.board.put_if_absent(keys.NORM(line, version, self.me.stage), result.norm.hex())
        eager = self.optimizer.scale([0.0 * result.norm])  # None if this stage's gradients are not finite
        self.pending = Pending(self.state, result.gradient, eager, line)
        self.state = self.take_step(self.state, result.gradient, eager)

    def _validate(self) -> bool:
        """Check the pending step's scale with all stages' norms. If it was incorrect, redo the step; return False."""
        if self.pending is None:
            return True
        pending = self.pending
        scale = self.optimizer.scale(self._norms(pending.line, pending.state.version))
        self.pending = None
        self.history.log_scale(pending.state.version, scale)
        if scale == pending.scale:
            return True
        self.state = self.take_step(pending.state, pending.gradient, scale)
        self.kept = FinishedWork(self.state.version)
        return False

    def _norms(self, since: int, step: int) -> list[float]:
        self._report_progress("STEP", waits=True)
        wanted = [keys.NORM(since, step, stage) for stage in range(self.job.stages)]
        reported = self.waiting.poll(partial(self.board.get_all, wanted), "the norms of all stages")
        return [float.fromhex(norm) for norm in reported]

    def publish_losses(self, result: Result) -> None:
        """Publish the losses of this step for the coordinator's process."""
        if result.losses:
            self.board.put(
                keys.LOSS(self.epoch.line, self.step, self.me.replica),
                [[*k, v] for k, v in sorted(result.losses.items())],
            )

    def commit(self, step: int) -> None:
        """Let the data source forget all steps up to this one, which will not be read again."""
        assert self.data is not None
        if step >= 0:
            self.data.commit(step)

    def _forget(self, since: int, *more: Entry[Any]) -> None:
        """Remove the reports of an old step that every worker has passed."""
        old = self.step - _CLEANUP_INTERVAL
        norms = [keys.NORM(since, old, stage) for stage in range(self.job.stages)]
        self.board.delete(keys.GATE(self.epoch.number, old), *(name(since, old) for name in more), *norms)

    def _advance(self) -> None:
        saved = self.board.get(keys.PERSISTED()) if self.job.replay and self.step % _CLEANUP_INTERVAL == 0 else None
        if saved is not None:
            self.history.forget(saved)
        if self.me.stage == self.job.stages - 1:
            self.board.put(keys.DONE(self.epoch.line, self.step), time.time())
        self.step += 1
        self.kept = FinishedWork(self.step)
        self.waiting.patience = self.job.patience  # all stages took part in the step, so no stage redoes steps

    def _finish(self) -> None:
        """Wait until all workers have finished, since a failure may require repeating a step. Save a checkpoint."""
        self._validate()
        self._report_progress("STEP", waits=True)
        number, members = self.epoch.number, len(self.epoch.members)
        self.board.increment(keys.FINISHED(number))
        self.waiting.poll(
            lambda: True if self.board.increment(keys.FINISHED(number), 0) >= members else None,
            "the other workers to finish",
        )
        if self.windows is not None:
            self.windows.wait()
        if self.saver is not None:
            self.saver.save(self.state, self.epoch)
            self.saver.wait()
