"""Where a loader stands, and the state that says so."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

from cedar.core.errors import ResumeError, user_site
from cedar.core.numeric import NumericEnvironment
from cedar.engine.compiler import least_run
from cedar.engine.delivery.device_prefetch import AheadEpoch
from cedar.engine.delivery.options import Options
from cedar.engine.delivery.parts import Parts
from cedar.engine.delivery.state import VERSION, choose, copied, seal, validated
from cedar.engine.epoch import DataEpoch
from cedar.engine.runner import Runner
from cedar.operators.take import whole
from cedar.plan.graph import Node


class LoaderPosition(Parts):
    """Where a loader stands in its epoch, as of what the caller received."""

    def __init__(self, root: Node, options: Options) -> None:
        super().__init__(root, options)
        self._left = False  # of the epoch that ended last, something
        self._new = True  # nothing was asked of it yet
        self._dealt = False  # the rest of the epoch, anew, under an iteration
        self._begin_epoch(self._options.epoch)

    def _begin_epoch(self, epoch: int) -> None:
        """Stand at the beginning of an epoch; with ``steps``, the data go on where they were."""
        self.epoch = epoch
        self._step = 0
        self._total: tuple[int, int | None] | None = None  # units of an epoch, once asked for
        self._data = epoch
        self._open: dict[str, Any] = {}
        self._live: DataEpoch | AheadEpoch | None = None  # the epoch whose entry in ``_open`` is behind
        self._mark_beginning()
        self._resumed = self._started = self._placed = False
        self._account.budgets.start({}, 0)

    def _opened(self) -> dict[str, Any]:
        """The entries of the data epochs under way, as of what the caller received."""
        if self._live is not None and self._live.moved:
            self._open[str(self._live.epoch)] = self._live.entry()
        return copied(self._open)  # type: ignore[no-any-return]

    def _mark_beginning(self) -> None:
        """Steps count from here: the epoch's beginning, or where it was dealt anew to other ranks."""
        self._begun: dict[str, Any] = {"step": self._step, "data": self._data, "open": self._opened()}

    def set_epoch(self, epoch: int) -> None:
        """Stand at the beginning of epoch ``epoch``, 0 or above; where a state was loaded that stands in it, there.

        Code written for a DataLoader tells the epoch before each ``for``, also when it was resumed in the middle of it.
        """
        epoch = whole(epoch, "set_epoch(epoch)")
        self._generation += 1
        if epoch == self.epoch and self._resumed:
            return
        if epoch == self.epoch and not self._started and carries(self._begun):
            return  # it stands there, with what was left over of the epoch before
        self._begin_epoch(epoch)

    def _place(self, runner: Runner) -> None:
        """With ``steps``, an epoch that was not reached by running starts where it would."""
        steps = self._options.steps
        if steps is None or self._placed:
            return
        self._placed = True
        if self._step == 0 and self.epoch > 0 and (self._batched or not self._account.skips):
            units = DataEpoch(self._job, runner, self.epoch, None).units()
            if units is not None and units != math.inf and units > 0:
                self._data, taken = divmod(self.epoch * steps, int(units))
                self._open = {str(self._data): {"history": [], "deal": [[taken, None, None], 0], "lanes": None}}
        self._mark_beginning()

    def state_dict(self) -> dict[str, Any]:
        """The position after what the caller received: JSON-able, a few KiB, cheap to make.

        Save it on every rank: a later run with another number of ranks needs the list of all of them.
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
        )  # fmt: skip

    def check_state(self, state: Any) -> None:
        """Whether a state, of any rank, is one of this pipeline, with its code, of its data and its seed.

        Raises:
            ResumeError: it is not.
        """
        site, identity = user_site(), self._identity()
        saved = validated(state, site)
        identity.check(saved | {"code": identity.code}, site)
        if saved["code"] != identity.code:
            raise ResumeError("the code of a function or an expression of the pipeline changed", site=site)

    def load_state_dict(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Go on where a state says, at the next ``for``.

        Args:
            state: what ``state_dict()`` returned; after a change of the number of ranks, the list of all ranks' states.

        Raises:
            ResumeError: the state is damaged, or of another pipeline, data, seed, version or number of ranks.
        """
        site = user_site()
        states = [validated(s, site) for s in (state if isinstance(state, (list, tuple)) else [state])]
        if not states:
            raise ResumeError("the list of states is empty", site=site, fix="give the states of all ranks")
        for saved in states:
            self._identity().check(saved, site)
        chosen = choose(states, self.rank.rank, self.rank.world, self._chunk, site)
        self._generation += 1
        self._stand(chosen)

    def _stand(self, chosen: dict[str, Any]) -> None:
        """Stand where a state of this rank says."""
        self._new = False
        self._begin_epoch(chosen["epoch"])
        self._step, self._data, self._open = chosen["step"], chosen["data"], chosen["open"]
        self._resumed, self._placed = True, True
        if chosen["begun"] is None:  # merged: steps of this world count from here
            self._mark_beginning()
        else:
            self._begun = chosen["begun"]
        self._account.budgets.start(chosen["skipped"], chosen["seen"])
        if self._binding.numeric is not None and chosen.get("numeric") is not None:
            self._kept = NumericEnvironment.of_json(chosen["numeric"])
            missing = self._kept.missing(NumericEnvironment.of_caller())
            self._binding.begin(self._environment())
            if missing:
                warnings.warn(
                    f"functions run in another numeric environment than the state's: {missing}; what they compute may "
                    "differ in the last bits",
                    stacklevel=2,
                )

    def _chunk(self) -> int:
        return least_run(self._binding)


def carries(begun: dict[str, Any]) -> bool:
    """An epoch began with what was left over of the one before."""
    return any(entry.get("before") for entry in begun["open"].values())
