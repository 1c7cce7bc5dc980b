"""A loader's position, and its moves: from one epoch to the next, or to the position of a state or of another rank."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cedar.core.errors import CedarError, user_site, warn_user
from cedar.core.numeric import NumericEnvironment
from cedar.core.stream import Count
from cedar.engine.delivery.options import Options
from cedar.engine.delivery.parts import Parts
from cedar.engine.delivery.state import copied
from cedar.engine.epoch import DataEpoch, Job, for_any_rank, scheduled_entry
from cedar.engine.metrics import Metrics
from cedar.engine.nodes import last_mode
from cedar.engine.runner import Runner
from cedar.engine.streams.lanes import LaneState
from cedar.operators.take import whole
from cedar.plan.graph import Node

if TYPE_CHECKING:
    from cedar.engine.delivery.elastic import Elastic

_MAX_EPOCHS_AHEAD = 8  # maximum number of data epochs by which ranks may differ when their states are merged


@dataclass
class Position:
    """A position in an epoch, and how the next ``for`` begins there.

    It is replaced as a whole when the rank moves to another epoch or loads a state, or the ranks or weights change.

    Examples:
        >>> Position(3, 3).begun
        {'step': 0, 'data': 3, 'open': {}}
    """

    epoch: int
    data: int  # the data epoch of the next unit; differs from ``epoch`` only with ``steps=``
    open: dict[str, Any] = field(default_factory=dict)  # state entries of the data epochs in progress, by number
    step: int = 0  # number of units received in this epoch
    begun: dict[str, Any] = field(default_factory=dict)  # the position from which steps count; {} means here
    earlier_steps: int = 0  # number of steps in earlier epochs
    placed: bool = False  # whether ``data`` and ``open`` are known; see ``Epochs.place``
    started: bool = False  # whether the epoch was iterated, so the next ``for`` starts it again
    resumed: bool = False  # the next ``for`` continues here instead, because a state was loaded or weights changed
    # The loaded state, if it was saved after the previous epoch's last batch; {} if it was saved between two epochs.
    ended: dict[str, Any] | None = None
    passing: bool = False  # the next ``for`` delivers the rest of the previous epoch, which is empty
    continue_if_over: bool = False  # whether to run the next epoch if this one proves to have no more batches
    live: DataEpoch | None = None  # data epoch in progress, newer than its entry in ``open``

    def __post_init__(self) -> None:
        self.begun = self.begun or {"step": self.step, "data": self.data, "open": self.opened()}

    def opened(self) -> dict[str, Any]:
        """Return the state entries of the data epochs in progress, up to the last unit that the caller received."""
        if self.live is not None and self.live.moved:
            self.open[str(self.live.epoch)] = self.live.entry()
        return copied(self.open)  # type: ignore[no-any-return]

    def place(self, data: int, opened: dict[str, Any]) -> None:
        """Set the position in the data at which the epoch begins."""
        self.data, self.open, self.placed = data, opened, True
        self.begun = {}
        self.__post_init__()

    def close(self, data: DataEpoch, ended: bool = True) -> None:
        """Record that this rank finished a data epoch. States keep this entry, since other ranks may still be in it.

        Args:
            ended: False if the rest of the data epoch is not delivered.
        """
        self.open = {e: entry for e, entry in self.open.items() if int(e) > data.epoch - _MAX_EPOCHS_AHEAD}
        self.open[str(data.epoch)] = data.closed(ended)
        self.live = None

    def next(self, steps: bool) -> Position:
        """Return the beginning of the next epoch; with ``steps``, the data continue where they are."""
        opened, earlier = self.opened(), self.earlier_steps + self.step
        if steps:
            return Position(self.epoch + 1, self.data, opened, earlier_steps=earlier, placed=True)
        position = Position(self.epoch + 1, self.epoch + 1, earlier_steps=earlier)
        position.open = {e: entry for e, entry in opened.items() if int(e) == self.data}  # others may be in that epoch
        return position

    @property
    def has_lanes(self) -> bool:
        """Whether the epoch began in lanes, in which only this rank knows its position."""
        return any(entry["lanes"] is not None for entry in self.begun["open"].values())

    @property
    def has_leftovers(self) -> bool:
        """Whether the epoch began with batches left over from the previous epoch."""
        return any(entry.get("before") for entry in self.begun["open"].values())


def is_unfinished(entry: dict[str, Any]) -> bool:
    """Whether a closed data epoch has undelivered units, because the ranks agreed on an earlier end."""
    return bool(entry.get("before")) or any(not LaneState(*lane).ended for lane in entry["lanes"] or ())


class Epochs:
    """A loader's components and its position. Both are replaced as a whole when they change.

    Args:
        parts: the components.
        elastic: publishes the position for other ranks.
    """

    def __init__(self, parts: Parts, elastic: Elastic) -> None:
        self.parts, self.elastic = parts, elastic
        epoch, steps = parts.options.epoch, parts.options.steps
        self.position = Position(epoch, epoch, earlier_steps=epoch * (steps or 0))
        self.used = False  # whether the loader has been iterated or moved to a position
        self.current_files: tuple[Node, Options] | None = None  # to return to them, while a state's files are read
        self.changes: list[Any] = []  # later changes of mixtures, by step; see ``Loader.update_mix``
        self.file_changes: list[str] = []  # messages about files that changed since a state was saved

    @property
    def job(self) -> Job:
        """The settings and services that all epochs use."""
        return self.parts.job

    @property
    def total_steps(self) -> int:
        """The number of steps so far, counted over all epochs."""
        return self.position.earlier_steps + self.position.step

    def replace_parts(self, parts: Parts, mixture: str) -> None:
        """Continue with components whose mixture has more inputs. The iteration in progress ends by itself."""
        self.parts.close_by_step()
        binding, budgets, metrics = self.job.binding, self.parts.account.budgets, parts.job.metrics
        more, first = len(parts.job.binding.nodes) - len(binding.nodes), binding.ordinal(binding.mixtures[mixture])
        counts = {str(int(key) + more * (int(key) >= first)): count for key, count in budgets.counts.items()}
        parts.account.budgets.start(counts, budgets.seen)
        for each in (metrics.stages, metrics.seen, metrics.row_bytes):
            each.clear()
        self.parts = parts

    def begin(self, epoch: int) -> None:
        """Move to the beginning of an epoch.

        Steps of another epoch that is left count, those of this one do not. With ``steps``, all epochs before count.
        """
        before, steps = self.position, self.parts.options.steps
        earlier = before.earlier_steps if epoch == before.epoch else epoch * steps if steps else self.total_steps
        self.position = Position(epoch, epoch, earlier_steps=earlier)
        self.parts.account.budgets.start({}, 0)

    def data_epoch(self) -> DataEpoch:
        """Return the data epoch of the next unit, at the position after the last unit that the caller received."""
        position = self.position
        return DataEpoch(self.job, Runner("inline", 1), position.data, position.opened().get(str(position.data)))

    def finish(self) -> None:
        """Move to the next epoch, after the last unit of this one."""
        self.parts.account.budgets.end(self.parts.account.policies)
        before, steps = self.position, self.job.steps is not None
        before.step = self._most_steps()
        self.position = before.next(steps)
        self.parts.account.budgets.start({}, 0)
        ended = before.open.get(str(before.data))
        if not steps and self.job.sharing.together and ended is not None and is_unfinished(ended):
            number = self.position.epoch
            fresh = DataEpoch(self.job, Runner("inline", 1), number, None).entry()
            left = fresh | {"before": {"epoch": before.data, "entry": ended}}
            self.position.place(number, self.position.open | {str(number): left})

    def _most_steps(self) -> int:
        """Return the number of steps of the rank with the most, since ranks must draw mixtures at equal steps."""
        position, job, own = self.position, self.job, self.job.rank
        one_less = own.rank > 0 and job.steps is None and last_mode(job.binding.root) == "keep"
        if not (one_less and job.binding.mixtures):
            return position.step
        begun = position.begun
        first = replace(job, rank=replace(own, rank=0), counts={})
        entry = for_any_rank(begun["open"].get(str(position.data)))
        units: Count = None
        with suppress(CedarError):  # for example, a service does not answer
            entry = entry or scheduled_entry(first, position.data, position.earlier_steps + begun["step"])
            units = DataEpoch(first, Runner("inline", 1), position.data, entry).units()
        most = begun["step"] + int(units) if units is not None and units != math.inf else position.step
        return most if most == position.step + 1 else position.step

    def begin_next(self) -> None:
        """Move to the next epoch, with the current files, and publish the position if other ranks need it."""
        self.finish()
        self.leave_saved_files()
        self.elastic.publish_beginning(self)

    def skip_rest(self) -> None:
        """Move to the next epoch although the rest of this one, if any, was not delivered in this run."""
        if self.job.steps is None:  # with steps=, the data epoch continues
            self.position.close(self.data_epoch(), ended=False)
        self.finish()

    def passes_over(self) -> bool:
        """Move to where the next ``for`` begins; return whether it is over at once, see ``Position.passing``."""
        passing, self.position.passing = self.position.passing, False
        if not passing:
            if self.position.started:
                self.restart()
            self.leave_saved_files()
        return passing

    def restart(self) -> None:
        """After a break, start the epoch again, or the next one if this one was complete; after loading, continue."""
        position, steps = self.position, self.job.steps
        if position.step >= steps if steps is not None else position.step > 0 and units_left(self.data_epoch()) == 0:
            self.skip_rest()
        elif not position.resumed:
            self._begin_again()

    def _begin_again(self) -> None:
        """Move to where this epoch began, perhaps with rows that remained from the previous one."""
        before, begun = self.position, self.position.begun
        self.begin(before.epoch)
        if begun["step"] == 0 and (self.job.steps is not None or before.has_leftovers):
            self.position.place(begun["data"], begun["open"])

    def set_epoch(self, epoch: int) -> None:
        """See ``Loader.set_epoch``."""
        epoch = whole(epoch, "set_epoch(epoch)")
        self.parts.stop()
        position, ended = self.position, self.position.ended
        position.passing = ended == {} and epoch == position.epoch - 1
        if position.passing:
            pass
        elif ended and epoch in (ended["epoch"], ended["epoch"] + 1):
            self.move_to(ended)
            if epoch != ended["epoch"]:
                self.skip_rest()
            self.position.ended, self.position.resumed = ended, True
        elif epoch == position.epoch and (position.resumed or not position.started):
            position.continue_if_over = False  # already there, perhaps with batches left over from the previous epoch
        elif epoch == position.epoch and self.current_files is None:
            self._begin_again()
        else:
            self.begin(epoch)
            self.read_current_files()

    def place(self, runner: Runner | None = None) -> None:
        """With ``steps``, compute the position in the data at which an epoch starts, if earlier epochs were not run."""
        position, steps = self.position, self.parts.options.steps
        if steps is None or position.placed:
            return
        data, opened = position.data, position.open
        if position.step == 0 and position.epoch > 0 and not self.parts.may_skip_units:
            runner, job, number, left = runner or Runner("inline", 1), self.job, 0, position.epoch * steps

            def first(number: int, since: int) -> tuple[DataEpoch, Count]:
                data = DataEpoch(job, runner, number, scheduled_entry(job, number, since))
                return data, data.units()

            fresh, units = first(0, 0)
            if units and units != math.inf and all(node.row_use.unsteady is None for node in job.binding.nodes):
                number, left = divmod(left, int(units))
                fresh, units = first(number, position.epoch * steps - left)
            empty = 0  # consecutive data epochs without units for this rank
            while units is not None and left >= units and empty < job.rank.world:
                # Each epoch of the data may have another number of units.
                number, left, empty = number + 1, left - int(units), 0 if units else empty + 1
                fresh, units = first(number, position.epoch * steps - left)
            if units and units != math.inf:
                data, opened = number, {str(number): fresh.entry_after(left)}
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
                warn_user(
                    f"functions run in a different numeric environment than the state's: {missing}; results may "
                    "differ in the last bits",
                    user_site(),
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


def units_left(data: DataEpoch) -> Count:
    """Return the number of remaining units; None if it cannot be computed from metadata."""
    with suppress(CedarError):  # for example, a sample row made a function fail
        return data.units()
    return None
