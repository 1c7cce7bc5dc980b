"""A loader's position in its epoch, and the state that saves it."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from cedar.core.errors import ResumeError, Site, SourceError, user_site
from cedar.core.numeric import NumericEnvironment
from cedar.core.ranks import Rank
from cedar.datasets.as_saved import Saved, as_saved
from cedar.datasets.base import Read
from cedar.datasets.filesource import FileSource
from cedar.engine.compiler import min_run_units
from cedar.engine.delivery.device_prefetch import AheadEpoch
from cedar.engine.delivery.options import Options
from cedar.engine.delivery.parts import Parts
from cedar.engine.delivery.state import VERSION, at_snapshots, check_snapshots, choose, copied, seal, validated
from cedar.engine.delivery.units import units_left
from cedar.engine.epoch import DataEpoch
from cedar.engine.nodes import last_mode
from cedar.engine.runner import Runner
from cedar.operators.base import StreamOperator
from cedar.operators.batch import Batch
from cedar.operators.mix import Mix
from cedar.operators.take import whole
from cedar.plan import graph
from cedar.plan.graph import Node

_log = logging.getLogger("cedar")
_MAX_EPOCHS_AHEAD = 8  # maximum number of data epochs by which ranks may differ when their states are merged


class LoaderPosition(Parts):
    """Tracks a loader's position, which is always after the last unit that the caller received."""

    def __init__(self, root: Node, options: Options) -> None:
        super().__init__(root, options)
        self._has_leftovers = False  # whether the latest finished epoch has undelivered units
        self._unused = True  # whether the loader has neither been iterated nor loaded a state
        self._current_files: tuple[Node, Options] | None = None  # root and options to return to the current file list
        self._file_changes: list[str] = []  # messages about files that changed since a state was saved
        self._earlier_steps = 0  # number of steps in earlier epochs
        mixes = [cast("Mix", node.operator) for node in self._binding.mixtures.values()]
        self._scheduled = any(callable(weight) for mix in mixes for weight in mix.weights)  # weights depend on steps
        self._redistributed = False  # whether ranks or weights changed during an iteration, for the rest of the epoch
        self._begin_epoch(self._options.epoch)

    def _begin_epoch(self, epoch: int) -> None:
        """Move to the beginning of an epoch. With ``steps``, the caller restores the position in the data."""
        self.epoch = epoch
        self._step = 0
        self._total: tuple[int, int | None] | None = None  # (epoch, its units), once computed
        self._data = epoch
        self._open: dict[str, Any] = {}
        self._live: DataEpoch | AheadEpoch | None = None  # data epoch in progress, newer than its entry in ``_open``
        self._mark_beginning()
        self._resumed = self._started = self._data_placed = False
        self._ended: dict[str, Any] | None = None  # the loaded state, if it was saved after an epoch's last batch
        self._continue_if_over = False  # whether to run the next epoch if this one proves to have no more batches
        self._account.budgets.start({}, 0)

    def _opened(self) -> dict[str, Any]:
        """Return the state entries of the data epochs in progress, up to the last unit that the caller received."""
        if self._live is not None and self._live.moved:
            self._open[str(self._live.epoch)] = self._live.entry()
        return copied(self._open)  # type: ignore[no-any-return]

    def _mark_beginning(self) -> None:
        """Record the current position as the one from which steps count: at an epoch's start or a change of ranks."""
        self._begun: dict[str, Any] = {"step": self._step, "data": self._data, "open": self._opened()}

    def _close(self, data: DataEpoch | AheadEpoch) -> None:
        """Record that this rank finished a data epoch. States keep this entry, since other ranks may still be in it."""
        self._open = {e: entry for e, entry in self._open.items() if int(e) > data.epoch - _MAX_EPOCHS_AHEAD}
        self._open[str(data.epoch)] = data.closed()
        self._has_leftovers = data.left
        self._metrics.left_out += data.left_out
        self._live = None

    def _finish_epoch(self) -> None:
        self._account.end()
        steps = self._options.steps
        data, open_ = self._data, self._opened()
        self._earlier_steps += self._step
        self._begin_epoch(self.epoch + 1)
        if steps is None:
            self._open = {e: entry for e, entry in open_.items() if int(e) == data}  # other ranks may be in that epoch
            if self._job.sharing.together and self._has_leftovers:
                fresh = DataEpoch(self._job, Runner("inline", 1), self.epoch, None).entry()
                self._open[str(self.epoch)] = fresh | {"before": {"epoch": data, "entry": open_[str(data)]}}
                self._mark_beginning()
        else:
            self._data, self._open, self._data_placed = data, open_, True
            self._mark_beginning()

    def _current_epoch(self) -> DataEpoch:
        """Return the data epoch of the next batch, at the position after the last unit that the caller received."""
        return DataEpoch(self._job, Runner("inline", 1), self._data, self._opened().get(str(self._data)))

    def set_epoch(self, epoch: int) -> None:
        """Move to the beginning of epoch ``epoch``, 0 or above; if a loaded state is in that epoch, keep its position.

        The position is kept because code written for a DataLoader sets the epoch before each ``for``, even after it
        resumed in the middle of the epoch. A state saved after the last batch of epoch 3 is at the beginning of epoch
        4. Setting epoch 3 after loading it selects the rest of epoch 3, which is empty.
        """
        epoch = whole(epoch, "set_epoch(epoch)")
        self._generation += 1
        ended = self._ended if self._resumed else None
        if ended is not None and epoch in (ended["epoch"], ended["epoch"] + 1):
            self._move_to(ended)
            if epoch != ended["epoch"]:
                self._move_to_next_epoch()
            self._ended, self._resumed = ended, True
            return
        if epoch == self.epoch and (self._resumed or not self._started):
            self._continue_if_over = False
            return  # already at that position, perhaps with batches left over from the previous epoch
        self._read_files_as_now()
        self._begin_epoch(epoch)

    def _place(self, runner: Runner) -> None:
        """With ``steps``, compute the position in the data at which an epoch starts, if earlier epochs were not run."""
        steps = self._options.steps
        if steps is None or self._data_placed:
            return
        self._data_placed = True
        if self._step == 0 and self.epoch > 0 and (self._batched or not self._account.skips):
            units = DataEpoch(self._job, runner, self.epoch, None).units()
            if units is not None and units != math.inf and units > 0:
                self._data, taken = divmod(self.epoch * steps, int(units))
                self._open = {str(self._data): {"history": [], "deal": [[taken, None, None], 0], "lanes": None}}
        self._mark_beginning()

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch received: JSON-serializable, a few KiB, and cheap to create.

        Save it on every rank, since a later run with another number of ranks needs the list of all states.
        """
        self._place(Runner("inline", 1))
        identity = self._identity()
        return seal(
            {
                "cedar": VERSION, "pipeline": identity.pipeline, "sources": identity.sources, "files": identity.marks,
                "code": identity.code, "operators": identity.operators,
                "seed": identity.seed, "split_batches": identity.split_batches, "steps": identity.steps,
                "epoch": self.epoch, "step": self._step, "rank": self.rank.rank, "world": self.rank.world,
                "data": self._data, "open": self._opened(), "begun": copied(self._begun),
                "skipped": dict(self._account.budgets.counts), "seen": self._account.budgets.seen,
                "numeric": None if self._binding.numeric is None else self._binding.numeric.to_json(),
            }
            | ({} if identity.counts is None else {"counts": identity.counts})
            | ({"order": "any"} if identity.any_order else {})
            | self._mixed()
            | ({"listings": identity.listings} if any(identity.listings) else {})
            | ({"snapshots": identity.snapshots} if identity.snapshots else {})
        )  # fmt: skip

    def check_state(self, state: Any) -> None:
        """Check that a state of any rank matches this pipeline, its code, its data and its seed.

        Raises:
            ResumeError: the state does not match.
        """
        site, identity = user_site(), self._identity()
        saved = validated(state, site)
        identity.check(saved | {"code": identity.code}, site)
        if saved["code"] != identity.code:
            raise ResumeError("the code of a function or an expression of the pipeline changed", site=site)

    def load_state_dict(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Make the next ``for`` continue from a saved state.

        Args:
            state: what ``state_dict()`` returned on this rank. If row counts are known, the state of any rank works,
                also with another number of ranks. If they are unknown and the number changed, pass all ranks' states.

        Raises:
            ResumeError: the state is damaged; or of another pipeline, data, seed or version; or of another rank, and
                this rank's position cannot be derived from it.
        """
        site = user_site()
        states = [validated(s, site) for s in (state if isinstance(state, (list, tuple)) else [state])]
        if not states:
            raise ResumeError("the list of states is empty", site=site, fix="give the states of all ranks")
        self._read_snapshots(states[0].get("snapshots", []), site)
        self._read_files_as_saved(states[0], site)
        for saved in states:
            self._identity().check(saved, site)
        chosen = choose(states, self.rank.rank, self.rank.world, self._chunk, self._drifts, site)
        self._generation += 1
        self._move_to(chosen)
        self._check_missing_files(site)
        self._apply_saved_weights(chosen, site)
        front = min(states, key=lambda each: (each["epoch"], each["step"], each["rank"]))
        if front["step"] and front["epoch"] == self.epoch:
            over = self._epoch_is_over(front, front["rank"] if len(states) == front["world"] else 0)
            if over:
                self._move_to_next_epoch()
                self._ended, self._resumed = chosen, True
            self._continue_if_over = over is None and self._ends_together

    def _read_files_as_saved(self, state: dict[str, Any], site: Site | None) -> None:
        """If files changed since the state was saved, use the file list and splits that the state recorded."""
        self._read_files_as_now()
        self._file_changes = []
        listings = state.get("listings") or []
        sources, own = graph.sources(self._binding.root), self._identity().sources
        if not len(listings) == len(sources) == len(own) == len(state["sources"]):
            return
        made: dict[int, Node] = {}
        counted = self._job.streams(Runner("inline", 1), 0, [], dry=True)[1].source.count is not None
        try:
            for number, (node, listing) in enumerate(zip(sources, listings, strict=True)):
                source = graph.source_of(node)
                changed = own[number] != state["sources"][number] and listing is not None
                if changed and isinstance(source, FileSource):
                    other, said = as_saved(source, Saved.of(listing), state["files"][number], counted)
                    made[id(node)] = replace(node, operator=Read(other))
                    self._file_changes += said
        except (SourceError, ValueError) as error:
            what = error.what if isinstance(error, SourceError) else f"the state is damaged: {error}"
            fix = error.fix if isinstance(error, SourceError) else "use an earlier checkpoint"
            raise ResumeError(what, site=site, done="nothing was loaded", fix=fix) from error
        if made:
            self._current_files = self._binding.root, self._options
            options = replace(self._options, planner=None, plan=None)  # plans were made for the current files
            self._reinitialize(graph.replace(self._binding.root, lambda node: made.get(id(node))), options)
            for each in self._file_changes:
                _log.warning("%s", each)

    def _read_files_as_now(self) -> None:
        """Switch to the current file list, if the file list of a saved state is in use."""
        if self._current_files is not None:
            root, options = self._current_files
            self._current_files = None
            self._reinitialize(root, options)

    def _reinitialize(self, root: Node, options: Options) -> None:
        """Reinitialize with another root, at the beginning of this epoch and with the same rank."""
        names = ("_current_files", "_file_changes", "_site", "_elastic", "_saved_numeric", "_started", "_earlier_steps")
        kept, weights, counted = {name: self.__dict__[name] for name in names}, self._job.weights, self._metrics
        epoch, generation = self.epoch, self._generation
        self.close()
        options = replace(options, rank=self.rank.rank, world=self.rank.world, subgroup=True)
        self.__init__(root, options)  # type: ignore[misc] # everything else is recreated
        self.__dict__.update(kept)
        self._metrics.__dict__.update(counted.__dict__)  # reports continue with the same counters
        self._generation, self._job = generation + 1, replace(self._job, weights=weights)
        self._begin_epoch(epoch)

    def _check_missing_files(self, site: Site | None) -> None:
        """Raise ResumeError if a file that is now missing was partly delivered, so its remaining rows are unknown."""
        gone = [source for read in self._binding.sources if (source := read.operator.source).__dict__.get("gone")]  # type: ignore[attr-defined]
        looks = gone and not _in_order(self._binding.root)  # in order, all rows before the position were delivered
        try:
            for number, entry in self._open.items() if looks else ():
                DataEpoch(self._job, Runner("inline", 1), int(number), copied(entry)).check_position()
        except ResumeError as error:
            self._read_files_as_now()
            error.site, error.done = site, "nothing was loaded"
            error.fix = f"restore it, or give up the rest of the epoch: set_epoch({self.epoch + 1})"
            raise
        for source in gone:
            del source.__dict__["gone"]  # from now on, positions refer only to existing files

    def _read_snapshots(self, snapshots: list[int | None], site: Site | None) -> None:
        """Read the table snapshots that a state names, if the pipeline reads the latest snapshots."""
        root, options = at_snapshots(self._binding.root, snapshots), self._options
        if root is not self._binding.root and self._unused and options.plan is None:
            planner = None if options.plan_for is None else options.plan_for(root)
            self.__init__(root, replace(options, planner=planner))  # type: ignore[misc] # the loader is still unused
        check_snapshots(self._binding.root, snapshots, site)

    def _epoch_is_over(self, state: dict[str, Any], rank: int) -> bool | None:
        """Whether ``rank`` has finished the epoch after the state's number of steps; None if only a run can show it.

        Rank 0 has the most steps of all ranks, so if rank 0 has finished, all ranks have.
        """
        if self._options.steps is not None:
            return bool(state["step"] >= self._options.steps)
        job = replace(self._job, rank=Rank(rank, state["world"], "the state"), counts={})
        units = units_left(DataEpoch(job, Runner("inline", 1), state["data"], state["open"].get(str(state["data"]))))
        if units is None or (units > 0 and self._account.skips and not self._batched):
            return None
        return units <= 0

    def _mixed(self) -> dict[str, Any]:
        """Return a state's fields for mixtures: the weights as written, and the weights set during the run."""
        weights = {
            number: [cast("Mix", node.operator).written(), self._job.weights.get(number)]
            for number, node in self._binding.mixtures.items()
        }
        return ({"mix": weights} if weights else {}) | ({"earlier": self._earlier_steps} if self._scheduled else {})

    def _apply_saved_weights(self, state: dict[str, Any], site: Site | None) -> None:
        """Apply the mixture weights of a state; implemented in ``Mixtures``."""

    def _move_to_next_epoch(self) -> None:
        """Move from the end of an epoch to the beginning of the next epoch."""
        if self._options.steps is None:  # with steps=, the data epoch continues
            self._close(self._current_epoch())
        self._finish_epoch()

    @property
    def _ends_together(self) -> bool:
        """Whether a rank that has no more batches knows that no other rank has any."""
        sharing, alone = self._job.sharing, self.rank.world == 1 or self._options.split_batches
        return alone or sharing.together or (not sharing.lanes and last_mode(self._binding.root) != "keep")

    @property
    def _drifts(self) -> bool:
        """Whether a rank's position in an epoch cannot be derived from its steps, even if counts are known."""
        kept = self._options.steps is not None and last_mode(self._binding.root) == "keep"
        return kept or (self._account.skips and not self._batched)

    def _move_to(self, chosen: dict[str, Any]) -> None:
        """Move to the position of a state of this rank."""
        self._unused = False
        self._begin_epoch(chosen["epoch"])
        self._step, self._data, self._open = chosen["step"], chosen["data"], chosen["open"]
        self._resumed, self._data_placed = True, True
        self._earlier_steps = chosen.get("earlier", 0)
        if chosen["begun"] is None:  # the state was merged, so the steps of this world count from here
            self._mark_beginning()
        else:
            self._begun = chosen["begun"]
        self._account.budgets.start(chosen["skipped"], chosen["seen"])
        if self._binding.numeric is not None and chosen.get("numeric") is not None:
            self._saved_numeric = NumericEnvironment.of_json(chosen["numeric"])
            missing = self._saved_numeric.missing(NumericEnvironment.of_caller())
            self._binding.begin(self._environment())
            if missing:
                warnings.warn(
                    f"functions run in a different numeric environment than the state's: {missing}; results may "
                    "differ in the last bits",
                    stacklevel=2,
                )

    def _chunk(self) -> int:
        return min_run_units(self._binding)


def _in_order(root: Node) -> bool:
    """Whether rows are delivered in the order of reading, row by row or batched by the last stream operator."""
    nodes = [node for node in graph.walk(root) if node.inputs]
    streams = [node.operator for node in nodes if isinstance(node.operator, StreamOperator)]
    holding = [each for each in streams if not (each.preserves_windows or each.row_use in ("repeated", "some"))]
    alone = all(node.effects.per_row for node in nodes if not isinstance(node.operator, StreamOperator))
    return alone and (not holding or (isinstance(streams[-1], Batch) and holding == [streams[-1]]))


def has_leftovers(begun: dict[str, Any]) -> bool:
    """Whether an epoch began with batches left over from the previous epoch."""
    return any(entry.get("before") for entry in begun["open"].values())
