"""Pipeline methods that run a pipeline."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

from cedar.core.block import Block
from cedar.core.errors import CedarError, PipelineError, Skip, user_site
from cedar.core.packages import extension
from cedar.core.remote import as_options
from cedar.engine.binding import Binding
from cedar.engine.delivery.loader import Loader
from cedar.engine.delivery.options import Options
from cedar.operators.base import Env
from cedar.pipeline.explain_logical import as_written
from cedar.pipeline.look import observers, progress_line
from cedar.pipeline.planning import PlanOptions, best_plan, choose_plan, explain_run, skipping_damaged
from cedar.pipeline.surveying import whole_epoch
from cedar.pipeline.typed import ExecutorLike, LoaderOptions
from cedar.plan.steps.step import leave_unread

if TYPE_CHECKING:
    import pyarrow as pa

    from cedar.lake.writing import Written
    from cedar.optimizer.rewrite import Rule
    from cedar.pipeline.core import Pipeline
    from cedar.pipeline.typed import Batch
    from cedar.plan.data import Budget, Plan
    from cedar.profile import Profile, Subject


class RunMethods:
    """The loader, and methods that write or collect all rows."""

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
        """Return a loader, the iterator over batches that a trainer uses.

        Args:
            plan: "auto" rewrites the pipeline, measures it while it runs, and switches to the fastest plan on this
                machine. "off" runs the pipeline as written. A ``Plan`` runs unchanged. Rows, their order and states are
                the same under every plan.
            executor: "auto" (the plan chooses), "inline", "threads", "processes", "dask" (a cluster on this machine),
                a Dask client, a scheduler's address (type checkers accept only a client), or any
                ``concurrent.futures.Executor``.
            workers: how many tasks run concurrently; by default the number of cores.
            seed: the run's seed; operators' own seeds are combined with it.
            epoch: the first epoch.
            rank, world: this rank's number and the number of ranks. By default they come from torch.distributed if it
                is initialized, else from torchrun, MPI or a SLURM step, else they are 0 and 1. See docs/ranks.md.
            subgroup: rank and world describe a group inside the job, so they may differ from the environment's.
            split_batches: batch sizes are global, and every rank gets a slice of every batch.
            steps: end every epoch after exactly this many batches per rank. The next epoch starts with leftover rows.
            deal: how ranks divide an epoch with unknown row counts. "auto": each rank reads its own splits. "global":
                each rank computes the whole epoch and keeps its share, so batch i is the same at any rank count.
            counts: "auto" uses row counts in metadata. "exact" also reads filter columns of Parquet, Vortex and Arrow
                files once to count passing rows, so ``len(loader)`` is known and batch i the same for all rank counts.
            agree: how ranks coordinate: a folder that all ranks can access, the address of a service, or a store of
                torch.distributed. Ranks agree on the end of an epoch with an unknown number of batches, and on
                positions after a change of their number. Default: torch.distributed if initialized, or the executor if
                it is a service.
            format: "numpy", "torch", "arrow" or "jax"; by default "numpy", or "torch" if ``device`` is given. "tuple"
                delivers columns without names, in the order of ``select``: ``for x, y in loader``. They are tensors, or
                NumPy arrays if torch is not installed.
            device: where tensors go, ``"cuda"`` or any other torch device. Copies run two batches ahead.
            exact: False allows rewrites whose results differ within an operator's tolerance.
            on_error: the default ``Skip`` policy of every operator.
            timeout: seconds that a task may run without progress, such as finishing a row. After that, cedar kills the
                task's process and reruns the task. A thread cannot be killed, so the run ends with an error. None and 0
                mean no limit. After 30 s without progress, a warning shows what waits for what. A lost service or
                scheduler may take ``timeout`` seconds to return, by default 600.
            order: "exact" delivers rows in order. "any" delivers rows as they finish, so that a slow row does not delay
                others. Each row is delivered once, and states are exact, but which batch has a row depends on timing.
            progress: show a progress line in a terminal or notebook; otherwise print one every 30 s. It has rows,
                percent and time left if counts are known, recent rows/s and waiting time, and the bottleneck.
            trace: a trace file for Perfetto, written when an iteration ends; one file per rank.
            serve: host and port, such as "127.0.0.1:0", on which to serve ``/status`` and ``/metrics`` (Prometheus) to
                clients that send the token; ``loader.url`` is the address.
            on_metrics: function that gets a dict of metrics every ten seconds, and at the end in the iterating thread.
            rules: additional rewrites for the optimizer: functions of a node and the facts.
            without: names of rewrites to disable, such as "late". "order" disables the search for a better operator
                order; "place" runs all operators in this process.
            budget: machine resources that a plan may use; by default the whole machine.

        Raises:
            PipelineError: an argument is invalid, or ``rank`` and ``world`` contradict the environment.
            PlanError: the executor is unknown, or the plan belongs to another pipeline.

        Examples:
            >>> import cedar
            >>> loader = cedar.from_items([{"x": i} for i in range(4)]).batch(2).loader(executor="inline")
            >>> len(loader), [batch["x"].sum() for batch in loader]
            (2, [np.int64(1), np.int64(5)])
        """
        node = skipping_damaged(cast("Pipeline", self), on_error)
        where = cast("Any", executor)  # any string is allowed here, since it may be a scheduler's address
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
        """Yield all rows of one epoch for sinks. This process reads all of them, even if it is one of several ranks."""
        with progress_line(method) as progress:
            loader = whole_epoch(cast("Pipeline", self).node, method, progress, site=user_site())
            progress.position = loader.position
            yield from loader

    def _table(self, method: str) -> Iterator[pa.Table]:
        """Yield all rows of one epoch as one table. Nothing runs before it is asked for."""
        from cedar.datasets.to_arrow import to_arrow_table

        schema = cast("Pipeline", self).schema
        yield to_arrow_table(self._blocks(method), {} if schema == {"?": "?"} else schema)

    def to_arrow(self) -> pa.Table:
        """Return all rows of an epoch, including those in batches, as one Arrow table.

        Raises:
            PipelineError: a column holds Python objects, or the pipeline never ends.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": 1}]).to_arrow().num_rows
            1
        """
        return next(self._table("to_arrow"))

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
        """Write all rows of an epoch to files below ``url``. After a crash, rerun it to continue where it stopped.

        Several tasks encode rows concurrently; files keep the order of rows. A file appears only when it is complete.
        The manifest, below ``_cedar``, then lists the file with the position after its last row. Rerunning with equal
        pipeline and data writes only missing files. Several processes can each write a part, set by ``rank``.

        Args:
            url: a folder on any storage. It must not contain files of the format, except those of this job.
            format: the file format. "jsonl" cannot store bytes, dates or NaN. "tar" writes webdataset shards, in which
                the column ``key`` names the samples and the other columns' names are the extensions. "lance" combines
                the files of all ranks into one data set when the last rank has finished.
            partition_by: columns that become folders (``date=2024-01-01/``) and are left out of the files. Only
                ``read_parquet`` makes columns of folders; other readers do not return them.
            rows_per_file: maximum rows per file; by default a file ends after 512 MiB. Batches are not split: a file of
                batches ends when it has at least this many rows.
            executor, workers: see ``loader``.
            rank, world: see ``loader``.
            on_error: the default ``Skip`` policy of every operator.
            progress: True prints a line every 30 s if stderr is not a terminal; False shows no progress.
            layout: how to encode Parquet columns. cedar encodes each column's first rows in several ways and measures
                reading. "fast" minimizes total read time; "small" minimizes CPU time within 1.1 times the size of zstd;
                "pyarrow" uses pyarrow's defaults. Arrow files are "fast" (uncompressed) or "small".
            storage_options: options of the filesystem of ``url``, such as keys and endpoints; see docs/storage.md.

        Returns:
            The files that this rank wrote, in row order, with their row counts.

        Raises:
            PipelineError: the folder contains other data or another pipeline's output, another process is writing to
                it, the format cannot store a column, or the pipeline never ends.
            SourceError: a file cannot be written, or a written file is missing.

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
        """Write Parquet files like ``write``, but always all rows, even if this process is one of several ranks.

        Args:
            url: a folder, or a single file if it ends in ``.parquet``. For a single file, all rows must fit in memory.
            partition_by, storage_options: see ``write``.

        Returns:
            The files written.

        Raises:
            PipelineError: a column holds Python objects, or the folder already contains other data.

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
            tables = self._table("write_parquet")
            return extension("lake.sinks").write_files(url, tables, options=stored)  # type: ignore[no-any-return]
        except CedarError as error:
            error.site = error.site or site
            raise

    def count(self) -> int:
        """Return the number of rows (or batches) in an epoch, from metadata if possible, else by running it.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": 1}, {"x": 2}]).count()
            2
        """
        pipeline = cast("Pipeline", self)
        rows = type(pipeline)(leave_unread(pipeline.given, frozenset()))
        loader = whole_epoch(rows.node, "count", None, site=user_site())
        units = loader.units()
        if units is not None and not loader.skips:
            return int(units)
        return sum(1 if rows.node.batched else len(block) for block in rows._blocks("count"))

    def profile(self, *, seconds: float = 2) -> Profile:
        """Run the pipeline as written and time each operator. Print the result, or read its ``bottleneck``.

        Args:
            seconds: approximate duration; the run stops after the block in progress.

        Raises:
            CedarError: any error that the pipeline itself raises.

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
        """The pipeline's identity in profiles, which ``Profile.load(path, pipeline)`` compares."""
        return Binding(cast("Pipeline", self).node, None, Env(sampling=True)).subject

    def optimize(self, budget: Budget | None = None, profile: Profile | None = None) -> Plan:
        """Return the best plan for a profile. Without a profile, cedar measures one for two seconds.

        Args:
            budget: resources that the plan may use; by default the whole machine.
            profile: the result of ``profile()`` or ``Profile.load``.

        Raises:
            PlanError: the profile belongs to another pipeline.
            CedarError: any error that the pipeline itself raises while it is measured.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": i} for i in range(1000)]).map(lambda x: x + 1, "x", into="y")
            >>> plan = p.filter(cedar.col("x") > 500).optimize()
            >>> [d.what for d in plan.decisions if d.applied and d.rule == "push_filter"]
            ['filter([(col("x")) > (500)]): below map(<lambda>)']
        """
        return best_plan(cast("Pipeline", self), budget, profile)
