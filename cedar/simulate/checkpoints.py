"""Effective training time under failures: what ways to save state leave of a job's time. Imports no torch.

``dense`` stops for each checkpoint, as often as is best (Young, 1974). ``checkfreq`` (FAST '21) copies to the host
next to the next iteration, writes in the background, and saves as often as costs 3.5% at most. ``gemini`` (SOSP '23)
copies to the memory of peers while the network is idle, and restores from there. ``moevement`` (arXiv 2412.15411) saves
a part in every iteration, in a window that fits the links; after a failure the workers of the failed stage alone replay
from the window before the last, and the others lose nothing. Each is as published, and otherwise ideal.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from cedar.trainers.common.config import not_negative, positive
from cedar.trainers.common.windows import plan_window, step_bytes

_OVERHEAD = 0.035  # of CheckFreq: the most that it lets checkpoints cost
_STATE = 12  # bytes of a value's master weight and moments
_FROZEN = 1 / 6  # of a window's replay: half of all operators wait for their state, and need no gradient of weights


@dataclass(frozen=True)
class CheckpointOptions:
    """State that has to be saved, and the ways that it can take."""

    values: float  # parameters that one worker holds
    operators: int = 64  # that they belong to, experts and others, of one size
    host: float = 12.0  # gigabytes per second from a worker to the memory of its machine
    network: float = 12.0  # gigabytes per second from a worker to the memory of another machine
    idle: float = 0.5  # share of an iteration in which the network is free
    storage: float = 0.5  # gigabytes per second that a worker has of the storage
    copies: int = 2  # in the memory of other machines
    restart: float = 60.0  # seconds from a failure until new workers can load

    def __post_init__(self) -> None:
        positive(self, "values", "operators", "copies")
        not_negative(self, "restart")
        for name in ("host", "network", "idle", "storage"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give more than 0")

    @property
    def state(self) -> float:
        """Gigabytes of a worker."""
        return _STATE * self.values / 1e9


@dataclass(frozen=True)
class Scheme:
    """How state is saved; times are in seconds."""

    name: str
    every: int  # iterations between two checkpoints; of a window
    stall: float = 0.0  # that a checkpoint holds the training up
    lag: float = 0.0  # from a checkpoint's iteration until it can be restored
    load: float = 0.0  # after a restart
    replay: float | None = None  # of an iteration that the failed stage does again; None: all go back, and do it again


def schemes(options: CheckpointOptions, iteration: float, mtbf: float, alone: float = 1.0) -> list[Scheme]:
    """The four for a job with a failure each ``mtbf`` seconds on the average.

    Args:
        options: state and links.
        iteration: seconds of one.
        mtbf: seconds between failures.
        alone: what one stage takes for an iteration without waiting for others, over ``iteration``.

    Examples:
        >>> [scheme.every for scheme in schemes(CheckpointOptions(1e9, storage=1.0), 3.0, 600.0)]
        [42, 5, 2, 2]
    """
    state, memory = options.state, options.network * options.idle
    write, copy = state / options.storage, state / options.host
    stop = copy + write
    dense = max(1, round(math.sqrt(2 * stop * mtbf) / iteration))
    stalled = max(0.0, copy - iteration)
    often = max(1, math.ceil((copy + write) / iteration), math.ceil(stalled / (_OVERHEAD * iteration)))
    sent = options.copies * state / memory
    peers = max(1, math.ceil(sent / iteration))
    window = smallest_window(options, iteration)
    return [
        Scheme("dense", dense, stall=stop, load=write),
        Scheme("checkfreq", often, stall=stalled, lag=copy + write, load=write),
        Scheme("gemini", peers, lag=sent, load=state / options.network),
        Scheme("moevement", window, lag=iteration, load=state / options.network, replay=alone * iteration),
    ]


def smallest_window(options: CheckpointOptions, iteration: float) -> int:
    """Iterations of the shortest window whose largest part leaves a worker within one of them, to host and peers."""
    sizes = [max(1, round(options.values / options.operators))] * options.operators
    limit = 1e9 * iteration * min(options.host, options.network * options.idle / options.copies)
    for steps in range(1, options.operators):
        window = plan_window(sizes, steps)
        if max(step_bytes(sizes, window, at) for at in range(steps)) <= limit:
            return steps
    return options.operators


def effective(scheme: Scheme, iteration: float, restart: float, mtbf: float, seconds: float, seed: int = 0) -> float:
    """Effective training time ratio: seconds of iterations that count, over all seconds; failures are drawn.

    Args:
        scheme: how state is saved.
        iteration: seconds of one, without checkpoints.
        restart: seconds from a failure until new workers can load.
        mtbf: mean seconds between failures, which are exponentially distributed.
        seconds: of the job.
        seed: of the draws.

    Examples:
        >>> effective(Scheme("none", every=1), 1.0, 0.0, mtbf=1e12, seconds=1000)
        1.0
    """
    draw = random.Random(seed)
    period = iteration + scheme.stall / scheme.every
    now = recovery = 0.0
    done = durable = 0  # iterations; those that a failure leaves
    while now < seconds:
        span = min(draw.expovariate(1 / mtbf), seconds - now)
        now += span
        count = int(max(0.0, span - recovery) / period + 1e-9)
        done += count
        whole = math.floor(max(0.0, done - scheme.lag / period) / scheme.every + 1e-9) * scheme.every
        recovery = restart + scheme.load
        if scheme.replay is not None:  # from the first iteration of the last window that is whole
            again = done - max(0, whole - scheme.every)
            recovery += (again - min(again, scheme.every) * _FROZEN) * scheme.replay
        elif now < seconds:
            done = durable = max(durable, whole)
    return done * iteration / seconds
