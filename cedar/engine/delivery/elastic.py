"""Elastic: change the ranks of a job while an epoch is in progress.

A change works like a resume on another number of ranks, but without a stop. All ranks of the new world meet, and send
their states if they have one. Rank 0 merges the states into one, and each rank continues with its part of it. A lost
rank sends no state. It is assumed to have received every step up to the change. Its position is derived from the other
ranks' states or, if ranks have lanes, found by running its part again up to that step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cedar.core.errors import CedarError, PipelineError, ResumeError, Site
from cedar.engine.delivery.state import merge, part_of, validated
from cedar.engine.key_values import KeyValueStore, key_value_store_at
from cedar.engine.rendezvous import Rendezvous, talk

State = dict[str, Any]
_NO_MEETING = "0"


@dataclass(frozen=True)
class LostRank:
    """A lost rank, whose part must be run again to find its position.

    Args:
        rank, world: its number, and the number of ranks, before the change.
        state: its state when it began the epoch.
        steps: number of steps that it has received since then.
        lanes: whether it had its own lanes.
    """

    rank: int
    world: int
    state: State
    steps: int
    lanes: bool


class Elastic:
    """One rank's part in changes of ranks: it publishes data in advance, and participates in the change.

    Args:
        name: name of the loader, the same on all ranks.
        place: returns the means of communication for (rank, world); see ``meeting_place``.
        timeout: seconds to wait for the slowest rank.
        check: raises an error if a state belongs to another pipeline.
        chunk: returns the minimum units of a rank's run; see ``merge``.
        drifts: whether a rank's position in an epoch cannot be derived from its steps, even if counts are known.
        run_again: runs a lost rank's part, and returns its state after its last step.
    """

    def __init__(
        self,
        name: str,
        place: Callable[[int, int], Any],
        timeout: float | None,
        check: Callable[[State, Site | None], None],
        chunk: Callable[[], int],
        drifts: bool,
        run_again: Callable[[LostRank, Callable[[], None]], State],
    ) -> None:
        self._name, self._place, self._timeout = name, place, timeout
        self._check, self._chunk, self._drifts, self._run_again = check, chunk, drifts, run_again
        self._changes = 0  # number of changes in which this rank participated
        self.meeting = ""  # name of the latest change's rendezvous

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

    def must_publish(self, begun: State, epoch: int, lanes: bool, together: bool) -> bool:
        """Whether this rank must publish its position at an epoch's beginning, since other ranks cannot derive it."""
        plain = begun == {"step": 0, "data": epoch, "open": {}}
        return (lanes or self._drifts) and (together or not plain)

    def publish_beginning(self, begun: State, epoch: int, rank: int, world: int, site: Site | None) -> None:
        """Publish this rank's position at an epoch's beginning, in case the rank is lost before the next change."""
        words = self._words(rank, world, site)
        if words is not None:
            with talk(site):
                words.set(self._key("begun", rank), json.dumps({"epoch": epoch, "world": world, "begun": begun}))

    def leave(self, state: State | None, rank: int, world: int, site: Site | None) -> None:
        """Publish this rank's last state for the ranks that continue."""
        words = self._words(rank, world, site)
        if words is not None and state is not None:
            with talk(site):
                words.set(self._key("left", rank), json.dumps(state))

    # ---- a change ----------------------------------------------------------------------------------------------------

    def change(
        self, state: State | None, epoch: int, publishes: bool, rank: int, world: int, site: Site | None
    ) -> State | None:
        """Return the merged state of all ranks; None if no rank had begun.

        Args:
            state: this rank's state; None if it has not begun.
            epoch: this rank's current epoch.
            publishes: the result of ``must_publish``.
            rank, world: this rank's number and the number of ranks after the change.

        Raises:
            ResumeError: the ranks are at different steps or have different pipelines.
            WorkerError: a rank did not join in time.
        """
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
            return None if state is None else merge([validated(state, site)], self._chunk(), site)
        said = {"state": state, "epoch": epoch, "publishes": publishes, "deals": self._changes, "meeting": self.meeting}

        def make(messages: list[State], keep_alive: Callable[[], None]) -> State:
            try:
                return self._merged(words, messages, keep_alive, site)
            except CedarError as error:  # send the error to the other ranks
                return {"error": [error.what, error.fix]}

        meeting, made = Rendezvous(words, self._name, rank, world, self._timeout, site).outcome(said, make)
        if "error" in made:
            problem, fix = made["error"]
            raise ResumeError(problem, site=site, done="nothing was redistributed", fix=fix)
        self._changes, self.meeting = made["deals"], meeting
        return made["state"]  # type: ignore[no-any-return]

    def _merged(
        self, words: KeyValueStore, said: Sequence[State], keep_alive: Callable[[], None], site: Site | None
    ) -> State:
        """On rank 0: merge the states of all ranks."""
        deals = max(each["deals"] for each in said)
        if all(each["state"] is None for each in said):
            _common_value("epochs", [each["epoch"] for each in said])
            return {"state": None, "deals": deals + 1}
        # If a rank missed the last change, other ranks have its part, so it joins like a new rank.
        stood = [each for each in said if each["state"] is not None and each["deals"] == deals]
        meeting = _common_value("meetings", [each["meeting"] for each in stood])
        states = [validated(each["state"], site) for each in stood]
        for state in states:
            self._check(state, site)
        world = _common_value("worlds", [state["world"] for state in states])
        gone = sorted({*range(world)} - {state["rank"] for state in states})
        front = [state for state in states if state["epoch"] == min(each["epoch"] for each in states)]
        _common_value("steps", [state["step"] for state in front])
        publishes = any(each["publishes"] for each in stood)
        states += [self._lost_state(words, meeting, front[0], rank, publishes, keep_alive, site) for rank in gone]
        state = merge(states, self._chunk(), site)
        with talk(site):  # all ranks of the last change have met again, so what they published for it can be deleted
            for rank in range(world):
                words.drop(self._key("begun", rank, meeting))
                words.drop(self._key("left", rank, meeting))
            words.drop(f"{self._name}/{meeting}/outcome")
        return {"state": state, "deals": deals + 1}

    def _lost_state(
        self, words: KeyValueStore, meeting: str, other: State, rank: int, publishes: bool,
        keep_alive: Callable[[], None], site: Site | None,
    ) -> State:  # fmt: skip
        """Return the state of a lost rank after the same number of steps as another rank's state, ``other``."""
        lanes = any(entry["lanes"] is not None for entry in other["open"].values())
        if not lanes and not self._drifts:  # the position in the state is valid for all ranks
            return other | {"rank": rank}
        with talk(site):
            begun = self._lost_beginning(words, meeting, other, rank, publishes)
            left = words.get(self._key("left", rank, meeting))
        if left is not None:
            state = validated(left, site)
            if (state["epoch"], state["step"], state["begun"]) == (other["epoch"], other["step"], begun):
                return state
        state = other | begun | {"rank": rank, "begun": begun, "skipped": {}, "seen": 0}
        return self._run_again(LostRank(rank, other["world"], state, other["step"] - begun["step"], lanes), keep_alive)

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
            f"the ranks are at different {quantity}: {sorted(set(values))}",
            fix="call reshard() at the same step on all ranks; a restarted rank creates a new loader and "
            "loads no state",
        )
    return values[0]
