"""Elastic: a job whose ranks change while an epoch is in progress.

A change is a resume without a stop. The ranks of the new world meet, those that were there before bring their states,
and rank 0 makes of these the one state that a resume at another number of ranks makes; each rank takes its part of it.
A rank that is gone brings none: it counts as having had every step up to the change, as the others have, and where
that leaves it is read off their states or, where ranks have lanes, found by running its part again up to there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cedar.core.errors import CedarError, PipelineError, ResumeError, Site
from cedar.engine.delivery.state import merge, part_of, validated
from cedar.engine.meet import Meeting, talk
from cedar.engine.words import Words, words_at

State = dict[str, Any]
_NO_MEETING = "0"


@dataclass(frozen=True)
class LostRank:
    """A rank that is gone, to be run again.

    Args:
        rank, world: that it had.
        state: where its steps count from.
        steps: that it had since.
        lanes: it had lanes of its own.
    """

    rank: int
    world: int
    state: State
    steps: int
    lanes: bool


class Elastic:
    """What a rank keeps and tells for the next change of ranks.

    Args:
        name: of the loader, the same on all ranks.
        place: where ranks talk, by rank and world, as of ``meeting_place``.
        timeout: seconds for the slowest rank.
        check: raises where a state is of another pipeline.
        chunk: least units of a rank's run, as of ``merge``.
        drifts: how far a rank is in an epoch does not follow from its steps, even where counts are known.
        run_again: a state of a rank that is gone, after its last step.
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
        self._deals = 0  # how often the ranks of this one's job changed
        self.meeting = ""  # where that was last

    def _words(self, rank: int, world: int, site: Site | None) -> Words | None:
        place = self._place(rank, world)
        if place is None:
            return None
        with talk(site):
            return words_at(place)

    def _at(self, kind: str, rank: int, meeting: str | None = None) -> str:
        meeting = self.meeting if meeting is None else meeting
        return f"{self._name}/{meeting or _NO_MEETING}/{kind}/{rank}"

    # ---- what ranks report before any of them ends
    # -------------------------------------------------------------------------

    def tells(self, begun: State, epoch: int, lanes: bool, together: bool) -> bool:
        """Whether the others cannot know where this rank began an epoch, unless it tells them."""
        plain = begun == {"step": 0, "data": epoch, "open": {}}
        return (lanes or self._drifts) and (together or not plain)

    def begins(self, begun: State, epoch: int, rank: int, world: int, site: Site | None) -> None:
        """Tell where this rank begins an epoch, in case it is gone at the next change."""
        words = self._words(rank, world, site)
        if words is not None:
            with talk(site):
                words.set(self._at("begun", rank), json.dumps({"epoch": epoch, "world": world, "begun": begun}))

    def leave(self, state: State | None, rank: int, world: int, site: Site | None) -> None:
        """Leave this rank's state to those that continue."""
        words = self._words(rank, world, site)
        if words is not None and state is not None:
            with talk(site):
                words.set(self._at("left", rank), json.dumps(state))

    # ---- a change ----------------------------------------------------------------------------------------------------

    def change(
        self, state: State | None, epoch: int, tells: bool, rank: int, world: int, site: Site | None
    ) -> State | None:
        """Where all ranks stand together; None if none of them had begun.

        Args:
            state: of this rank; None if it has begun nothing.
            epoch: where it stands.
            tells: as of ``tells``.
            rank, world: from now on.

        Raises:
            ResumeError: the ranks do not stand at one step, or in other pipelines.
            WorkerError: a rank did not come.
        """
        words = self._words(rank, world, site)
        if words is None:
            if world > 1 or (state is not None and state["world"] > 1):
                raise PipelineError(
                    "reshard(): these ranks cannot tell each other where they stand",
                    site=site,
                    done="nothing was redistributed",
                    fix="give loader(agree=), a folder that all ranks see, the address of a service, or a store of "
                    "torch.distributed that outlives each of them; or initialize torch.distributed for the new ranks "
                    "before reshard()",
                )
            return None if state is None else merge([validated(state, site)], self._chunk(), site)
        said = {"state": state, "epoch": epoch, "tells": tells, "deals": self._deals, "meeting": self.meeting}

        def make(all_said: list[State], going_on: Callable[[], None]) -> State:
            try:
                return self._made(words, all_said, going_on, site)
            except CedarError as error:  # all others must hear of it
                return {"error": [error.what, error.fix]}

        meeting, made = Meeting(words, self._name, rank, world, self._timeout, site).outcome(said, make)
        if "error" in made:
            problem, fix = made["error"]
            raise ResumeError(problem, site=site, done="nothing was redistributed", fix=fix)
        self._deals, self.meeting = made["deals"], meeting
        return made["state"]  # type: ignore[no-any-return]

    def _made(self, words: Words, said: Sequence[State], going_on: Callable[[], None], site: Site | None) -> State:
        """What rank 0 makes of what all said."""
        deals = max(each["deals"] for each in said)
        if all(each["state"] is None for each in said):
            _same("epochs", [each["epoch"] for each in said])
            return {"state": None, "deals": deals + 1}
        # Who missed the last change had its part assigned to the others: it comes as a new rank does.
        stood = [each for each in said if each["state"] is not None and each["deals"] == deals]
        meeting = _same("meetings", [each["meeting"] for each in stood])
        states = [validated(each["state"], site) for each in stood]
        for state in states:
            self._check(state, site)
        world = _same("worlds", [state["world"] for state in states])
        gone = sorted({*range(world)} - {state["rank"] for state in states})
        front = [state for state in states if state["epoch"] == min(each["epoch"] for each in states)]
        _same("steps", [state["step"] for state in front])
        tells = any(each["tells"] for each in stood)
        states += [self._gone(words, meeting, front[0], rank, tells, going_on, site) for rank in gone]
        state = merge(states, self._chunk(), site)
        with talk(site):  # all who were there last have met again: they ask for nothing of that any more
            for rank in range(world):
                words.drop(self._at("begun", rank, meeting))
                words.drop(self._at("left", rank, meeting))
            words.drop(f"{self._name}/{meeting}/outcome")
        return {"state": state, "deals": deals + 1}

    def _gone(
        self, words: Words, meeting: str, other: State, rank: int, tells: bool, going_on: Callable[[], None],
        site: Site | None,
    ) -> State:  # fmt: skip
        """The state of a rank that is gone, after as many steps as another one had."""
        lanes = any(entry["lanes"] is not None for entry in other["open"].values())
        if not lanes and not self._drifts:  # ranks are equally far
            return other | {"rank": rank}
        with talk(site):
            begun = self._begun(words, meeting, other, rank, tells)
            left = words.get(self._at("left", rank, meeting))
        if left is not None:
            state = validated(left, site)
            if (state["epoch"], state["step"], state["begun"]) == (other["epoch"], other["step"], begun):
                return state
        state = other | begun | {"rank": rank, "begun": begun, "skipped": {}, "seen": 0}
        return self._run_again(LostRank(rank, other["world"], state, other["step"] - begun["step"], lanes), going_on)

    def _begun(self, words: Words, meeting: str, other: State, rank: int, tells: bool) -> State:
        """Where a rank that is gone began this epoch."""
        shared = words.get(f"{self._name}/{meeting}/outcome") if meeting else None
        state = None if shared is None else json.loads(shared)["state"]
        if state is not None and (state["epoch"], state["step"]) == (other["epoch"], other["begun"]["step"]):
            part = part_of(state, rank, other["world"])
            return {name: part[name] for name in ("step", "data", "open")}
        if not tells:
            return {"step": 0, "data": other["epoch"], "open": {}}
        reported = words.get(self._at("begun", rank, meeting))
        entry = None if reported is None else json.loads(reported)
        here = other["epoch"], other["world"], other["begun"]["step"]
        if entry is None or (entry["epoch"], entry.get("world"), entry["begun"]["step"]) != here:  # of an earlier start
            raise ResumeError(
                f"rank {rank} of {other['world']} ended and did not report where it began epoch {other['epoch']}",
                fix="continue from the last checkpoint: load_state_dict() with the states of all ranks; with "
                "loader(agree=) what ranks tell outlives a group that is rebuilt",
            )
        return entry["begun"]  # type: ignore[no-any-return]


def _same(quantity: str, values: list[Any]) -> Any:
    """The one value of all ranks."""
    if any(value != values[0] for value in values):
        raise ResumeError(
            f"the ranks stand at different {quantity}: {sorted(set(values))}",
            fix="call reshard() at the same step on all ranks; a rank that was started again makes a new loader and "
            "loads no state",
        )
    return values[0]
