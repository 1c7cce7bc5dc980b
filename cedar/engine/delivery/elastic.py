"""Elastic: change the ranks of a job while an epoch is in progress.

A change works like a resume on another number of ranks, but without a stop. All ranks of the new world meet, and send
their states if they have one. Rank 0 merges the states into one, and each rank continues with its part of it. A lost
rank sends no state. It is assumed to have received every step up to the change. Its position is derived from the other
ranks' states or, if ranks have lanes, found by running its part again up to that step.

Ranks with lanes also publish their positions every few steps. A state contains the latest position of each rank, so the
state of one rank restores all ranks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from cedar.core.errors import CedarError, PipelineError, ResumeError, Site, WorkerError
from cedar.core.process import Rank
from cedar.engine.account import Budgets
from cedar.engine.compiler import min_run_units
from cedar.engine.delivery.checkpoint import continue_from, read_files_as_saved, saved_state
from cedar.engine.delivery.epochs import Epochs
from cedar.engine.delivery.iteration import iterate
from cedar.engine.delivery.mixtures import add_saved_inputs
from cedar.engine.delivery.options import check_slices
from cedar.engine.delivery.parts import Parts
from cedar.engine.delivery.state import copied, for_rank, merge, part_of, validated
from cedar.engine.rendezvous import KeyValueStore, Rendezvous, key_value_store_at, talk
from cedar.operators.take import whole
from cedar.plan.graph import digest, topology

State = dict[str, Any]
_NO_MEETING = "0"
_log = logging.getLogger("cedar")


class Elastic:
    """One rank's part in changes of ranks: it publishes data in advance, and participates in the change.

    Args:
        parts: the loader's components. What is used of them here stays the same when they are replaced.
    """

    def __init__(self, parts: Parts) -> None:
        self._place, self._timeout = parts.job.place, parts.options.timeout
        self._root, self._seed = parts.job.binding.root, parts.options.seed
        self._changes = 0  # number of changes in which this rank participated
        self.meeting = ""  # name of the latest change's rendezvous
        self._published: list[Any] = []  # this rank's latest two positions
        self._positions: KeyValueStore | None = None  # where ranks with lanes publish their positions

    @cached_property
    def _name(self) -> str:
        return f"cedar/{digest([topology(self._root), self._seed, 'reshard'])[:16]}"

    def _words(self, rank: int, world: int, site: Site | None) -> KeyValueStore | None:
        place = self._place(rank, world)
        if place is None:
            return None
        with talk(site):
            return key_value_store_at(place)

    def _key(self, kind: str, rank: int, meeting: str | None = None) -> str:
        meeting = self.meeting if meeting is None else meeting
        return f"{self._name}/{meeting or _NO_MEETING}/{kind}/{rank}"

    # ---- what ranks publish in advance -------------------------------------------------------------------------------

    def _must_publish(self, epochs: Epochs) -> bool:
        """Whether only this rank knows where it began the epoch."""
        sharing, position = epochs.job.sharing, epochs.position
        plain = position.begun == {"step": 0, "data": position.epoch, "open": {}}
        return (sharing.lanes or position.has_lanes or epochs.parts.drifts) and (sharing.together or not plain)

    def publish_beginning(self, epochs: Epochs) -> None:
        """Publish this rank's position at an epoch's beginning, in case the rank is lost before the next change."""
        rank, position, site = epochs.parts.job.rank, epochs.position, epochs.parts.site
        self._positions = None  # where ranks communicate may have changed
        self.publish_position(epochs)
        must = rank.world > 1 and self._must_publish(epochs)
        words = self._words(rank.rank, rank.world, site) if must else None
        if words is not None:
            said = {"epoch": position.epoch, "world": rank.world, "begun": position.begun}
            with talk(site):
                words.set(self._key("begun", rank.rank), json.dumps(said))

    def _run(self, epochs: Epochs) -> list[Any]:
        """What two ranks have in common if their positions are of the same run."""
        world, weights = epochs.job.rank.world, sorted(epochs.job.weights.items())
        return [self.meeting, world, digest([epochs.parts.identity.sources, weights])]

    def publish_position(self, epochs: Epochs) -> None:
        """Publish this rank's position for the states of other ranks, which need the latest one before their step."""
        rank = epochs.job.rank
        if rank.world == 1 or not epochs.job.sharing.lanes:
            return
        self._positions = self._positions or self._words(rank.rank, rank.world, epochs.parts.site)
        if self._positions is None:
            return
        position, data = epochs.position, epochs.position.data
        opened = {number: entry for number, entry in position.opened().items() if int(number) >= data}
        self._published = [*self._published[-1:], [position.epoch, [position.step, data, opened]]]
        with suppress(WorkerError), talk(None):  # without it, a state restores this rank in another way
            self._positions.set(self._key("at", rank.rank), json.dumps([self._run(epochs), self._published]))

    def positions(self, epochs: Epochs) -> State:
        """Return the field of a state with the latest positions that other ranks published."""
        found: State = {}
        words, rank, position = self._positions, epochs.job.rank, epochs.position
        if words is None:
            return {}
        run = self._run(epochs)
        for other in {*range(rank.world)} - {rank.rank}:
            text = None
            with suppress(WorkerError), talk(None):
                text = words.get(self._key("at", other))
            theirs, places = (None, []) if text is None else json.loads(text)
            for epoch, place in places if theirs == run else ():
                if epoch == position.epoch and place[0] <= position.step:
                    found[str(other)] = place
        return {"ranks": found} if found else {}

    def state_of_rank(self, epochs: Epochs, state: State, rank: int, site: Site | None) -> State:
        """Return the state of another rank after the same number of steps as that of ``state``.

        Raises:
            ResumeError: the other rank's state cannot be derived from this one.
        """
        begun = state["begun"]
        lanes = any(entry["lanes"] is not None for each in (state, begun) for entry in each["open"].values())
        place = state.get("ranks", {}).get(str(rank))
        sharing = epochs.job.sharing
        plain = not begun["open"] and (not sharing.together or state["epoch"] == 0)
        if state["rank"] == rank or state.get("order") == "any" or not lanes or not (place or plain):
            return for_rank(state, rank, epochs.parts.drifts, site)
        if place:
            step, data, opened = place
            start = {"step": step, "data": data, "open": opened}
        else:
            start = begun | {"skipped": {}, "seen": 0}
            _log.warning(
                "the state has no position of rank %d, which runs its first %d step(s) again to find it; "
                "loader(agree=) or torch.distributed avoids this",
                rank, state["step"] - begun["step"],
            )  # fmt: skip
        start = state | start | {"rank": rank, "begun": {} if begun["open"] else begun}
        mix = {"mix": state["mix"]} if "mix" in state else {}
        return _run_again(epochs.parts, copied(start), state["step"] - start["step"], True, lambda: None) | mix

    def leave(self, epochs: Epochs, site: Site | None) -> None:
        """Publish this rank's last state for the ranks that continue."""
        rank = epochs.job.rank
        words = self._words(rank.rank, rank.world, site)
        if words is not None and epochs.used:
            with talk(site):
                words.set(self._key("left", rank.rank), json.dumps(saved_state(epochs)))

    # ---- a change ----------------------------------------------------------------------------------------------------

    def reshard(self, epochs: Epochs, rank: int, world: int, site: Site | None) -> None:
        """Continue as a rank of another number of ranks; see ``Loader.reshard``."""
        parts = epochs.parts
        parts.check_exact("reshard()", site)
        rank, world = whole(rank, "reshard(rank)"), whole(world, "reshard(world)", least=1)
        if rank >= world:
            raise PipelineError(f"reshard({rank}, {world}): rank must be between 0 and world - 1", site=site)
        if parts.options.split_batches:
            check_slices(parts.job.binding, world, site)
        merged = self._agreed_state(epochs, rank, world, site)
        part = None if merged is None else part_of(merged, rank, world)
        if part is not None:
            add_saved_inputs(epochs, part)
            if epochs.parts.identity.sources != part["sources"]:  # ranks that have finished read the current files
                read_files_as_saved(epochs, part, site)
            parts = epochs.parts
            parts.identity.check(part, site)
        parts.change_job(rank=Rank(rank, world, "arguments"))
        parts.account.budgets = Budgets(rank)
        if part is None:
            epochs.begin(epochs.position.epoch)
            epochs.used = True
        else:
            continue_from(epochs, part, site)

    def _agreed_state(self, epochs: Epochs, rank: int, world: int, site: Site | None) -> State | None:
        """Return the merged state of all ranks; None if no rank had begun."""
        state = saved_state(epochs) if epochs.used else None
        parts, epoch = epochs.parts, epochs.position.epoch
        words = self._words(rank, world, site)
        if words is None:
            if world > 1 or (state is not None and state["world"] > 1):
                raise PipelineError(
                    "reshard(): these ranks cannot communicate to agree on a position",
                    site=site,
                    done="nothing was redistributed",
                    fix="give loader(agree=), a folder that all ranks see, the address of a service, or a store of "
                    "torch.distributed that outlives each of them; or initialize torch.distributed for the new ranks "
                    "before reshard()",
                )
            chunk = min_run_units(parts.job.binding)
            return None if state is None else merge([validated(state, site)], chunk, site)
        publishes = self._must_publish(epochs)
        said = {"state": state, "epoch": epoch, "publishes": publishes, "deals": self._changes, "meeting": self.meeting}

        def make(messages: list[State], keep_alive: Callable[[], None]) -> State:
            try:
                return self._merged(parts, words, messages, keep_alive, site)
            except CedarError as error:  # send the error to the other ranks
                return {"error": [error.what, error.fix]}

        meeting, made = Rendezvous(words, self._name, rank, world, self._timeout, site).outcome(said, make)
        if "error" in made:
            problem, fix = made["error"]
            raise ResumeError(problem, site=site, done="nothing was redistributed", fix=fix)
        self._changes, self.meeting = made["deals"], meeting
        return made["state"]  # type: ignore[no-any-return]

    def _merged(
        self, parts: Parts, words: KeyValueStore, said: Sequence[State], keep_alive: Callable[[], None],
        site: Site | None,
    ) -> State:  # fmt: skip
        """On rank 0: merge the states of all ranks."""
        deals = max(each["deals"] for each in said)
        if all(each["state"] is None for each in said):
            _common_value("epochs", [each["epoch"] for each in said])
            return {"state": None, "deals": deals + 1}
        # If a rank missed the last change, other ranks have its part, so it joins like a new rank.
        stood = [each for each in said if each["state"] is not None and each["deals"] == deals]
        meeting = _common_value("meetings", [each["meeting"] for each in stood])
        states = [validated(each["state"], site) for each in stood]
        for state in states:  # files are compared below, since ranks that have finished read the current ones
            parts.identity.check(state | {"sources": parts.identity.sources, "files": parts.identity.marks}, site)
        world = _common_value("worlds", [state["world"] for state in states])
        gone = sorted({*range(world)} - {state["rank"] for state in states})
        front = [state for state in states if state["epoch"] == min(each["epoch"] for each in states)]
        _common_value("steps", [state["step"] for state in front])
        _common_value("files", [digest(state["sources"]) for state in front])
        publishes = any(each["publishes"] for each in stood)
        states += [
            self._lost_state(parts, words, meeting, front[0], rank, publishes, keep_alive, site) for rank in gone
        ]
        state = merge(states, min_run_units(parts.job.binding), site)
        with talk(site):  # all ranks of the last change have met again, so what they published for it can be deleted
            for rank in range(world):
                words.drop(self._key("begun", rank, meeting))
                words.drop(self._key("left", rank, meeting))
            words.drop(f"{self._name}/{meeting}/outcome")
        return {"state": state, "deals": deals + 1}

    def _lost_state(
        self, parts: Parts, words: KeyValueStore, meeting: str, other: State, rank: int, publishes: bool,
        keep_alive: Callable[[], None], site: Site | None,
    ) -> State:  # fmt: skip
        """Return the state of a lost rank after the same number of steps as another rank's state, ``other``."""
        lanes = any(entry["lanes"] is not None for entry in other["open"].values())
        if not lanes and not parts.drifts:  # the position in the state is valid for all ranks
            return other | {"rank": rank}
        with talk(site):
            begun = self._lost_beginning(words, meeting, other, rank, publishes)
            left = words.get(self._key("left", rank, meeting))
        if left is not None:
            state = validated(left, site)
            if (state["epoch"], state["step"], state["begun"]) == (other["epoch"], other["step"], begun):
                return state
        state = other | begun | {"rank": rank, "begun": begun, "skipped": {}, "seen": 0}
        return _run_again(parts, state, other["step"] - begun["step"], lanes, keep_alive)

    def _lost_beginning(self, words: KeyValueStore, meeting: str, other: State, rank: int, publishes: bool) -> State:
        """Return the position at which a lost rank began this epoch."""
        shared = words.get(f"{self._name}/{meeting}/outcome") if meeting else None
        state = None if shared is None else json.loads(shared)["state"]
        if state is not None and (state["epoch"], state["step"]) == (other["epoch"], other["begun"]["step"]):
            part = part_of(state, rank, other["world"])
            return {name: part[name] for name in ("step", "data", "open")}
        if not publishes:
            return {"step": 0, "data": other["epoch"], "open": {}}
        reported = words.get(self._key("begun", rank, meeting))
        entry = None if reported is None else json.loads(reported)
        here = other["epoch"], other["world"], other["begun"]["step"]
        if entry is None or (entry["epoch"], entry.get("world"), entry["begun"]["step"]) != here:  # from another run
            raise ResumeError(
                f"rank {rank} of {other['world']} ended and did not report where it began epoch {other['epoch']}",
                fix="continue from the last checkpoint: load_state_dict() with the states of all ranks; with "
                "loader(agree=) this information survives rebuilding the process group",
            )
        return entry["begun"]  # type: ignore[no-any-return]


