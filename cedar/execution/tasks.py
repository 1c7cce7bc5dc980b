"""Tasks: what a run gives its streams, to have work done."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cedar.execution.chain import Program
from cedar.execution.dask import names_cluster
from cedar.execution.metrics import Metrics
from cedar.execution.runner import Runner, Runners
from cedar.execution.watcher import Watcher
from cedar.operators.base import Env


def is_remote(place: str) -> bool:
    """Whether a place is in other processes, here or on a cluster."""
    return place in ("processes", "dask") or names_cluster(place)


@dataclass(frozen=True)
class Tasks:
    """What a run gives its streams."""

    runner: Runner
    env: Env
    metrics: Metrics
    watcher: Watcher = field(default_factory=Watcher)
    others: Runners | None = None  # of the run's default runner: those of other places, made when asked for

    def on(self, place: str) -> Tasks:
        """The same on another executor; threads and the caller's own are the run's."""
        if self.others is None or place == self.runner.name or not is_remote(place):
            return self
        return replace(self, runner=self.others.of(place))

    def task_env(self, program: Program) -> Env:
        """What the next task of a program is to know."""
        watch = self.watcher.next(id(program))
        return replace(self.env, watch=watch) if watch else self.env
