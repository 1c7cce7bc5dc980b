"""Loader: the iterator a trainer holds. Batches out, a small JSON state in and out."""

from __future__ import annotations

import functools
import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

from cedar.cache.cached import Store
from cedar.core import forks
from cedar.core.block import Block
from cedar.core.errors import CedarError, PipelineError, ResumeError, Site, WorkerError, user_site
from cedar.core.numeric import NumericEnvironment, held
from cedar.core.ranks import Rank, find_rank, refuse_workers
from cedar.datasets.base import Read
from cedar.datasets.filesource import asked_outside_tasks
from cedar.engine.account import ROWS_PER_LOOK, Account, OwnTime
from cedar.engine.agree import Agreement, meeting_place, next_run
from cedar.engine.binding import Binding
from cedar.engine.compiler import least_run
from cedar.engine.dedup import Marked
from cedar.engine.delivery.counting import Counting
from cedar.engine.delivery.device import check_device, make_mover
from cedar.engine.delivery.device_prefetch import AheadEpoch, deliver
from cedar.engine.delivery.drop_in import DataLoaderLike
from cedar.engine.delivery.elastic import Elastic, Gone
from cedar.engine.delivery.formats import Finish, check_format
from cedar.engine.delivery.locate import Located, Locator, Place, path
from cedar.engine.delivery.options import Options, check_fits, check_slices, checked
from cedar.engine.delivery.replay import Replay, Replays
from cedar.engine.delivery.state import VERSION, Identity, choose, copied, part_of, seal, validated
from cedar.engine.delivery.units import Units, left
from cedar.engine.epoch import DataEpoch, Job
from cedar.engine.memory import Bound
from cedar.engine.metrics import Metrics, Report, make_report
from cedar.engine.nodes import last_mode, rows_per_unit
from cedar.engine.plan_control import Plans
from cedar.engine.quarantine import Budgets
from cedar.engine.runner import Runner, Runners, Untaken
from cedar.engine.streams.arrivals import Orders
from cedar.executors.choose import available_cpus, check_executor, of_fork
from cedar.executors.isolated import apart_for
from cedar.executors.recovery import Patience
from cedar.operators.base import Env, Instances
from cedar.operators.take import whole
from cedar.plan.data import Plan
from cedar.plan.graph import Node, digest, sources, topology
from cedar.tasks.chain import Step

_log = logging.getLogger("cedar")
_CLOSED = 8  # epochs of the data that a rank may be ahead of another when their states are merged