def _common_value(quantity: str, values: list[Any]) -> Any:
    """Return the value that is the same on all ranks; raise ResumeError if it differs."""
    if any(value != values[0] for value in values):
        raise ResumeError(
            f"the ranks have different {quantity}: {sorted(set(values))}",
            fix="give all ranks the same files, for example by read_parquet(manifest=)"
            if quantity == "files"
            else "call reshard() at the same step on all ranks; a restarted rank creates a new loader and "
            "loads no state",
        )
    return values[0]


def _run_again(parts: Parts, state: State, steps: int, lanes: bool, keep_alive: Callable[[], None]) -> State:
    """Run a lost rank's part again from a state, and return its state ``steps`` steps later.

    Args:
        lanes: whether it had its own lanes.
    """
    options = replace(parts.options, observer=None, planner=None, plan=None, device=None)
    rank = Rank(state["rank"], state["world"], "arguments")
    weights = {number: now or written for number, (written, now) in state.get("mix", {}).items()}
    weights = {number: each for number, each in weights.items() if None not in each}
    parts = Parts(parts.job.binding.root, options, rank, parts.site, weights=weights)
    shares = replace(parts.job.sharing, lanes=lanes, together=False)
    parts.job = replace(parts.job, shares=shares, place=lambda _rank, _world: None)
    other = Epochs(parts, Elastic(parts))
    other.move_to(state)
    try:
        for _ in zip(range(steps), iterate(other), strict=False):
            keep_alive()
        return validated(saved_state(other), parts.site)
    finally:
        parts.close()
