"""Ranks of a new world meet: each says something, rank 0 makes one thing of it, and all of them get that.

Words of an earlier meeting, or of a rank that died, may lie there still, so each rank comes with a name of its own that
is new. Rank 0 asks all it sees to say that they are there. It makes the outcome when all that it asked have, and asks
again when something comes under another name meanwhile: what is old never answers.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from cedar.core.errors import Site, WorkerError
from cedar.engine.words import Words

_LOOK = (0.0001, 0.02)  # seconds between two looks of up to _FEW ranks: the first, and the longest
_FEW = 50  # more look less often: who waits would keep the store from rank 0, which asks for each of them in turn
PATIENCE = 600.0  # seconds for the slowest rank, where loader(timeout=) does not say
Make: TypeAlias = Callable[[list[Any], Callable[[], None]], Any]


class Meeting:
    """One meeting of a rank with the others.

    Args:
        words: where ranks talk.
        name: that all of them know.
        rank, world: of the world that meets.
        timeout: seconds for the slowest rank.
        site: for errors.
        late: the error for ranks that did not come within so many seconds; that of ``reshard()`` by default.
        stopped: nothing waits for the outcome any more.
    """

    def __init__(
        self, words: Words, name: str, rank: int, world: int, timeout: float | None, site: Site | None,
        late: Callable[[list[int], float], WorkerError] | None = None, stopped: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._words, self._name, self._rank, self._world, self._site = words, name, rank, world, site
        self._timeout = timeout or PATIENCE
        self._late, self._stopped = late or self._late_to_reshard, stopped
        self._me = uuid.uuid4().hex[:16]

    def outcome(self, mine: Any, make: Make) -> tuple[str, Any]:
        """The name of this meeting, and what rank 0 made of what all said.

        Args:
            mine: what this rank says, as JSON.
            make: makes the outcome, as JSON, of what ranks 0, 1, ... said; it calls its second argument now and then,
                so that the others know that something is at work.

        Raises:
            WorkerError: a rank did not come in time, or there is no way to hear of any.
        """
        with talk(self._site):
            if self._rank != 0:
                return self._member(mine)
            meeting, said = self._ask(mine)
        at_work = iter(range(1 << 62))

        def going_on() -> None:
            with talk(self._site):
                self._words.set(f"{self._name}/{meeting}/at", str(next(at_work)))

        made = make(said, going_on)
        with talk(self._site):
            self._words.set(f"{self._name}/{meeting}/outcome", json.dumps(made))
            self._words.drop(f"{self._name}/{meeting}/at")
            for rank in range(1, self._world):
                self._words.drop(f"{self._name}/{meeting}/here/{rank}")
        return meeting, made

    def _ask(self, mine: Any) -> tuple[str, list[Any]]:
        """Rank 0: have all others say that they are there; what each said."""
        came: dict[int, dict[str, Any]] = {}
        meeting, asked = "", False
        here: set[int] = set()
        look = Polling(self._timeout, self._world, self._stopped)
        while len(here) < self._world - 1:
            for rank in range(1, self._world):
                text = self._words.get(f"{self._name}/hello/{rank}")
                hello = None if text is None else json.loads(text)
                if hello is None or hello["world"] != self._world:
                    asked = came.pop(rank, None) is None and asked
                elif rank not in came or came[rank]["id"] != hello["id"]:
                    came[rank], asked = hello, False
            if len(came) == self._world - 1 and not asked:
                meeting, asked, here = uuid.uuid4().hex[:16], True, set()
                for rank, hello in came.items():
                    self._words.set(f"{self._name}/asked/{rank}", f"{hello['id']} {meeting}")
            if asked:
                here |= {r for r in came if r not in here and self._words.get(f"{self._name}/{meeting}/here/{r}")}
            if len(here) < self._world - 1 and not look.again():
                missing = [r for r in range(1, self._world) if r not in (here if asked else came)]
                raise self._late(missing, self._timeout)
        return meeting or uuid.uuid4().hex[:16], [mine, *(came[rank]["word"] for rank in range(1, self._world))]

    def _member(self, mine: Any) -> tuple[str, Any]:
        """All other ranks: be there, and wait for the outcome."""
        hello, asked = f"{self._name}/hello/{self._rank}", f"{self._name}/asked/{self._rank}"
        self._words.set(hello, json.dumps({"id": self._me, "world": self._world, "word": mine}))
        meeting, at = "", None
        look = Polling(self._timeout, self._world, self._stopped)
        while True:
            # Asked first: where rank 0 is at its next meeting, it has left the outcome of this one before.
            me, _, named = (self._words.get(asked) or "").partition(" ")
            text = self._words.get(f"{self._name}/{meeting}/outcome") if meeting else None
            if text is not None:
                self._words.drop(hello)
                self._words.drop(asked)
                return meeting, json.loads(text)
            if me == self._me and named != meeting:
                meeting = named
                self._words.set(f"{self._name}/{meeting}/here/{self._rank}", "here")
                look = Polling(self._timeout, self._world, self._stopped)
            elif meeting and (word := self._words.get(f"{self._name}/{meeting}/at")) != at:
                at, look = word, Polling(self._timeout, self._world, self._stopped)
            if not look.again():
                asked_before = me == self._me
                others = [r for r in range(1, self._world) if self._words.get(f"{self._name}/hello/{r}") is None]
                self._words.drop(hello)
                raise self._late(others if asked_before else [0, *others], self._timeout)

    def _late_to_reshard(self, missing: list[int], seconds: float) -> WorkerError:
        return WorkerError(
            f"rank(s) {', '.join(map(str, missing)) or 'unknown'} of {self._world} did not call reshard() within "
            f"{seconds:g} s",
            site=self._site,
            done="nothing was redistributed: this rank is where it stood",
            fix="all ranks of the new world call reshard() at the same step, each with its own rank and the same "
            "world; call it again with the ranks that exist, or raise loader(timeout=)",
        )


class Polling:
    """Looks repeatedly, with longer pauses, until there was no time left."""

    def __init__(self, timeout: float, world: int, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._until, longer = time.monotonic() + timeout, max(1.0, world / _FEW)
        self._pause, self._longest = longer * _LOOK[0], longer * _LOOK[1]

    def again(self) -> bool:
        if time.monotonic() > self._until or self._stopped():
            return False
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, self._longest)
        return True


@contextmanager
def talk(site: Site | None, done: str | None = None) -> Iterator[None]:
    """Raises WorkerError where a store or a folder cannot be reached."""
    try:
        yield
    except (RuntimeError, OSError) as error:  # torch's errors of stores are RuntimeErrors
        raise WorkerError(
            f"this rank cannot communicate with the others: {error}",
            site=site,
            done=done,
            fix="check the log of the process that holds the store of torch.distributed, or at the folder or the "
            "service of agree=",
        ) from error
