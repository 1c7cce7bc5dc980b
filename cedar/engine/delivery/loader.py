"""Loader: the object that a trainer iterates, with a small JSON state to save and load."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from cedar.core.block import Block
from cedar.core.errors import PipelineError, ResumeError, UsageError, user_site
from cedar.core.foreign import suggest_in_methods, unknown_loader_attribute
from cedar.core.inverse import InverseKeyedJaggedTensor
from cedar.core.jagged import JaggedTensor, register
from cedar.core.packages import extension
from cedar.core.printable import one_line
from cedar.core.process import Rank, find_rank, refuse_workers
from cedar.engine.delivery import checkpoint, mixtures
from cedar.engine.delivery.elastic import Elastic
from cedar.engine.delivery.epochs import Epochs
from cedar.engine.delivery.formats import check_device, check_format
from cedar.engine.delivery.iteration import iterate
from cedar.engine.delivery.options import Options, checked
from cedar.engine.delivery.parts import Parts
from cedar.engine.delivery.state import validated
from cedar.engine.epoch import DataEpoch, scheduled_entry
from cedar.engine.nodes import warn_of_cuts
from cedar.engine.runner import Runner
from cedar.executors.choose import check_executor
from cedar.operators.take import whole
from cedar.plan.data import Plan
from cedar.plan.graph import Node

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from cedar.engine.delivery.replay import ByStep, Located, Location
    from cedar.watch.report import Report

    T = TypeVarWithDefault("T", default=Any)
else:
    T = TypeVar("T")

_log = logging.getLogger("cedar")


class EpochSampler:
    """Replaces a DataLoader's sampler: when a trainer sets the epoch on it, the loader moves to that epoch.

    A loader that is already in that epoch keeps its position, since it may have been resumed in the middle of it.

    Args:
        epochs: moves the loader.
    """

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs

    def set_epoch(self, epoch: int) -> None:
        """Begin or continue epoch ``epoch``."""
        self._epochs.position.continue_if_over = False
        if epoch != self._epochs.position.epoch:
            self._epochs.set_epoch(epoch)


@suggest_in_methods
class Loader(Generic[T]):
    """Iterates over a pipeline, epoch by epoch, and can be stopped and resumed after any batch.

    ``for batch in loader`` runs the current epoch, then moves to the next epoch. After a ``break``, the next ``for``
    starts the epoch again; after ``load_state_dict``, it continues from the position in the state.

    Examples:
        >>> import cedar
        >>> pipeline = cedar.from_items([{"x": i} for i in range(10)]).batch(4, last="keep")
        >>> with pipeline.loader() as loader:
        ...     [batch["x"].tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """

    url: str | None = None  # address of the status page, if there is one

    def __init__(self, root: Node, options: Options) -> None:
        site = user_site()
        check_executor(options.executor)
        check_format(options.format, site)
        options = checked(options, site)
        if options.device is not None:
            check_device(options.device, options.format, site)
        rank = find_rank(options.rank, options.world, options.subgroup, site)
        parts = Parts(root, options, rank, site)
        self._epochs = Epochs(parts, Elastic(parts))
        self._warning = ""  # the latest warning about work that all ranks repeat

    def __iter__(self) -> Iterator[T]:
        epochs, rank = self._epochs, self._epochs.job.rank
        refuse_workers(rank, epochs.parts.site)
        register(JaggedTensor, InverseKeyedJaggedTensor)
        if os.getpid() != epochs.parts.pid:
            epochs.begin_in_fork()
        sharing = epochs.job.sharing
        warning = sharing.warning(rank.world) if sharing.why and not sharing.asked else ""
        if warning not in ("", self._warning):
            self._warning = warning
            _log.warning("%s", warning)
        warn_of_cuts(epochs.job.binding.root, epochs.position.epoch)
        return iterate(epochs, self)

    if not TYPE_CHECKING:  # hidden, so that type checkers still report unknown names

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(name) if name[0] == "_" else unknown_loader_attribute(self, name)

    def __repr__(self) -> str:
        label, rank = one_line(self._epochs.job.binding.root.operator.label()), self.rank
        return (
            f"<Loader of {label}: format {self._epochs.parts.options.format!r}, rank {rank.rank} of {rank.world}, "
            f"epoch {self.epoch}, step {self._epochs.position.step}; print(loader.explain()) shows its plan>"
        )

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def __reduce_ex__(self, protocol: object) -> Any:
        raise UsageError(
            "a loader cannot be pickled or copied, because it holds running threads and workers",
            fix="save loader.state_dict(); send the pipeline, and create the loader there. If pickle rejects the "
            "pipeline because of lambdas or nested functions, use cloudpickle",
        )

    def __getitem__(self, item: object) -> NoReturn:
        """Raise an error, because a loader cannot be indexed, for example by a DataLoader that wraps it.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "a loader has no items: it can only be iterated",
            site=self._epochs.parts.site,  # the nearest calling line would be torch's
            fix="iterate the loader in place of a DataLoader, without wrapping it; see help(cedar.Loader). "
            "loader.read(step) returns one batch",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop tasks and threads. The loader can still return its state and report."""
        self._epochs.parts.close()

    @property
    def rank(self) -> Rank:
        """This rank's number, and the number of ranks."""
        return self._epochs.job.rank

    @property
    def epoch(self) -> int:
        """The current epoch; ``set_epoch`` changes it."""
        return self._epochs.position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Move to the beginning of epoch ``epoch``, 0 or above; if a loaded state is in that epoch, keep its position.

        The position is kept because code written for a DataLoader sets the epoch before each ``for``, even after it
        resumed in the middle of the epoch. A state saved after the last batch of epoch 3 is at the beginning of epoch
        4. Setting epoch 3 after loading it selects the rest of epoch 3, which is empty.
        """
        self._epochs.set_epoch(epoch)

    @property
    def sampler(self) -> EpochSampler:
        """An object whose ``set_epoch`` sets the loader's epoch, for trainers such as Lightning that call it."""
        return EpochSampler(self._epochs)

    @property
    def batch_sampler(self) -> None:
        """Always None, since the pipeline creates the batches."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch received: JSON-serializable, a few KiB, and cheap to create.

        Save it on every rank, since a later run with another number of ranks needs the list of all states.
        """
        return checkpoint.saved_state(self._epochs)

    def check_state(self, state: Any) -> None:
        """Check that a state of any rank matches this pipeline, its code, its data and its seed.

        Raises:
            ResumeError: the state does not match.
        """
        site, identity = user_site(), self._epochs.parts.identity
        saved = validated(state, site)
        identity.check(saved | {"code": identity.code}, site)
        if saved["code"] != identity.code:
            raise ResumeError("the code of a function or an expression of the pipeline changed", site=site)

    def load_state_dict(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Make the next ``for`` continue from a saved state.

        Args:
            state: what ``state_dict()`` returned on this rank. If row counts are known, the state of any rank works,
                also with another number of ranks. If they are unknown and the number changed, pass all ranks' states.

        Raises:
            ResumeError: the state is damaged; or of another pipeline, data, seed or version; or of another rank, and
                this rank's position cannot be derived from it.
        """
        checkpoint.load_state(self._epochs, state, user_site())

    def stateful(self, world: int | None = None) -> checkpoint.ByRank:
        """Return an object for ``torch.distributed.checkpoint``, which stores one value per name for all ranks.

        Use ``dcp.save({"loader": loader.stateful()}, ...)``, and the same dict with ``dcp.load``. Other checkpoint
        libraries can save the loader itself.

        Args:
            world: when loading, the number of ranks of the run that saved, if it differs from this run's.

        Examples:
            >>> import cedar
            >>> loader = cedar.from_items([{"x": 1}]).batch(1).loader()
            >>> list(loader.stateful().state_dict())
            ['rank 0 of 1']
        """
        return checkpoint.ByRank(self, world)

    def reshard(self, rank: int | None, world: int) -> None:
        """Change this rank's number and the number of ranks; the rest of the epoch is redistributed without loss.

        All ranks of the new world must call it at the same step: staying ranks between two batches, and new ranks with
        an unused loader of the same pipeline and seed. A ``for`` in progress continues with this rank's part of the
        rest; otherwise the next ``for`` does. Ranks communicate through ``loader(agree=)``, torch.distributed's store
        if it is initialized for the new ranks, or the service that they read through; see docs/ranks.md.

        A rank of the old world that does not call it is lost. All batches up to this step count as delivered to it.

        Args:
            rank: this rank's new number; None if it leaves. A leaving rank publishes its state, so that other ranks
                need not recompute it, and its loader is closed.
            world: the new number of ranks.

        Raises:
            PipelineError: a rank is outside its world, or ranks cannot communicate.
            ResumeError: the ranks are at different steps, or have different pipelines.
            WorkerError: a rank did not join within ``loader(timeout=)``, or 600 s. This rank keeps its position.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": i} for i in range(8)]).batch(2)
            >>> loader = p.loader(rank=0, world=2, agree="ranks")
            >>> for batch in loader:
            ...     print(batch["x"].tolist())
            ...     if loader.rank.world == 2:
            ...         loader.reshard(0, 1)  # rank 1 is gone after this step: [4, 5] was its batch
            [0, 1]
            [2, 3]
            [6, 7]
        """
        if rank is not None:
            self._epochs.elastic.reshard(self._epochs, rank, world, user_site())
        else:
            self._epochs.elastic.leave(self._epochs, user_site())
            self.close()

    def update_mix(
        self, weights: Mapping[str, float] | Sequence[float] | None = None, *,
        add: Mapping[str, tuple[Any, float]] | None = None, remove: Iterable[str] = (), at_step: int | None = None,
    ) -> None:  # fmt: skip
        """Change the weights and inputs of a ``mix()``. Each input continues at its current position.

        All ranks must make the same call at the same step, between two batches or before a ``for``. With ``at_step``,
        they may make it earlier. States saved later include the change. When such a state is loaded, its weights apply
        if the weights in the pipeline's code are the same as when it was saved; otherwise the pipeline's weights apply.

        To load a state that was saved after an input was added, add the input to the pipeline's code, or call
        ``update_mix(add=, at_step=)`` with the same step before ``load_state_dict``.

        Args:
            weights: new weights by input name, or by input number as a string if inputs have no names; or one weight
                for each input. Inputs that are not named keep their weights.
            add: new inputs by name, as pairs of a pipeline and its weight. They have the columns of the other inputs.
            remove: inputs from which no more rows are drawn.
            at_step: the step, counted from 0 over all epochs, whose batch is the first with the change; by default the
                next one.

        Raises:
            PipelineError: no ``mix()`` or several have such inputs; a weight is negative; ``at_step`` has passed; or
                the position in each input cannot be derived from the delivered batches.

        Examples:
            >>> import cedar
            >>> a, b = (cedar.from_items([{"x": v}] * 8).repeat() for v in (0, 1))
            >>> loader = cedar.mix({"a": (a, 1)}).batch(4).loader(steps=3, executor="inline")
            >>> loader.update_mix(add={"b": (b, 1)}, remove=["a"], at_step=2)
            >>> [batch["x"].tolist() for batch in loader]
            [[0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]
        """
        mixtures.update_mix(self._epochs, weights, add, remove, at_step, user_site())

    def _by_step(self, method: str) -> ByStep:
        """Check that the rows of a step are known before the step is run."""
        parts, site = self._epochs.parts, user_site()
        parts.check_exact(method, site)
        if parts.may_skip_units:
            raise PipelineError(f"{method} needs batches if rows may be skipped", site=site, fix="use batch()")
        self._epochs.place()
        return parts.by_step

    def read(self, step: int, rank: int | None = None) -> Any:
        """Return batch ``step`` of this epoch again, of this rank or another rank. Not possible after ``commit(step)``.

        Raises:
            PipelineError: the step is committed, after the epoch's end, or negative.
        """
        by_step = self._by_step("read() and commit()")
        rank = None if rank is None else whole(rank, "read(rank)")
        return by_step.read(self._epochs.position, whole(step, "read(step)"), rank, user_site())

    def commit(self, step: int) -> None:
        """Declare that batches up to and including ``step`` of this epoch will not be read again."""
        replay = self._by_step("read() and commit()").replay
        replay.open(self._epochs.position).commit(whole(step, "commit(step)"))

    def locate(self, step: int, i: int = 0) -> Located:
        """Return the origin of row ``i`` of batch ``step`` in this epoch; without batches, of row ``step``.

        Files are read and functions run again only if they determine which rows exist (filters, rows that may be
        skipped, batches by length); then ``Located.ran`` is True. For a saved state, call ``load_state_dict`` first.

        Raises:
            PipelineError: the step does not exist, or has no such row.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": i} for i in range(10)]).map(str, "x").batch(4)
            >>> print(p.loader().locate(1, 2).row)
            from_items(list of 10), row 6, epoch 0
        """
        step, i = whole(step, "locate(step)"), whole(i, "locate(i)")
        return self._by_step("locate()").locate(self._epochs.position, step, i, user_site())

    def where(self, file: str, row: int) -> list[Location]:
        """Return the ranks and steps at which row ``row`` of ``file`` is delivered in this epoch; inverts ``locate``.

        If row counts are known, all ranks are searched. Otherwise only this rank is searched, so call this method on
        each rank. Files and functions run again as in ``locate``. An empty list means that the row is in no batch: it
        is filtered out, left out at the end of the epoch, or in a file that the pipeline does not read.

        Args:
            file: the URL of the file, or the last part of the URL: ``"clicks/part-3.parquet"``.
            row: the row's number in the file, from 0; for text, the byte offset of the line.

        Raises:
            PipelineError: the epoch is endless.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": i} for i in range(10)]).shuffle().batch(5)
            >>> [place] = p.loader(seed=1).where("from_items(list of 10)", 6)
            >>> p.loader(seed=1).locate(place.step, place.index).row.row
            6
        """
        file, row = str(file), whole(row, "where(file, row)")
        by_step, position = self._by_step("where()"), self._epochs.position
        alone = self.rank.world > 1 and (position.has_lanes or self.units() is None)
        return by_step.where(position, file, row, alone=alone)

    def units(self) -> float | None:
        """Return the units of an epoch on this rank, from metadata: infinity if it is endless, None if unknown."""
        with self._epochs.parts.account.located():  # for example, a sample row made a function fail
            job = self._epochs.job
            entry = scheduled_entry(job, self.epoch, self._epochs.position.earlier_steps)
            return DataEpoch(job, Runner("inline", 1), self.epoch, entry).units()

    def __len__(self) -> int:
        """Return the number of units of an epoch on this rank.

        Raises:
            TypeError: the number is known only after a run, or the epoch is endless.
        """
        job, parts = self._epochs.job, self._epochs.parts
        units = job.steps or (None if parts.may_skip_units else self.units())
        if units is None or units == math.inf:
            unknown = "is known only after a run: the source does not count its rows, or an operator drops or adds some"
            why = "has no end" if units == math.inf else unknown
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
        try:
            return self._epochs.position.step, len(self)
        except TypeError:
            return self._epochs.position.step, None

    def sample(self) -> Block:
        """Return up to 64 rows of the pipeline's output."""
        binding = self._epochs.job.binding
        return binding.sample(binding.root)

    @property
    def skips(self) -> bool:
        """Whether some operator may drop rows that fail."""
        return self._epochs.parts.account.skips

    @property
    def skipped(self) -> Mapping[str, int]:
        """Number of failed rows that each operator has dropped, by operator label."""
        return self._epochs.job.metrics.skipped

    def report(self) -> Report:
        """Return a report on the run so far: rows/s, time spent waiting, time by operator, bottleneck, skipped rows."""
        report: Report = extension("watch.report").make_report(self._epochs)
        return report

    @property
    def plan(self) -> Plan:
        """The current plan; ``plan.save(path)`` writes it to a file."""
        job = self._epochs.job
        return replace(job.plans.describe(), numeric=job.binding.numeric)

    def explain(self) -> str:
        """Describe the current plan and the reasons for it, with the measurements so far."""
        job, parts = self._epochs.job, self._epochs.parts
        beyond = job.sharing.warning(self.rank.world) if job.sharing.why else job.reads_beyond()
        ranks = f"RANKS  {beyond}\n" if beyond else ""
        order = f"ORDER  {job.describe_order()}\n" if job.binding.any_order else ""
        notes = (f"NOTE   {note}\n" for note in job.binding.unsteady)
        counted = [] if parts.counting is None else parts.counting.reported
        counts = (f"COUNTS {reported}\n" for reported in counted)
        text = "" if parts.options.explainer is None else parts.options.explainer(job.binding.root, job.plans)
        return "".join([ranks, order, *notes, *counts, text])
