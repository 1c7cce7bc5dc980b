"""Loader methods that report its length, its plan and its progress."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cedar.core.block import Block
from cedar.core.errors import CedarError
from cedar.core.extensions import extension
from cedar.core.printable import one_line
from cedar.datasets.base import Read
from cedar.datasets.filesource import requests_outside_tasks
from cedar.engine.delivery.loader_position import LoaderPosition
from cedar.engine.epoch import DataEpoch
from cedar.engine.nodes import pictured
from cedar.engine.runner import Runner
from cedar.plan.data import Plan
from cedar.plan.graph import sources

if TYPE_CHECKING:
    from cedar.watch.report import Report


class Reporting(LoaderPosition):
    """Reports on a loader's epochs and its run."""

    def __repr__(self) -> str:
        label, rank = one_line(self._binding.root.operator.label()), self.rank
        return (
            f"<Loader of {label}: format {self._options.format!r}, rank {rank.rank} of {rank.world}, "
            f"epoch {self.epoch}, step {self._step}; print(loader.explain()) shows its plan>"
        )

    def units(self) -> float | None:
        """Return the units of an epoch on this rank, from metadata: infinity if it is endless, None if unknown."""
        try:
            return DataEpoch(self._job, Runner("inline", 1), self.epoch, None).units()
        except CedarError as error:  # for example, a sample row made a function fail
            self._account.locate(error)
            raise

    def sample(self) -> Block:
        """Return up to 64 rows of the pipeline's output."""
        return self._binding.sample(self._binding.root)

    @property
    def skips(self) -> bool:
        """Whether some operator may drop rows that fail."""
        return self._account.skips

    def __len__(self) -> int:
        """Return the number of units of an epoch on this rank.

        Raises:
            TypeError: the number is known only after a run, or the epoch is endless.
        """
        if self._options.steps is not None:
            return self._options.steps
        units = self.units() if self._batched or not self._account.skips else None
        if units is None or units == math.inf:
            why = "has no end" if units == math.inf else "is known only after a run: an operator drops or adds rows"
            raise TypeError(f"the length of this loader {why}; give steps= to fix it")
        return int(units)

    def position(self) -> tuple[int, int | None]:
        """Return how many units (batches or rows) of this epoch were delivered, and their total or None if unknown.

        Examples:
            >>> import cedar
            >>> loader = cedar.from_items([{"x": i} for i in range(4)]).batch(2).loader(executor="inline")
            >>> next(iter(loader)) and loader.position()
            (1, 2)
        """
        if self._total is None or self._total[0] != self.epoch:
            try:
                self._total = (self.epoch, len(self))
            except TypeError:
                self._total = (self.epoch, None)
        return self._step, self._total[1]

    def report(self) -> Report:
        """Return a report on the run so far: rows/s, time spent waiting, time by operator, bottleneck, skipped rows."""
        tables = (n.operator.source for n in sources(self._binding.root) if isinstance(n.operator, Read))
        made: Report = extension("watch.report").make_report(
            self._metrics, requests_outside_tasks(tables), inline=self._executor_name == "inline", rank=self.rank.rank,
            world=self.rank.world, rank_from=self.rank.origin, executor=self._executor_name, workers=self._workers,
            epoch=self.epoch, step=self._step, plan=self._plans.current.method, graph=self._graph(),
            plan_changes=len(self._plans.history),
            numeric="" if self._binding.numeric is None else str(self._binding.numeric),
            notes=(
                *self._unsteady(), *self._plans.notes(), *self._job.store.describe(), *self._account.left_behind(),
                *self._leftover_notes(), *self._file_changes,
            ),
            deaths=tuple(map(self._account.describe, list(self._metrics.deaths.latest))),
        )  # fmt: skip
        return made

    @property
    def skipped(self) -> Mapping[str, int]:
        """Number of failed rows that each operator has dropped, by operator label."""
        return self._metrics.skipped

    def _unsteady(self) -> list[str]:
        return [text for text in (self._binding.check_env.unsteady or {}).values() if text]

    def _graph(self) -> tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...]:
        index, labels, nodes = self._binding.index, self._metrics.display_labels, self._binding.nodes
        details: list[tuple[str, ...]] = [()] * len(nodes)
        if self._workers:  # before the first run, a report must not list files in storage
            physical = self._binding.lowered(self._plans.current.root, self._executor_name)
            details = pictured(nodes, self._binding.splits, physical, self._executor_name)
        inputs = (tuple(index[id(child)] for child in node.inputs) for node in nodes)
        return tuple((labels[i], below, details[i]) for i, below in enumerate(inputs))

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def _leftover_notes(self) -> list[str]:
        carried = self._metrics.carried
        notes = [f"{carried} batch(es), left over when all ranks ended an epoch, opened the next"] if carried else []
        notes += [
            f"{number:,} {unit} left out at the end of an epoch: too few for a batch on every rank"
            for unit, number in self._metrics.left_out.items()
        ]
        if self._has_leftovers and self._job.sharing.together:
            notes.append("this rank had batches left when all ranks ended the epoch: they open the next")
        return notes

    @property
    def plan(self) -> Plan:
        """The current plan; ``plan.save(path)`` writes it to a file."""
        return replace(self._plans.describe(), numeric=self._binding.numeric)

    def explain(self) -> str:
        """Describe the current plan and the reasons for it, with the measurements so far."""
        explainer, sharing = self._options.explainer, self._job.sharing
        beyond = sharing.warning(self.rank.world) if sharing.why else self._job.reads_beyond()
        top = f"RANKS  {beyond}\n" if beyond else ""
        order = f"ORDER  {self._job.describe_order()}\n" if self._binding.any_order else ""
        text = "" if explainer is None else explainer(self._binding.root, self._plans)
        notes = (f"NOTE   {text}\n" for text in self._unsteady())
        return "".join([top, order, *notes, *(f"COUNTS {reported}\n" for reported in self._counting.reported), text])
