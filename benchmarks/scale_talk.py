"""How ranks agree and meet, at any number of them: the real code, over a modeled store, in simulated seconds."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import numpy as np

from benchmarks.scale_clock import Barrier, Board, Clock, Store
from benchmarks.scale_service import Lines, Service
from cedar.cluster.service.meeting import ServiceBoard, ServiceKeyValues
from cedar.engine import agree, rendezvous
from cedar.engine.rendezvous import KeyValueStore, TorchKeyValues


@dataclass(frozen=True)
class Agreed:
    """How an epoch ended.

    Args:
        steps: that each rank took.
        left: batches that each rank had and did not deliver.
        seconds: of the whole, simulated.
        beyond: seconds of a step over those that its slowest rank takes.
        requests: to the store or the service, of all ranks.
        cpu: seconds of the service, measured.
    """

    steps: list[int]
    left: list[int]
    seconds: float
    beyond: float
    requests: int
    cpu: float


@contextmanager
def _place(clock: Clock, model: Board | Service) -> Iterator[Store | Lines]:
    """Where ranks can talk, in simulated seconds."""
    place = Lines(clock, model) if isinstance(model, Service) else Store(clock, model)
    with (
        patch.object(rendezvous, "time", clock),
        patch("cedar.cluster.service.meeting.ServiceLine", place.line if isinstance(place, Lines) else None),
    ):
        yield place


def _board(place: Store | Lines, rank: int, world: int) -> agree.Board:
    return (agree.StoreBoard if isinstance(place, Store) else ServiceBoard)(place, "run", rank, world)


def _words(place: Store | Lines) -> KeyValueStore:
    return TorchKeyValues(place) if isinstance(place, Store) else ServiceKeyValues(place)


def agreed(units: Sequence[int], step: float, slow: float = 1.0, model: Board | Service | None = None) -> Agreed:
    """All ranks run their epochs, in step as collectives hold them.

    Args:
        units: batches that each rank has.
        step: seconds of one, on average; they differ from rank to rank and step to step, sigma 0.05.
        slow: rank 0 takes so many times as long.
        model: where they talk; the store by default.
    """
    clock, world = Clock(), len(units)
    barrier = Barrier(clock, world)
    draws = [np.random.default_rng(rank) for rank in range(world)]
    steps, left = [0] * world, [0] * world
    slowest: dict[int, float] = {}

    def rank_runs(rank: int) -> None:
        agreement = agree.Agreement(_board(place, rank, world), world, False, None, None)
        for _ in agreement.through(iter(range(units[rank])), lambda: 0):
            seconds = step * float(draws[rank].lognormal(0, 0.05)) * (slow if rank == 0 else 1.0)
            slowest[steps[rank]] = max(slowest.get(steps[rank], 0.0), seconds)
            clock.sleep(seconds)
            barrier.wait()
            steps[rank] += 1
        left[rank] = agreement.undelivered

    with _place(clock, model or Board()) as place:
        seconds = clock.run([partial(rank_runs, rank) for rank in range(world)])
    beyond = (seconds - sum(slowest.values())) / max(len(slowest), 1)
    return Agreed(steps, left, seconds, beyond, place.requests, getattr(place, "cpu", 0.0))


def met(world: int, model: Board | Service | None = None) -> tuple[float, int]:
    """All ranks meet for ``reshard``: simulated seconds, and requests to the store or the service."""
    clock = Clock()
    outcomes: set[tuple[str, int]] = set()

    def rank_comes(rank: int) -> None:
        meeting = rendezvous.Rendezvous(_words(place), "run", rank, world, None, None)
        outcomes.add(meeting.outcome(rank, lambda said, _: sum(said)))

    with _place(clock, model or Board()) as place:
        seconds = clock.run([partial(rank_comes, rank) for rank in range(world)])
    ((_, made),) = outcomes  # all have the same
    assert made == world * (world - 1) // 2
    return seconds, place.requests


def folder_look(world: int) -> float:
    """CPU seconds of one look of one rank into a folder where all have spoken (``loader(agree=FOLDER)``)."""
    with tempfile.TemporaryDirectory() as folder:
        board = agree.FolderBoard(folder, "cedar/run/1", 0, world)
        board._session = "met"
        (inside,) = os.listdir(folder)
        for rank in range(world):
            open(os.path.join(folder, inside, f"met.r{rank}.0.None"), "x").close()
        began = time.process_time()
        assert board.ends(0) == []
        return time.process_time() - began
