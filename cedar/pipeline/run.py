"""Methods that run a pipeline."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

from cedar.core.block import Block
from cedar.core.errors import CedarError, PipelineError, user_site
from cedar.core.extensions import extension
from cedar.core.remote import as_options
from cedar.core.skip import Skip
from cedar.engine.binding import Binding
from cedar.engine.delivery.loader import Loader
from cedar.engine.delivery.options import Observer, Options
from cedar.operators.base import Env
from cedar.pipeline.explain_words import as_written
from cedar.pipeline.planning import PlanOptions, best_plan, choose_plan, explain_run, tolerating
from cedar.pipeline.typed import ExecutorLike, LoaderOptions
from cedar.pipeline.watching import observers, progress_line
from cedar.plan.steps.live import leave_unread

if TYPE_CHECKING:
    import pyarrow as pa

    from cedar.lake.writing import Written
    from cedar.optimizer.budget import Budget
    from cedar.optimizer.facts import Rule
    from cedar.pipeline.core import Pipeline
    from cedar.pipeline.typed import Batch
    from cedar.plan.data import Plan
    from cedar.profile import Profile, Subject


class RunMethods:
    """loader and sinks."""

    __slots__ = ()

    @overload
    def loader(
        self, *, format: Literal["numpy", "torch", "jax"] | None = None, **options: Unpack[LoaderOptions]
    ) -> Loader[Batch]: ...

    @overload
    def loader(self, *, format: Literal["tuple"], **options: Unpack[LoaderOptions]) -> Loader[tuple[Any, ...]]: ...

    @overload
    def loader(self, *, format: Literal["arrow"], **options: Unpack[LoaderOptions]) -> Loader[pa.Table]: ...

    def loader(  # noqa: PLR0913 - each has a name
        self,
        *,
        plan: Literal["auto", "off"] | Plan = "auto",
        executor: ExecutorLike = "auto",
        workers: int | None = None,
        seed: int = 0,
        epoch: int = 0,
        rank: int | None = None,
        world: int | None = None,
        subgroup: bool = False,
        split_batches: bool = False,
        steps: int | None = None,
        deal: Literal["auto", "global"] = "auto",
        counts: Literal["auto", "exact"] = "auto",
        agree: str | os.PathLike[str] | Any = None,
        format: Literal["numpy", "torch", "arrow", "jax", "tuple"] | None = None,
        device: Any = None,
        exact: bool = True,
        on_error: Skip | None = None,
        timeout: float | None = None,
        order: Literal["exact", "any"] = "exact",
        progress: bool = False,
        trace: str | os.PathLike[str] | None = None,
        serve: str | None = None,
        on_metrics: Callable[[dict[str, Any]], object] | None = None,
        rules: Iterable[Rule] = (),
        without: Iterable[str] = (),
        budget: Budget | None = None,
    ) -> Loader:
        """The iterator that a trainer holds.

        Args:
            plan: "auto" rewrites the pipeline by what operators declare, measures it while it runs, and changes to the
                plan that is best on this machine; "off" runs it as written; or a ``Plan``. The rows, their order and
                the states are the same.
            executor: "auto" leaves it to the plan; "inline", "threads", "processes", "dask" (a cluster of this
                machine), a Dask client, the address of a scheduler (type checkers want a client), or any
                ``concurrent.futures.Executor``.
            workers: tasks at once; the cores of the machine by default.
            seed: of the run; operators' own seeds are mixed into it.
            epoch: the first epoch.
            rank, world: this rank's number, and of how many; by default torch.distributed's if initialized, else those
                that torchrun, MPI or a step of SLURM set, else 0 of 1: docs/ranks.md.
            subgroup: rank and world number a group inside the job, so they may differ from what the environment says.
            split_batches: batch sizes are global, and every rank gets its slice of every batch.
            steps: end every epoch after exactly so many batches on all ranks; rows left over open the next epoch.
            deal: what ranks do where row counts are unknown: with "auto" each reads splits of its own; with "global"
                each computes the epoch and keeps its turns, so that batch i is the same at any number of ranks.
            counts: "exact" counts the rows that filters of Parquet, Vortex and Arrow files leave, once, before the
                epoch: it reads the columns of these filters alone. Then ``len(loader)`` is known, and batch i is the
                same at any number of ranks. "auto" knows what metadata tell.
            agree: a folder that all ranks see, the address of a service, or a store of torch.distributed, where they
                tell each other when one of them is through an epoch whose number of batches is unknown, and where they
                stand when their number changes; by default they use torch.distributed, where it is initialized, or the
                service that is the executor.
            format: "numpy", "torch", "arrow" or "jax"; by default "numpy", or "torch" where ``device`` is given.
                "tuple" gives the columns without names, in the order of ``select``: ``for x, y in loader``. They are
                tensors, or NumPy arrays where torch is not installed.
            device: where tensors go, ``"cuda"`` or any other torch device: batches are copied two ahead.
            exact: False allows rewrites whose results differ within an operator's tolerance.
            on_error: a default for every operator.
            timeout: seconds that a task may be without progress: it continues to another row, or is done. Then its
                process is ended, and the task runs again; where that cannot be (threads), the run ends with an error.
                None and 0 are no limit; after 30 s without progress, a warning says who waits for what. A service or
                scheduler that is gone may take as long to come back, or 600 s.
            order: "any" delivers rows as they finish, so that a slow one holds up no other. Each comes once, and
                states are exact; which batch a row is in is settled by time. "exact" delivers them in order.
            progress: show a line in a terminal or notebook, and a plain one every 30 s elsewhere: rows, percent and
                time left where counts are known, rows/s and waiting of late, what limits the run.
            trace: a file that Perfetto opens; it is written when an iteration ends, for each rank one.
            serve: host and port, such as "127.0.0.1:0", to serve ``/status`` and ``/metrics`` (Prometheus) on, to who
                has the token; ``loader.url`` is the address.
            on_metrics: called with a dict of figures every ten seconds and when an iteration ends, by its thread.
            rules: more rewrites for the optimizer: functions of a node and the facts.
            without: names of rewrites that the optimizer leaves out, such as "late"; "order" keeps the order that rules
                leave, "place" keeps everything in this process.
            budget: what a plan may take of the machine; by default what there is.

        Raises:
            PipelineError: arguments that do not fit, or rank and world set twice, differently.
            PlanError: an executor that is not there, or a plan of another pipeline.

        Examples:
            >>> import cedar
            >>> loader = cedar.from_items([{"x": i} for i in range(4)]).batch(2).loader(executor="inline")
            >>> len(loader), [batch["x"].sum() for batch in loader]
            (2, [np.int64(1), np.int64(5)])
        """
        node = tolerating(cast("Pipeline", self), on_error)
        where = cast("Any", executor)  # strings are open here: the address of a scheduler is one
        asked = PlanOptions.of(rules, without, budget)
        plans = functools.partial(
            choose_plan, plan=plan, executor=where, workers=workers, on_error=on_error, exact=exact, chosen=asked
        )
        planner, chosen = plans(node)
        watchers = observers(progress, trace, serve, on_metrics, user_site())
        options = Options(
            planner=planner, plan=chosen, plan_for=lambda root: plans(root)[0], explainer=explain_run,
            executor=where, workers=workers, seed=seed, epoch=epoch, rank=rank, world=world, subgroup=subgroup,
            split_batches=split_batches, steps=steps, deal=deal, counts=counts,
            agree=os.fspath(agree) if isinstance(agree, os.PathLike) else agree,
            format=format or ("numpy" if device is None else "torch"), device=device, on_error=on_error,
            timeout=timeout, order=order, observer=watchers, words=as_written,
        )  # fmt: skip
        loader = Loader(node, options)
        if watchers is not None:
            watchers.attach(loader)
        return loader

    def _blocks(self, method: str) -> Iterator[Block]:
        """All rows of one epoch, for sinks: this process alone, whatever the environment says of ranks."""
        with progress_line(method) as progress:
            loader = self._whole(method, progress)
            progress.position = loader.position
            yield from loader

    def _whole(self, method: str, observer: Observer | None = None) -> Loader:
        """A loader of blocks for something that needs an end."""
        node = cast("Pipeline", self).node
        planner, _ = choose_plan(node, "auto", "auto", None, None, True, PlanOptions())
        options = Options(rank=0, world=1, subgroup=True, as_blocks=True, observer=observer, planner=planner)
        loader = Loader(node, options)
        if loader.units() == math.inf:
            raise PipelineError(
                f"{method} of a pipeline without end",
                site=user_site(),
                fix="end it with take(n), or give repeat(n) a number",
            )
        return loader

    def to_arrow(self) -> pa.Table:
        """All rows, those of batches too, as one Arrow table.

        Raises:
            PipelineError: columns of Python objects, or a pipeline without end.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": 1}]).to_arrow().num_rows
            1
        """
        from cedar.datasets.to_arrow import to_arrow_table

        schema = cast("Pipeline", self).schema
        return to_arrow_table(self._blocks("to_arrow"), {} if schema == {"?": "?"} else schema)

    def write(  # noqa: PLR0913 - each has a name
        self,
        url: str | os.PathLike[str],
        *,
        format: Literal["parquet", "arrow", "vortex", "lance", "jsonl", "tar"] = "parquet",
        partition_by: str | Sequence[str] | None = None,
        rows_per_file: int | None = None,
        executor: ExecutorLike = "auto",
        workers: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        on_error: Skip | None = None,
        progress: bool | None = None,
        layout: Literal["fast", "small", "pyarrow"] = "fast",
        storage_options: Mapping[str, Any] | None = None,
    ) -> Written:
        """Write all rows of an epoch to files below ``url``: a job that continues where it was killed.

        Rows are encoded by tasks, several at once, and come to files in their order. A file appears when it is whole,
        and is then named by the manifest, below ``_cedar``, with the position after its last row. Called again with the
        same pipeline and data, what is left is written; when nothing is, nothing is done. Several processes write parts
        of one epoch, each with its ``rank``.

        Args:
            url: a folder, on any storage. It holds nothing of the format yet, but what this job wrote.
            format: of the files. "jsonl" has no bytes, dates and NaN; "tar" writes shards as webdataset does, and takes
                the names of samples from a column ``key``, the extensions of members from the names of the others;
                "lance" makes one data set of the files of all ranks when the last of them is there.
            partition_by: columns that become folders (``date=2024-01-01/``) instead of columns of the files.
            rows_per_file: at most; by default a new file begins after 512 MiB. Of a pipeline of batches, whole ones, up
                to the one that reaches the number.
            executor, workers: as of ``loader``.
            rank, world: as of ``loader``.
            on_error: a default for every operator.
            progress: True writes a line every 30 s where no terminal is, False none at all.
            layout: how the columns of Parquet files are stored, chosen for each by what it takes to read the first rows
                back: "fast", the least time in all; "small", the least CPU time in at most 1.1 times the bytes of zstd;
                "pyarrow", as pyarrow writes by default. Arrow files are "fast" (not compressed) or "small".
            storage_options: of the filesystem of ``url``: keys, endpoints and so on; see docs/storage.md.

        Returns:
            The files of this rank, in the order of its rows, and what they hold.

        Raises:
            PipelineError: the folder holds other data, or the job of another pipeline; another process writes to it;
                a column that the format cannot hold; a pipeline without end.
            SourceError: a file cannot be written, or one that was is gone.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": i} for i in range(5)])
            >>> written = p.write("out", rows_per_file=2)
            >>> written.rows, [file.rpartition("/")[2] for file in written.files]
            (5, ['part-00000.parquet', 'part-00001.parquet', 'part-00002.parquet'])
            >>> p.write("out", rows_per_file=2).resumed
            3
        """
        lake = extension("lake.writing")
        settings = lake.Settings(
            url=os.fspath(url), format=format, partition_by=partition_by,
            rows_per_file=rows_per_file, executor=executor, workers=workers, rank=rank, world=world, on_error=on_error,
            progress=progress, layout=layout, storage_options=as_options(storage_options),
        )  # fmt: skip
        return lake.write(self, settings, user_site())  # type: ignore[no-any-return]

    def write_parquet(
        self,
        url: str | os.PathLike[str],
        *,
        partition_by: str | Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """``write`` as Parquet, by this process alone, whatever the environment says of ranks.

        Args:
            url: a folder; or one file, where it ends in ``.parquet``.
            partition_by, storage_options: as of ``write``.

        Returns:
            The files written.

        Raises:
            PipelineError: columns of Python objects, or a place that holds other data already.

        Examples:
            >>> import cedar, tempfile
            >>> files = cedar.from_items([{"x": 1}]).write_parquet(tempfile.mkdtemp() + "/out")
            >>> cedar.read_parquet(files).count()
            1
        """
        site, url, stored = user_site(), os.fspath(url), as_options(storage_options)
        if not url.endswith(".parquet"):
            lake = extension("lake.writing")
            settings = lake.Settings(
                url, partition_by=partition_by, rank=0, world=1, subgroup=True, storage_options=stored
            )
            return lake.write(self, settings, site).files  # type: ignore[no-any-return]
        if partition_by:
            raise PipelineError(f"write_parquet: partition_by={partition_by!r} needs a folder, not {url!r}", site=site)
        try:
            blocks = self._blocks("write_parquet")
            return extension("lake.sinks").write_parquet(blocks, url, storage_options=stored)  # type: ignore[no-any-return]
        except CedarError as error:
            error.site = error.site or site
            raise

    def count(self) -> int:
        """The number of rows (or batches) of an epoch: from metadata where that is enough, else by running it.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": 1}, {"x": 2}]).count()
            2
        """
        from cedar.plan.graph import batched

        pipeline = cast("Pipeline", self)
        rows = type(pipeline)(leave_unread(pipeline.given, frozenset()))
        loader = rows._whole("count")
        units = loader.units()
        if units is not None and not loader.skips:
            return int(units)
        per_block = batched(rows.node)[id(rows.node)]
        return sum(1 if per_block else len(block) for block in rows._blocks("count"))

    def profile(self, *, seconds: float = 2) -> Profile:
        """Run the pipeline as written for a while, and time each operator: print it, or ask for its ``bottleneck``.

        Args:
            seconds: when to stop, within a block or two.

        Raises:
            CedarError: whatever the pipeline itself raises.

        Examples:
            >>> import cedar
            >>> profile = cedar.from_items([{"x": i} for i in range(100)]).map(str, "x").profile(seconds=0.1)
            >>> [figures.label for figures in profile.operators.values()]
            ['from_items(list of 100)', 'map(str)']
        """
        from cedar.engine.profiling import profile

        return profile(cast("Pipeline", self).node, seconds)

    @property
    def subject(self) -> Subject:
        """What profiles of this pipeline are known by; ``Profile.load(path, pipeline)`` compares it."""
        return Binding(cast("Pipeline", self).node, None, Env(sampling=True)).subject

    def optimize(self, budget: Budget | None = None, profile: Profile | None = None) -> Plan:
        """The plan that is best for a profile: measured now (two seconds), or given.

        Args:
            budget: what the plan may take; by default what the machine has.
            profile: from ``profile()`` or ``Profile.load``.

        Raises:
            PlanError: a profile of another pipeline.
            CedarError: whatever the pipeline itself raises while it is measured.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": i} for i in range(1000)]).map(lambda x: x + 1, "x", into="y")
            >>> plan = p.filter(cedar.col("x") > 500).optimize()
            >>> [d.what for d in plan.decisions if d.applied and d.rule == "push_filter"]
            ['filter([(col("x")) > (500)]): below map(<lambda>)']
        """
        return best_plan(cast("Pipeline", self), budget, profile)
