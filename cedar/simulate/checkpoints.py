"""Simulate which fraction of training time is not lost to failures, for each checkpointing scheme. Imports no torch.

``dense`` stops training for each checkpoint, at the optimal interval (Young, 1974). ``checkfreq`` (FAST '21) copies to
host memory during the next iteration, writes in the background, and saves as often as an overhead of 3.5% allows.
``gemini`` (SOSP '23) copies to the memory of peers while the network is idle, and restores from there. ``moevement``
(arXiv 2412.15411) saves a part in each iteration, in the shortest window that the links can carry. After a failure, the
failed stage's workers replay from the window before the last. Each scheme is modeled as published, without more costs.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from cedar.trainers.common.config import not_negative, positive
from cedar.trainers.common.windows import plan_window, step_bytes

_OVERHEAD = 0.035  # CheckFreq: the largest fraction of training time that checkpoints may cost
_STATE = 12  # bytes per parameter: master weight and two moments, 4 bytes each
_FROZEN = 1 / 6  # fraction of a replay saved: half of the operators are frozen on average, and need no B_WEIGHT


@dataclass(frozen=True)
class CheckpointOptions:
    """The size of the state to save, and the bandwidth of the links that can carry it."""

    values: float  # number of parameters on one worker
    operators: int = 64  # number of operators (such as experts) with these parameters, assumed equally large
    host: float = 12.0  # gigabytes per second from a worker's device to host memory
    network: float = 12.0  # gigabytes per second from a worker to another machine's memory
    idle: float = 0.5  # fraction of an iteration during which the network is idle
    storage: float = 0.5  # gigabytes per second of storage bandwidth per worker
    copies: int = 2  # number of copies in the memory of other machines
    restart: float = 60.0  # seconds from a failure until new workers can load

    def __post_init__(self) -> None:
        positive(self, "values", "operators", "copies")
        not_negative(self, "restart")
        for name in ("host", "network", "idle", "storage"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give more than 0")

    @property
    def state(self) -> float:
        """Return the size of one worker's state, in gigabytes."""
        return _STATE * self.values / 1e9


@dataclass(frozen=True)
class Scheme:
    """A checkpointing scheme; times are in seconds."""

    name: str
    every: int  # iterations between two checkpoints, or iterations in a window
    stall: float = 0.0  # time for which a checkpoint stops training
    lag: float = 0.0  # time from the iteration that is saved until its checkpoint can be restored
    load: float = 0.0  # time to load the state after a restart
    replay: float | None = None  # time for the failed stage to redo an iteration; None: all stages roll back


def schemes(options: CheckpointOptions, iteration: float, mtbf: float, alone: float = 1.0) -> list[Scheme]:
    """Return the four schemes for a job that fails every ``mtbf`` seconds on average.

    Args:
        options: size of the state, and bandwidths.
        iteration: seconds of an iteration.
        mtbf: mean seconds between failures.
        alone: an iteration's time on one stage that never waits for others, as a fraction of ``iteration``.

    Examples:
        >>> [scheme.every for scheme in schemes(CheckpointOptions(1e9, storage=1.0), 3.0, 600.0)]
        [42, 5, 2, 2]
    """
    state, memory = options.state, options.network * options.idle
    write, copy = state / options.storage, state / options.host
    stop = copy + write
    dense = max(1, round(math.sqrt(2 * stop * mtbf) / iteration))
    stalled = max(0.0, copy - iteration)
    checkfreq_every = max(1, math.ceil((copy + write) / iteration), math.ceil(stalled / (_OVERHEAD * iteration)))
    sent = options.copies * state / memory
    peers = max(1, math.ceil(sent / iteration))
    window = smallest_window(options, iteration)
    return [
        Scheme("dense", dense, stall=stop, load=write),
        Scheme("checkfreq", checkfreq_every, stall=stalled, lag=copy + write, load=write),
        Scheme("gemini", peers, lag=sent, load=state / options.network),
        Scheme("moevement", window, lag=iteration, load=state / options.network, replay=alone * iteration),
    ]


def smallest_window(options: CheckpointOptions, iteration: float) -> int:
    """Return the shortest window, in iterations, whose parts can each be copied to host and peers in one iteration."""
    sizes = [max(1, round(options.values / options.operators))] * options.operators
    limit = 1e9 * iteration * min(options.host, options.network * options.idle / options.copies)
    for steps in range(1, options.operators):
        window = plan_window(sizes, steps)
        if max(step_bytes(sizes, window, at) for at in range(steps)) <= limit:
            return steps
    return options.operators


def effective(scheme: Scheme, iteration: float, restart: float, mtbf: float, seconds: float, seed: int = 0) -> float:
    """Return the effective training time ratio: seconds of iterations that were not lost, divided by all seconds.

    Args:
        scheme: how state is saved.
        iteration: seconds of an iteration without checkpoints.
        restart: seconds from a failure until new workers can load the state.
        mtbf: mean seconds between failures; the intervals are drawn from an exponential distribution.
        seconds: length of the job.
        seed: seed of the random draws.

    Examples:
        >>> effective(Scheme("none", every=1), 1.0, 0.0, mtbf=1e12, seconds=1000)
        1.0
    """
    draw = random.Random(seed)
    period = iteration + scheme.stall / scheme.every
    now = recovery = 0.0
    done = durable = 0  # number of iterations done, and of those that a failure cannot undo
    while now < seconds:
        span = min(draw.expovariate(1 / mtbf), seconds - now)
        now += span
        count = int(max(0.0, span - recovery) / period + 1e-9)
        done += count
        whole = math.floor(max(0.0, done - scheme.lag / period) / scheme.every + 1e-9) * scheme.every
        recovery = restart + scheme.load
        if scheme.replay is not None:  # replay starts at the first iteration of the last complete window
            replayed = done - max(0, whole - scheme.every)
            recovery += (replayed - min(replayed, scheme.every) * _FROZEN) * scheme.replay
        elif now < seconds:
            done = durable = max(durable, whole)
    return done * iteration / seconds