class Loader(DataLoaderLike):
    """Iterates a pipeline, epoch by epoch, and can be stopped and resumed anywhere.

    ``for batch in loader`` runs the current epoch, then moves to the next. After a ``break`` the next ``for`` starts
    the epoch again; after ``load_state_dict`` it goes on where the state says.

    Example:
        >>> import cedar
        >>> pipeline = cedar.from_items([{"x": i} for i in range(10)]).batch(4, last="keep")
        >>> with pipeline.loader() as loader:
        ...     [batch["x"].tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """

    url: str | None = None  # of its status, where it is served
    _untaken: Untaken | None = None

    def __init__(self, root: Node, options: Options) -> None:
        site = user_site()
        check_executor(options.executor)
        check_format(options.format, site)
        options = checked(options, site)
        check_device(options.device, options.format, site)
        self._options, self._site, self._pid = options, site, os.getpid()
        self.rank = find_rank(options.rank, options.world, options.subgroup, site)
        instances = Instances()
        self._metrics = Metrics()
        apart = apart_for(options.executor, options.workers, self._metrics.deaths, Patience(options.timeout))
        self._kept: NumericEnvironment | None = options.plan.numeric if options.plan is not None else None
        env = Env(options.seed, options.epoch, instances, numeric=self._environment())
        self._counting = Counting(options)
        counts = self._counting if options.counts == "exact" else None
        binding = self._binding = Binding(root, options.on_error, env, apart, counts)
        self._batched = binding.batched[id(root)]
        check_fits(binding, options, self.rank.world, site)
        self._metrics.labels = {binding.index[id(n)]: binding.labels[id(n)] for n in binding.nodes}
        self._metrics.words = functools.cache(functools.partial(_words, binding, options.words))
        finish: tuple[Step, ...] = ()
        if options.encode is not None:
            finish = (Step(options.encode, (), "encode"),)
        elif self._batched and not options.as_blocks:
            last = Finish(options.format, Marked(binding) if binding.marks else None)
            finish = (Step(last, (), f"format={options.format!r}"),)
        plan = options.plan or (options.planner.begin() if options.planner else Plan.as_written(root))
        self._plans = Plans(options.planner, plan, binding, self._metrics, self.rank.world)
        store = Store.within(plan.cache_bytes, plan.memory_bytes, options.workers or available_cpus())
        place = functools.partial(meeting_place, options.agree, options.executor)
        self._job = Job(
            binding, self.rank, options.seed, options.split_batches, finish, instances, store,
            self._metrics, self._plans, options.deal, options.steps, place, encodes=options.encode is not None,
        )  # fmt: skip
        self._counting.job = self._job
        self._identity_of: Identity | None = None
        self._take_any_order()
        self._watch(plan.memory_bytes)
        observe = None if options.observer is None else options.observer.update
        self._account = Account(binding, self._metrics, self.rank.rank, observe, site)
        self._units = Units(self._account, options, self._batched, finish, rows_per_unit(root) if self._batched else 1)
        self._generation, self._ran_on, self._workers, self._warned = 0, "none yet", 0, False
        self._replays = Replays(self._job, options, site)
        self._locator: Locator | None = None
        self._runner: Runner | None = None
        self._left = False  # of the epoch that ended last, something
        self._deliverer: DataEpoch | AheadEpoch | None = None
        self._new = True  # nothing was asked of it yet
        self._dealt = False  # the rest of the epoch, anew, under an iteration
        self._elastic = self._make_elastic()
        self._begin_epoch(options.epoch)

    def _watch(self, memory: int | None) -> None:
        """Somebody watches the run, or its memory is bound: what is queued is known then."""
        observer = self._options.observer
        if observer is not None or memory is not None:
            self._untaken = Untaken()
            self._metrics.queued = self._untaken.nbytes
        if observer is not None:
            observer.begin(self._metrics)
        if memory is not None:
            self._metrics.bound = Bound(memory, self._job.store.memory, self._metrics.queued)

    def _take_any_order(self) -> None:
        options, rank = self._options, self.rank
        if options.order == "exact":
            return
        self._binding.any_order = True
        follow = None if options.order == "any" else Path(options.order)
        record = None if options.record is None else Path(options.record)
        orders = Orders(record, follow, self._made, rank.rank, rank.world, self._site)
        self._job = replace(self._job, orders=orders)

    def _made(self) -> str:
        """Tells this pipeline, its data and its seed from others."""
        identity = self._identity()
        return digest([identity.pipeline, identity.sources, identity.seed, identity.counts, identity.split_batches])

    def _environment(self) -> NumericEnvironment:
        """That of a run that begins here and now: the caller's, or that of a plan or state."""
        caller = NumericEnvironment.of_caller()
        return caller if self._kept is None else self._kept.again(caller)

    def _begin_epoch(self, epoch: int) -> None:
        """Stand at the beginning of an epoch; with ``steps``, the data go on where they were."""
        self.epoch = epoch
        self._step = 0
        self._total: tuple[int, int | None] | None = None  # units of an epoch, once asked for
        self._data = epoch
        self._open: dict[str, Any] = {}
        self._live: DataEpoch | AheadEpoch | None = None  # the epoch whose entry in ``_open`` is behind
        self._mark_beginning()
        self._resumed = self._started = self._placed = False
        self._account.budgets.start({}, 0)

    def _opened(self) -> dict[str, Any]:
        """The entries of the data epochs under way, as of what the caller received."""
        if self._live is not None and self._live.moved:
            self._open[str(self._live.epoch)] = self._live.entry()
        return copied(self._open)  # type: ignore[no-any-return]

    def _mark_beginning(self) -> None:
        """Steps count from here: the epoch's beginning, or where it was dealt anew to other ranks."""
        self._begun: dict[str, Any] = {"step": self._step, "data": self._data, "open": self._opened()}

    def set_epoch(self, epoch: int) -> None:
        """Stand at the beginning of epoch ``epoch``, 0 or above; what was loaded from a state is forgotten."""
        epoch = whole(epoch, "set_epoch(epoch)")
        self._generation += 1
        if epoch == self.epoch and not self._started and _carries(self._begun):
            return  # it stands there, with what was left over of the epoch before
        self._begin_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        refuse_workers(self.rank, self._site)
        if os.getpid() != self._pid:
            self._begin_in_fork()
        sharing = self._job.sharing
        if sharing.why and not sharing.asked and not self._warned:
            self._warned = True
            _log.warning("%s", sharing.warning(self.rank.world))
        again, self._started = self._started, True
        self._new = False
        return self._iterate(again)

    def _begin_in_fork(self) -> None:
        """Stand where the loader of the parent stood, with no thread, lock or worker of the parent's."""
        stood = {name: self.__dict__[name] for name in ("epoch", "_step", "_data", "_begun", "_kept", "_started")}
        stood |= {name: self.__dict__[name] for name in ("_resumed", "_placed", "_generation", "_new", "_elastic")}
        opened, counted = self._opened(), (dict(self._account.budgets.counts), self._account.budgets.seen)
        self.__init__(self._binding.root, self._options)  # type: ignore[misc] # nothing else may stay
        self.__dict__.update(stood)
        self._open = opened
        self._account.budgets.start(*counted)

    def _iterate(self, again: bool) -> Iterator[Any]:
        self._generation += 1
        mine = self._generation
        self._stop()
        if again:
            self._restart()
        runner, others = self._new_runner()
        numeric = self._binding.begin(self._environment())
        instances = self._job.instances
        self._plans.start(runner)
        clock, handed = self._metrics.time, self._metrics.batches
        clock.begin(time.perf_counter(), runner.lanes)
        own = OwnTime(self._metrics, 1 if self._batched or self._options.as_blocks else ROWS_PER_LOOK)
        deliveries = self._deliveries(runner)
        # A thread of the run may be at work whenever the caller is: what it holds, it holds until the run ends.
        holding = held(numeric if runner.local and not runner.inline else None)
        holding.__enter__()
        try:
            instances.enter()
            own.enter()
            self._set_out(runner)
            for value in deliveries:
                own.leave()
                clock.give(time.perf_counter())
                if numeric is not None:
                    instances.leave()
                yield value
                if os.getpid() != self._pid:
                    raise WorkerError(
                        "this process was forked in the middle of the iteration, whose threads and workers are the "
                        "parent's",
                        site=self._site,
                        done="no row was delivered here; the parent goes on",
                        fix=f"iterate the loader anew in this process, or {forks.START}",
                    )
                if self._generation != mine:
                    raise PipelineError(
                        "this iteration was superseded: the loader was closed, or iterated again",
                        site=self._site,
                        fix="one loader is one iteration at a time; make another loader",
                    )
                clock.asked = time.perf_counter()
                if numeric is not None:
                    instances.enter()
                own.enter()
            own.leave()
            clock.give(time.perf_counter())
        except Exception as error:  # nothing is looked up for what closes the generator, maybe as Python ends
            if isinstance(error, CedarError):
                self._account.locate(error)
            raise
        finally:
            instances.end()
            deliveries.close()
            others.close()
            self._plans.close()
            holding.__exit__(None, None, None)
            self._ended()
        if self._metrics.batches == handed:
            self._tell_of_none()
        self._finish_epoch()

    def _ended(self) -> None:
        """An iteration is over, whatever ended it."""
        if self._job.orders is not None:
            self._job.orders.close()
        if self._options.observer is not None:
            self._options.observer.ended()

    def _tell_of_none(self) -> None:
        """An epoch that had no batch ends, unless it was gone through before."""
        if self._batched and self._step == self._begun["step"]:
            _log.warning(
                "epoch %d has no batch for rank %d of %d: fewer rows than a batch, or other ranks have them; "
                "use smaller batches, or last='keep'",
                self.epoch, self.rank.rank, self.rank.world,
            )  # fmt: skip

    def _new_runner(self) -> tuple[Runner, Runners]:
        """Where the tasks of an iteration run, and those of the other places of its plans."""
        self._resumed = self._dealt = False
        runner = self._runner = Runner(
            *of_fork(self._options.executor, self._options.workers),
            self._metrics.deaths,
            Patience(self._options.timeout),
            watched=True,
            untaken=self._untaken,
            bound=self._metrics.bound,
        )
        others = runner.others = Runners(runner)
        self._ran_on, self._workers = runner.name, runner.workers
        return runner, others

    def _stop(self) -> None:
        """End the threads of an iteration that somebody still holds, such as the traceback of an error in the loop."""
        if isinstance(self._deliverer, AheadEpoch):
            self._deliverer.stop()
        if self._runner is not None:
            (self._runner.others or self._runner).close()
            self._plans.close()
            self._runner = None

    def _restart(self) -> None:
        """After a break the epoch starts again, unless all of it was received; after a loaded state it goes on."""
        data = DataEpoch(self._job, Runner("inline", 1), self._data, self._opened().get(str(self._data)))
        steps, begun = self._options.steps, self._begun
        if self._step >= steps if steps is not None else self._step > 0 and left(data) == 0:
            self._close(data)
            self._finish_epoch()
        elif not self._resumed:
            self._begin_epoch(self.epoch)
            if begun["step"] == 0 and (steps is not None or _carries(begun)):
                self._data, self._open, self._placed = begun["data"], begun["open"], True
                self._mark_beginning()
        self._started = True

    def _set_out(self, runner: Runner) -> None:
        self._place(runner)
        self._tell()

    def _place(self, runner: Runner) -> None:
        """With ``steps``, an epoch that was not reached by running starts where it would."""
        steps = self._options.steps
        if steps is None or self._placed:
            return
        self._placed = True
        if self._step == 0 and self.epoch > 0 and (self._batched or not self._account.skips):
            units = DataEpoch(self._job, runner, self.epoch, None).units()
            if units is not None and units != math.inf and units > 0:
                self._data, taken = divmod(self.epoch * steps, int(units))
                self._open = {str(self._data): {"history": [], "deal": [[taken, None, None], 0], "lanes": None}}
        self._mark_beginning()

    def _deliveries(self, runner: Runner) -> Generator[Any]:
        steps, agreement = self._options.steps, self._agreement()
        idle = 0
        while steps is None or self._step < steps:
            self._account.epoch = self._data
            entry = self._open.get(str(self._data))
            data, values = deliver(self._job, runner, self._data, entry, self._units, steps is None, agreement)
            self._live = self._deliverer = data
            for value in values:
                self._step += 1
                idle = 0
                yield value
                if self._dealt:
                    break
                if steps is not None and self._step >= steps:
                    return
            if self._dealt:  # what was made ahead is another rank's now
                self._dealt = self._resumed = False
                self._started = True
                data.leave()
                cast("Generator[Any]", values).close()
                agreement = self._agreement()
                continue
            if steps is None:
                self._close(data)
                return
            idle += 1
            if idle > self.rank.world:  # by then it has had every lane
                raise PipelineError(
                    f"steps={steps}: an epoch of the data has no batch for rank {self.rank.rank}",
                    site=self._site,
                    fix='use smaller batches, last="keep", or more splits than ranks',
                )
            self._close(data)
            self._data += 1

    def _agreement(self) -> Agreement | None:
        """How the ranks find the end of the epoch that begins, where they end together."""
        if not self._job.sharing.together:
            return None
        root, options = self._binding.root, self._options
        name = self._elastic.meeting or digest([topology(root), options.seed, self.rank.world])[:16]
        run = next_run(name, self.rank.rank)
        return self._job.agreement(run, options.timeout, self._site)

    def _close(self, data: DataEpoch | AheadEpoch) -> None:
        """This rank is through an epoch of the data: other ranks may need to know when their states are merged."""
        self._open = {e: entry for e, entry in self._open.items() if int(e) > data.epoch - _CLOSED}
        self._open[str(data.epoch)] = data.closed()
        self._left = data.left
        self._live = None

    def _finish_epoch(self) -> None:
        self._account.end()
        steps = self._options.steps
        data, open_ = self._data, self._opened()
        self._begin_epoch(self.epoch + 1)
        if steps is None:
            self._open = {e: entry for e, entry in open_.items() if int(e) == data}  # others may still be in it
            if self._job.sharing.together and self._left:
                fresh = DataEpoch(self._job, Runner("inline", 1), self.epoch, None).entry()
                self._open[str(self.epoch)] = fresh | {"before": {"epoch": data, "entry": open_[str(data)]}}
                self._mark_beginning()
        else:
            self._data, self._open, self._placed = data, open_, True
            self._mark_beginning()
        self._tell()

    # ---- state -------------------------------------------------------------------------------------------------------

    def _identity(self) -> Identity:
        if self._identity_of is None:
            options = self._options
            binding = self._binding
            settled = any(map(binding.listed.filters, binding.sources))
            counted = [rows for source in binding.sources if (rows := binding.listed.rows(source)) is not None]
            counts = digest([each.rows.tolist() for each in counted]) if counted else None
            self._identity_of = Identity.of(
                binding.root, options.seed, options.split_batches, options.steps, settled, counts,
                options.order != "exact",
            )  # fmt: skip
        return self._identity_of

    def state_dict(self) -> dict[str, Any]:
        """The position after what the caller received: JSON-able, a few KiB, cheap to make.

        Save it on every rank: a later run with another number of ranks needs the list of all of them.
        """
        self._place(Runner("inline", 1))
        identity = self._identity()
        return seal(
            {
                "cedar": VERSION, "pipeline": identity.pipeline, "sources": identity.sources, "files": identity.marks,
                "code": identity.code, "operators": identity.operators,
                "seed": identity.seed, "split_batches": identity.split_batches, "steps": identity.steps,
                "epoch": self.epoch, "step": self._step, "rank": self.rank.rank, "world": self.rank.world,
                "data": self._data, "open": self._opened(), "begun": copied(self._begun),
                "skipped": dict(self._account.budgets.counts), "seen": self._account.budgets.seen,
                "numeric": None if self._binding.numeric is None else self._binding.numeric.to_json(),
            }
            | ({} if identity.counts is None else {"counts": identity.counts})
            | ({"order": "any"} if identity.any_order else {})
        )  # fmt: skip

    def check_state(self, state: Any) -> None:
        """Whether a state, of any rank, is one of this pipeline, with its code, of its data and its seed.

        Raises:
            ResumeError: it is not.
        """
        site, identity = user_site(), self._identity()
        saved = validated(state, site)
        identity.check(saved | {"code": identity.code}, site)
        if saved["code"] != identity.code:
            raise ResumeError("the code of a function or an expression of the pipeline changed", site=site)

    def load_state_dict(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Go on where a state says, at the next ``for``.

        Args:
            state: what ``state_dict()`` returned; after a change of the number of ranks, the list of all ranks' states.

        Raises:
            ResumeError: the state is damaged, or of another pipeline, data, seed, version or number of ranks.
        """
        site = user_site()
        states = [validated(s, site) for s in (state if isinstance(state, (list, tuple)) else [state])]
        if not states:
            raise ResumeError("the list of states is empty", site=site, fix="give the states of all ranks")
        for saved in states:
            self._identity().check(saved, site)
        chosen = choose(states, self.rank.rank, self.rank.world, self._chunk, site)
        self._generation += 1
        self._stand(chosen)

    def _stand(self, chosen: dict[str, Any]) -> None:
        """Stand where a state of this rank says."""
        self._new = False
        self._begin_epoch(chosen["epoch"])
        self._step, self._data, self._open = chosen["step"], chosen["data"], chosen["open"]
        self._resumed, self._placed = True, True
        if chosen["begun"] is None:  # merged: steps of this world count from here
            self._mark_beginning()
        else:
            self._begun = chosen["begun"]
        self._account.budgets.start(chosen["skipped"], chosen["seen"])
        if self._binding.numeric is not None and chosen.get("numeric") is not None:
            self._kept = NumericEnvironment.of_json(chosen["numeric"])
            missing = self._kept.missing(NumericEnvironment.of_caller())
            self._binding.begin(self._environment())
            if missing:
                warnings.warn(
                    f"functions run in another numeric environment than the state's: {missing}; what they compute may "
                    "differ in the last bits",
                    stacklevel=2,
                )

    def _chunk(self) -> int:
        return least_run(self._binding)

    # ---- other ranks -------------------------------------------------------------------------------------------------

    def reshard(self, rank: int | None, world: int) -> None:
        """Go on as another rank, of another number of ranks: the rest of the epoch is dealt anew, every row once.

        All ranks of the new world call it at the same step: those that stay, between two batches, and those that are
        new, with a loader of the same pipeline and seed that was not iterated. A loop that is under way goes on with
        this rank's part of the rest; elsewhere the next ``for`` does. Ranks meet through ``loader(agree=)``, the store
        of torch.distributed where that is initialised for the new ranks, or the service they read through; see
        docs/ranks.md.

        A rank of the world before that does not come is gone: every batch up to this step counts as delivered to it.

        Args:
            rank: this rank's number from now on; None where it leaves: it tells the others where it stood, which
                saves them to work that out, and its loader is closed.
            world: how many ranks there are from now on.

        Raises:
            PipelineError: a rank outside its world, or ranks that cannot talk.
            ResumeError: the ranks stand at different steps, or are of different pipelines.
            WorkerError: a rank did not come within ``loader(timeout=)``, or 600 s. This one stands where it stood.

        Example:
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
        site = user_site()
        state = None if self._new else self.state_dict()
        if rank is None:
            self._elastic.leave(state, self.rank.rank, self.rank.world, site)
            self.close()
            return
        self._check_exact("reshard()", site)
        rank, world = whole(rank, "reshard(rank)"), whole(world, "reshard(world)", least=1)
        if rank >= world:
            raise PipelineError(f"reshard({rank}, {world}): a rank lies between 0 and world - 1", site=site)
        if self._options.split_batches:
            check_slices(self._binding, world, site)
        merged = self._elastic.change(state, self.epoch, self._tells(), rank, world, site)
        self._options = replace(self._options, rank=rank, world=world, subgroup=True)
        self.rank = Rank(rank, world, "arguments")
        self._job = replace(self._job, rank=self.rank, counts={})
        self._replays.close()
        self._replays, self._locator = Replays(self._job, self._options, self._site), None
        self._plans.world, self._account.budgets = world, Budgets(rank)
        self._warned = False
        if merged is None:
            self._begin_epoch(self.epoch)
            self._new = False
        else:
            self._stand(part_of(merged, rank, world))
            self._dealt = True

    def _make_elastic(self) -> Elastic:
        options, root = self._options, self._binding.root
        name = f"cedar/{digest([topology(root), options.seed, 'reshard'])[:16]}"
        drifts = (options.steps is not None and last_mode(root) == "keep") or (
            self._account.skips and not self._batched
        )
        check = lambda state, site: self._identity().check(state, site)  # noqa: E731 - not before it is needed
        return Elastic(name, self._job.place, options.timeout, check, self._chunk, drifts, self._run_again)

    def _tells(self) -> bool:
        """Whether only this rank knows where it began the epoch."""
        sharing = self._job.sharing
        lanes = sharing.lanes or any(entry["lanes"] is not None for entry in self._begun["open"].values())
        return self._elastic.tells(self._begun, self.epoch, lanes, sharing.together)

    def _tell(self) -> None:
        """Leave word of where this rank begins, in case it is gone when ranks change."""
        if self.rank.world > 1 and self._tells():
            self._elastic.begins(self._begun, self.epoch, self.rank.rank, self.rank.world, self._site)

    def _run_again(self, gone: Gone, going_on: Callable[[], None]) -> dict[str, Any]:
        """The state of a rank that is gone, after its last step."""
        options = replace(
            self._options, rank=gone.rank, world=gone.world, subgroup=True, observer=None, planner=None, plan=None,
            device=None,
        )  # fmt: skip
        with Loader(self._binding.root, options) as other:
            other._job = replace(other._job, shares=replace(other._job.sharing, lanes=gone.lanes, together=False))
            other._stand(gone.state)
            for _ in zip(range(gone.steps), other, strict=False):
                going_on()
            return other.state_dict()

    # ---- batches again -----------------------------------------------------------------------------------------------

    def read(self, step: int, rank: int | None = None) -> Any:
        """Batch ``step`` of this epoch again, of this rank or another, until ``commit``.

        Raises:
            PipelineError: the step is committed, past the epoch's end, or negative.
        """
        replay = self._replay()
        replay.site = user_site()
        try:
            piece = replay.unit(step, self.rank.rank if rank is None else rank)
        except CedarError as error:
            error.done = error.done or "nothing was read"
            self._account.locate(error)
            raise
        block = piece.rows.gather()
        if not self._batched:
            return next(block.rows(), None)
        value, mover = self._units.value(block, replay.runner), make_mover(self._options.device)
        return value if mover is None else mover.end(mover.begin(value))

    def locate(self, step: int, i: int = 0) -> Located:
        """Where row ``i`` of batch ``step`` of this epoch came from; of a pipeline without batches, row ``step``.

        Files and functions are run again only where they decide which rows there are (filters, rows that may be
        skipped, batches by length); the result says so. From a state: ``load_state_dict`` and then this.

        Raises:
            PipelineError: there is no such step, or no such row in it.

        Example:
            >>> import cedar
            >>> p = cedar.from_items([{"x": i} for i in range(10)]).map(str, "x").batch(4)
            >>> print(p.loader().locate(1, 2).row)
            from_items(list of 10), row 6, epoch 0
        """
        site = user_site()
        step, i = whole(step, "locate(step)"), whole(i, "locate(i)")
        locator = self._found("locate()")
        try:
            rows = locator.keys(self.epoch, self._begun, step, self.rank.rank)
        except CedarError as error:
            self._account.locate(error)
            raise
        if i >= len(rows):
            raise PipelineError(f"locate({step}, {i}): the batch has {len(rows)} row(s)", site=site)
        binding = self._binding
        source, *above = path(binding.root, rows[i].source)
        labels = tuple(binding.labels[id(node)] for node in above)
        told = f"{binding.labels[id(source)]}, {source.site}"
        epoch = self.epoch if self._options.steps is None else None  # such an epoch may hold parts of several
        row = replace(self._account.named(rows[i]), epoch=epoch)
        return Located(step, i, row, told, labels, self._plans.current.method, locator.ran)

    def where(self, file: str, row: int) -> list[Place]:
        """Where row ``row`` of ``file`` is delivered in this epoch, rank and step; the inverse of locate.

        Every rank is looked at where row counts are known, else this one alone: ask each. What is run again is as of
        ``locate``. An empty list says that the row is in no batch: filtered out, dropped with the last short batch, or
        of no file that is read.

        Args:
            file: a URL of a source, or how it ends: ``"clicks/part-3.parquet"``.
            row: its number in the file, from 0; the byte offset of a line of text.

        Raises:
            PipelineError: the epoch has no end.

        Example:
            >>> import cedar
            >>> p = cedar.from_items([{"x": i} for i in range(10)]).shuffle().batch(5)
            >>> [place] = p.loader(seed=1).where("from_items(list of 10)", 6)
            >>> p.loader(seed=1).locate(place.step, place.index).row.row
            6
        """
        file, row = str(file), whole(row, "where(file, row)")
        locator = self._found("where()")
        epoch, world = self.epoch, self.rank.world
        alone = world > 1 and any(entry["lanes"] is not None for entry in self._begun["open"].values())
        alone = alone or (world > 1 and self.units() is None)
        found: list[Place] = []
        try:
            for rank in [self.rank.rank] if alone else range(world):
                for step, i, ref in locator.places(epoch, self._begun, rank, row):
                    named = replace(self._account.named(ref), epoch=epoch if self._options.steps is None else None)
                    if named.url == file or str(named.url).endswith(f"/{file.lstrip('./')}"):
                        found.append(Place(epoch, rank, step, i, named))
        except CedarError as error:
            self._account.locate(error)
            raise
        return found

    def _found(self, what: str) -> Locator:
        """Who looks rows up."""
        self._check_steps(what)
        if self._locator is None:
            self._locator = Locator(self._job, self._options, self._account.skips, self._replays)
        return self._locator

    def commit(self, step: int) -> None:
        """Batches up to and including ``step`` of this epoch are consumed: they need not be read again."""
        self._replay().commit(whole(step, "commit(step)"))

    def _replay(self) -> Replay:
        self._check_steps("read() and commit()")
        return self._replays.of(self.epoch, self._begun)

    def _check_exact(self, what: str, site: Site | None) -> None:
        if self._job.orders is not None:
            raise PipelineError(
                f"{what} with order={self._options.order!r}: which rows come when is not known before they come",
                site=site,
                fix='use order="exact"',
            )

    def _check_steps(self, what: str) -> None:
        """A step is known before it is run."""
        self._check_exact(what, user_site())
        if not self._batched and self._account.skips:
            raise PipelineError(f"{what} of rows that may be skipped", site=user_site(), fix="use batch()")
        self._place(Runner("inline", 1))

    # ---- what is known -----------------------------------------------------------------------------------------------

    def units(self) -> float | None:
        """Units of an epoch on this rank from metadata alone: infinity without end, None where only a run can tell."""
        try:
            return DataEpoch(self._job, Runner("inline", 1), self.epoch, None).units()
        except CedarError as error:  # a sample may have met a row that fails
            self._account.locate(error)
            raise

    def sample(self) -> Block:
        """Up to 64 rows as they come out of the pipeline."""
        return self._binding.sample(self._binding.root)

    @property
    def skips(self) -> bool:
        """Some operator may drop rows that fail."""
        return self._account.skips

    def __len__(self) -> int:
        """Units of an epoch on this rank.

        Raises:
            TypeError: only a run can tell, or there is no end.
        """
        if self._options.steps is not None:
            return self._options.steps
        units = self.units() if self._batched or not self._account.skips else None
        if units is None or units == math.inf:
            why = "has no end" if units == math.inf else "is known only after a run: an operator drops or adds rows"
            raise TypeError(f"the length of this loader {why}; give steps= to fix it")
        return int(units)

    def position(self) -> tuple[int, int | None]:
        """How many units of this epoch were handed over, batches or rows, and how many there are, where that is known.

        Example:
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
        """What was done so far: rows/s, stall share, per-operator time, bottleneck, skipped rows."""
        tables = (n.operator.source for n in sources(self._binding.root) if isinstance(n.operator, Read))
        return make_report(
            self._metrics, asked_outside_tasks(tables), inline=self._ran_on == "inline", rank=self.rank.rank,
            world=self.rank.world, rank_from=self.rank.origin, executor=self._ran_on, workers=self._workers,
            epoch=self.epoch, plan=self._plans.current.method, view=self._options.view, graph=self._graph(),
            plan_changes=len(self._plans.history),
            numeric="" if self._binding.numeric is None else str(self._binding.numeric),
            notes=(*self._plans.notes(), *self._job.store.told(), *self._account.left_behind(), *self._carried()),
            deaths=tuple(map(self._account.told, list(self._metrics.deaths.latest))),
        )  # fmt: skip

    def _graph(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        index, labels = self._binding.index, self._metrics.told
        return tuple((labels[index[id(n)]], tuple(index[id(child)] for child in n.inputs)) for n in self._binding.nodes)

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def _carried(self) -> list[str]:
        carried = self._metrics.carried
        notes = [f"{carried} batch(es), left over when all ranks ended an epoch, opened the next"] if carried else []
        if self._left and self._job.sharing.together:
            notes.append("this rank had batches left when all ranks ended the epoch: they open the next")
        return notes

    @property
    def plan(self) -> Plan:
        """The plan that runs, or will; ``plan.save(path)`` keeps it."""
        return replace(self._plans.told(), numeric=self._binding.numeric)

    def explain(self) -> str:
        """The plan that runs and why, with what was measured so far."""
        explainer, sharing = self._options.explainer, self._job.sharing
        beyond = sharing.warning(self.rank.world) if sharing.why else self._job.reads_beyond()
        top = f"RANKS  {beyond}\n" if beyond else ""
        order = "" if self._job.orders is None else f"ORDER  {self._job.order_told()}\n"
        text = "" if explainer is None else explainer(self._binding.root, self._plans)
        return "".join([top, order, *(f"COUNTS {told}\n" for told in self._counting.told), text])

    def close(self) -> None:
        """End what runs; the loader can still be asked for its state and report."""
        self._generation += 1
        self._replays.close()
        if self._locator is not None:
            self._locator.close()
        self._stop()
        if self._options.observer is not None:
            self._options.observer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _words(binding: Binding, words: Callable[[Node, Mapping[int, str]], Mapping[int, str]] | None) -> dict[int, str]:
    """The labels of operators by their ordinals, as people wrote them."""
    labels = binding.labels if words is None else words(binding.root, binding.labels)
    return {binding.index[id(n)]: labels[id(n)] for n in binding.nodes}


def _carries(begun: dict[str, Any]) -> bool:
    """An epoch began with what was left over of the one before."""
    return any(entry.get("before") for entry in begun["open"].values())
