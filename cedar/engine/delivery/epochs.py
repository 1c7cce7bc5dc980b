"""Move a loader through its epochs: from one to the next, or to the position of a state or of another rank."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cedar.core.numeric import NumericEnvironment
from cedar.engine.delivery.device_prefetch import AheadEpoch
from cedar.engine.delivery.options import Options
from cedar.engine.delivery.parts import Parts
from cedar.engine.delivery.position import Position, is_unfinished
from cedar.engine.delivery.units import units_left
from cedar.engine.epoch import DataEpoch, Job
from cedar.engine.metrics import Metrics
from cedar.engine.runner import Runner
from cedar.operators.take import whole
from cedar.plan.graph import Node

if TYPE_CHECKING:
    from cedar.engine.delivery.elastic import Elastic


class Epochs:
    """A loader's components and its position. Both are replaced as a whole when they change.

    Args:
        parts: the components.
        elastic: publishes the position for other ranks.
    """

    def __init__(self, parts: Parts, elastic: Elastic) -> None:
        self.parts, self.elastic = parts, elastic
        self.position = Position(parts.options.epoch, parts.options.epoch)
        self.used = False  # whether the loader has been iterated or moved to a position
        self.current_files: tuple[Node, Options] | None = None  # to return to them, while a state's files are read
        self.file_changes: list[str] = []  # messages about files that changed since a state was saved

    @property
    def job(self) -> Job:
        """The settings and services that all epochs use."""
        return self.parts.job

    def begin(self, epoch: int) -> None:
        """Move to the beginning of an epoch."""
        self.position = Position(epoch, epoch, earlier_steps=self.position.earlier_steps)
        self.parts.account.budgets.start({}, 0)

    def data_epoch(self) -> DataEpoch:
        """Return the data epoch of the next unit, at the position after the last unit that the caller received."""
        position = self.position
        return DataEpoch(self.job, Runner("inline", 1), position.data, position.opened().get(str(position.data)))

    def close(self, data: DataEpoch | AheadEpoch) -> None:
        """Record that this rank finished a data epoch."""
        self.position.close(data)
        self.job.metrics.left_out += data.left_out

    def finish(self) -> None:
        """Move to the next epoch, after the last unit of this one."""
        self.parts.account.end()
        before, steps = self.position, self.job.steps is not None
        self.position = before.next(steps)
        self.parts.account.budgets.start({}, 0)
        ended = before.open.get(str(before.data))
        if not steps and self.job.sharing.together and ended is not None and is_unfinished(ended):
            number = self.position.epoch
            fresh = DataEpoch(self.job, Runner("inline", 1), number, None).entry()
            left = fresh | {"before": {"epoch": before.data, "entry": ended}}
            self.position.place(number, self.position.open | {str(number): left})

    def begin_next(self) -> None:
        """Move to the next epoch, with the current files, and publish the position if other ranks need it."""
        self.finish()
        self.leave_saved_files()
        self.elastic.publish_beginning(self)

    def skip_rest(self) -> None:
        """Move to the next epoch although the rest of this one, if any, was not delivered in this run."""
        if self.job.steps is None:  # with steps=, the data epoch continues
            self.close(self.data_epoch())
        self.finish()

    def restart(self) -> None:
        """After a break, start the epoch again, or the next one if this one was complete; after loading, continue."""
        position, steps = self.position, self.job.steps
        if position.step >= steps if steps is not None else position.step > 0 and units_left(self.data_epoch()) == 0:
            self.skip_rest()
        elif not position.resumed:
            self.begin(position.epoch)
            begun = position.begun
            if begun["step"] == 0 and (steps is not None or position.has_leftovers):
                self.position.place(begun["data"], begun["open"])

    def set_epoch(self, epoch: int) -> None:
        """See ``Loader.set_epoch``."""
        epoch = whole(epoch, "set_epoch(epoch)")
        self.parts.stop()
        position, ended = self.position, self.position.ended
        if ended is not None and epoch in (ended["epoch"], ended["epoch"] + 1):
            self.move_to(ended)
            if epoch != ended["epoch"]:
                self.skip_rest()
            self.position.ended, self.position.resumed = ended, True
        elif epoch == position.epoch and (position.resumed or not position.started):
            position.continue_if_over = False  # already there, perhaps with batches left over from the previous epoch
        else:
            self.read_current_files()
            self.begin(epoch)

    def place(self, runner: Runner | None = None) -> None:
        """With ``steps``, compute the position in the data at which an epoch starts, if earlier epochs were not run."""
        position, steps = self.position, self.parts.options.steps
        if steps is None or position.placed:
            return
        data, opened = position.data, position.open
        if position.step == 0 and position.epoch > 0 and not self.parts.may_skip_units:
            units = DataEpoch(self.job, runner or Runner("inline", 1), position.epoch, None).units()
            if units is not None and units != math.inf and units > 0:
                data, taken = divmod(position.epoch * steps, int(units))
                opened = {str(data): {"history": [], "deal": [[taken, None, None], 0], "lanes": None}}
        position.place(data, opened)

    def move_to(self, state: dict[str, Any]) -> None:
        """Move to the position of a state of this rank."""
        self.used = True
        self.position = Position(
            state["epoch"], state["data"], state["open"], state["step"], state["begun"] or {},
            state.get("earlier", 0), placed=True, resumed=True,
        )  # fmt: skip
        parts = self.parts
        parts.account.budgets.start(state["skipped"], state["seen"])
        if parts.job.binding.numeric is not None and state.get("numeric") is not None:
            parts.numeric = NumericEnvironment.of_json(state["numeric"])
            missing = parts.numeric.missing(NumericEnvironment.of_caller())
            parts.job.binding.begin(parts.environment)
            if missing:
                warnings.warn(
                    f"functions run in a different numeric environment than the state's: {missing}; results may "
                    "differ in the last bits",
                    stacklevel=4,
                )

    def compile(self, root: Node, options: Options) -> None:
        """Replace the components by those of another root, at the beginning of this epoch; counters continue."""
        self.parts.stop()
        self.parts.close_by_step()
        self._compile(root, options, self.job.metrics)
        self.begin(self.position.epoch)

    def _compile(self, root: Node, options: Options, metrics: Metrics | None) -> None:
        old, job = self.parts, self.job
        self.parts = Parts(root, options, job.rank, old.site, old.numeric, metrics, job.weights)

    def begin_in_fork(self) -> None:
        """Create the components again in a forked child at the parent's position, without its threads and locks."""
        budgets = self.parts.account.budgets
        self._compile(self.job.binding.root, self.parts.options, None)
        self.parts.account.budgets.start(dict(budgets.counts), budgets.seen)
        self.position = replace(self.position, open=self.position.opened(), live=None)

    def read_current_files(self) -> None:
        """Switch to the current file list, if the file list of a saved state is in use."""
        if self.current_files is not None:
            (root, options), self.current_files = self.current_files, None
            self.compile(root, options)

    def leave_saved_files(self) -> None:
        """Switch from the file list of a state to the current one, once the epoch that began with it is over."""
        before = self.position
        if self.current_files is not None and str(before.data) not in before.open:
            self.read_current_files()
            self.position.place(before.data, {})
            self.position.open = before.open  # other ranks may still be in the previous epoch
