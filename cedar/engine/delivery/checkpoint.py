"""Save a loader's position as a state, and continue from the states of one or more ranks."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from cedar.core.errors import ResumeError, RowError, Site, SourceError, user_site
from cedar.core.process import Rank
from cedar.core.stream import Altered, Piece, Position
from cedar.datasets.as_saved import Saved, as_saved
from cedar.datasets.base import Read
from cedar.datasets.filesource import FileSource
from cedar.engine.compiler import min_run_units
from cedar.engine.delivery.epochs import Epochs, units_left
from cedar.engine.delivery.mixtures import add_saved_inputs, apply_saved_weights, load_changes, saved_weights
from cedar.engine.delivery.parts import Parts
from cedar.engine.delivery.state import VERSION, at_snapshots, check_snapshots, choose, copied, seal, validated
from cedar.engine.epoch import DataEpoch, Job, mixed_of
from cedar.engine.metrics import Metrics
from cedar.engine.nodes import last_mode
from cedar.engine.runner import Runner
from cedar.engine.streams.lanes import Lane, LaneState
from cedar.engine.streams.splits import SplitStream
from cedar.operators.base import StreamOperator
from cedar.operators.batch import MakesBatches
from cedar.plan import graph
from cedar.plan.graph import Node

_log = logging.getLogger("cedar")


def saved_state(epochs: Epochs) -> dict[str, Any]:
    """Return the state after the last unit received; see ``Loader.state_dict``."""
    epochs.place()
    position, job, identity = epochs.position, epochs.job, epochs.parts.identity
    budgets, numeric = epochs.parts.account.budgets, job.binding.numeric
    return seal(
        {
            "cedar": VERSION, "pipeline": identity.pipeline, "sources": identity.sources, "files": identity.marks,
            "code": identity.code, "operators": identity.operators,
            "seed": identity.seed, "split_batches": identity.split_batches, "steps": identity.steps,
            "epoch": position.epoch, "step": position.step, "rank": job.rank.rank, "world": job.rank.world,
            "data": position.data, "open": position.opened(), "begun": copied(position.begun),
            "skipped": dict(budgets.counts), "seen": budgets.seen,
            "numeric": None if numeric is None else numeric.to_json(),
        }
        | ({} if identity.counts is None else {"counts": identity.counts})
        | ({"order": "any"} if identity.any_order else {})
        | saved_weights(epochs)
        | epochs.elastic.positions(epochs)
        | ({"listings": identity.listings} if any(identity.listings) else {})
        | ({"snapshots": identity.snapshots} if identity.snapshots else {})
    )  # fmt: skip


def load_state(epochs: Epochs, state: Any, site: Site | None) -> None:
    """Move to the position of a state, or of a list of states; see ``Loader.load_state_dict``."""
    states = [validated(s, site) for s in (state if isinstance(state, (list, tuple)) else [state])]
    if not states:
        raise ResumeError("the list of states is empty", site=site, fix="give the states of all ranks")
    rank = epochs.job.rank
    own = [each for each in states if (each["rank"], each["world"]) == (rank.rank, rank.world)]
    first = min(own or states, key=lambda each: int(each["data"]))
    add_saved_inputs(epochs, first)
    _read_snapshots(epochs, first.get("snapshots", []), site)
    compared = read_files_as_saved(epochs, first, site)
    parts = epochs.parts
    for saved in states:
        # A rank that has finished the epoch already reads the files of the next one, unlike the others.
        ahead = max(saved, first, key=lambda each: int(each["data"]))
        apart = saved["data"] != first["data"] and str(ahead["data"]) not in ahead["open"]
        files = saved | ({"sources": first["sources"], "files": first.get("files")} if apart else {})
        marks = [None if number in compared else each for number, each in enumerate(files.get("files") or [])]
        parts.identity.check(files | {"files": marks}, site)
    chunk = partial(min_run_units, parts.job.binding)
    derive = partial(epochs.elastic.state_of_rank, epochs, site=site)
    chosen = choose(states, parts.job.rank.rank, parts.job.rank.world, chunk, derive, site)
    number = str(chosen["data"])
    if number not in chosen["open"] and any(number in each["open"] for each in states):
        # Other ranks have begun this epoch, so this one reads the same files.
        chosen["open"][number] = DataEpoch(parts.job, Runner("inline", 1), chosen["data"], None).entry()
    parts.stop()
    continue_from(epochs, chosen, site)
    front = min(states, key=lambda each: (each["epoch"], each["step"], each["rank"]))
    if front["step"] == 0 < front["epoch"] == epochs.position.epoch:
        epochs.position.ended = {}
    if front["step"] and front["epoch"] == epochs.position.epoch:
        over = _epoch_is_over(parts, front, front["rank"] if len(states) == front["world"] else 0)
        if over:
            epochs.skip_rest()
            epochs.position.ended, epochs.position.resumed = chosen, True
        # Only in these cases does a rank that has no more batches know that no other rank has any.
        alone, sharing = parts.job.rank.world == 1 or parts.job.split_batches, parts.job.sharing
        ends_together = sharing.together or (not sharing.lanes and last_mode(parts.job.binding.root) != "keep")
        epochs.position.continue_if_over = over is None and (alone or ends_together)


def continue_from(epochs: Epochs, state: dict[str, Any], site: Site | None) -> None:
    """Move to the position of this rank's state, or of its part of a merged state."""
    load_changes(epochs, state, site)
    epochs.move_to(state)
    _check_changed_files(epochs, site)
    apply_saved_weights(epochs, state, site)


def _epoch_is_over(parts: Parts, state: dict[str, Any], rank: int) -> bool | None:
    """Whether ``rank`` has finished the epoch after the state's number of steps; None if only a run can show it.

    Rank 0 has the most steps of all ranks, so if rank 0 has finished, all ranks have.
    """
    if parts.job.steps is not None:
        return bool(state["step"] >= parts.job.steps)
    job = replace(parts.job, rank=Rank(rank, state["world"], "the state"), counts={})
    units = units_left(DataEpoch(job, Runner("inline", 1), state["data"], state["open"].get(str(state["data"]))))
    return None if units is None or (units > 0 and parts.may_skip_units) else units <= 0


def read_files_as_saved(epochs: Epochs, state: dict[str, Any], site: Site | None) -> set[int]:
    """If files changed since the state was saved, use the file list and splits that the state recorded.

    Return the numbers of the sources whose files were compared.
    """
    epochs.read_current_files()
    epochs.file_changes = []
    root, own = epochs.job.binding.root, epochs.parts.identity.sources
    listings, sources = state.get("listings") or [], graph.sources(root)
    if not len(listings) == len(sources) == len(own) == len(state["sources"]):
        return set()
    made: dict[int, Node] = {}
    compared = set()
    counted = epochs.job.streams(Runner("inline", 1), 0, [], dry=True)[1].source.count is not None
    reading = [n for n in graph.walk(root) if n.effects.rows == "stream" and n.effects.reads != frozenset()]
    by_number = counted and not reading  # no operator chooses or sorts rows by their values
    files = state.get("files") or [None] * len(sources)
    try:
        for number, (node, listing, marks) in enumerate(zip(sources, listings, files, strict=True)):
            source = graph.source_of(node)
            if listing is None or not isinstance(source, FileSource):
                continue
            compared.add(number)
            if (read := as_saved(source, Saved.of(listing), marks, counted, by_number, _in_order(root))) is not None:
                made[id(node)] = replace(node, operator=Read(read[0]))
                epochs.file_changes += read[1]
    except (SourceError, ValueError) as error:
        what = error.what if isinstance(error, SourceError) else f"the state is damaged: {error}"
        fix = error.fix if isinstance(error, SourceError) else "use an earlier checkpoint"
        raise ResumeError(what, site=site, done="nothing was loaded", fix=fix) from error
    if made:
        options = epochs.parts.options
        epochs.current_files = root, options
        # Plans were made for the current files.
        epochs.compile(graph.replace(root, lambda node: made.get(id(node))), replace(options, planner=None, plan=None))
        for each in epochs.file_changes:
            _log.warning("%s", each)
    return compared


def _check_changed_files(epochs: Epochs, site: Site | None) -> None:
    """Raise ResumeError if rows of a changed file were delivered among others, so that the position does not fit."""
    job, position = epochs.job, epochs.position
    sources = [read.operator.source for read in job.binding.sources]  # type: ignore[attr-defined]
    altered = [source for source in sources if isinstance(source, FileSource) and source.altered]
    try:
        for number, entry in position.open.items() if altered else ():
            if int(number) >= position.data:  # otherwise this rank has finished it
                _check_entry(replace(job, metrics=Metrics(), counts={}), int(number), entry)
    except Altered as error:
        epochs.read_current_files()
        raise ResumeError(
            f"{error}; its rows may have been delivered",
            site=site,
            done="nothing was loaded",
            fix=f"put it back as it was then, or give up the rest of the epoch: set_epoch({position.epoch + 1})",
        ) from None
    for source in altered:
        del source.__dict__["altered"]  # from now on, positions refer to the files as they are


def _check_entry(job: Job, epoch: int, entry: dict[str, Any]) -> None:
    """Raise Altered if the position in a data epoch does not fit: compute the units that were delivered once more."""
    entry = copied(entry)
    turns = bool(entry["history"]) or (job.rank.world > 1 and not job.split_batches)
    places: list[tuple[Lane | None, Position | None, bool]] = [(None, entry["deal"], turns)]
    if entry["lanes"] is not None:
        lanes = [LaneState(*lane) for lane in entry["lanes"]]
        places = [(each.lane(entry.get("past") or []), each.position, each.shared) for each in lanes if not each.ended]
    for lane, position, turns in places:
        runner, history = Runner("inline", 1), entry["history"]
        compiler, share = job.compiled(runner, epoch, history, lane, dry=True, mixed=mixed_of(entry))
        top, assigned = compiler.top(share)
        streams = [each for each in compiler.streams if isinstance(each, SplitStream)]
        # Other ranks may have delivered rows that come later than this rank's.
        apart = assigned.source.count is None and (turns or any(each.by_key is not None for each in streams))
        for segment in (segment for each in streams for segment in each.segments if lane is not None and lane.of > 1):
            if segment.conditions and segment.source.altered:  # the lanes depend on statistics of the changed file
                raise Altered(next(iter(segment.source.altered.values())), delivered=True)
        at, skip = position or [assigned.start(), 0]
        if (not apart and _in_order(job.binding.root)) or not top.fits_position([at, skip]):
            continue
        for each in streams:
            each.may_lag = apart
        if apart and turns and at[1] is None:  # a copy, since other ranks may not be at the start
            at = [at[0], copied([assigned.source.start(), 0]), 0]
        try:
            with suppress(RowError, SourceError), closing(top.open([at, skip])) as flow:  # the run will raise them
                while not apart and isinstance(piece := flow.pull(True), Piece) and not piece.units:
                    pass
        except Altered as error:
            if error.delivered:
                raise
    if entry.get("before"):
        _check_entry(job, entry["before"]["epoch"], entry["before"]["entry"])


def _in_order(root: Node) -> bool:
    """Whether rows are delivered in the order of reading, row by row or batched by the last stream operator."""
    nodes = [node for node in graph.walk(root) if node.inputs]
    streams = [node.operator for node in nodes if isinstance(node.operator, StreamOperator)]
    passing = ("first", "rest", "repeated")
    holding = [each for each in streams if not (each.ordering.preserves_windows or each.row_use.rows in passing)]
    alone = all(node.effects.per_row for node in nodes if not isinstance(node.operator, StreamOperator))
    batches = bool(streams) and isinstance(streams[-1], MakesBatches) and streams[-1].batch_rows is not None
    return alone and (not holding or (batches and holding == [streams[-1]]))


def _read_snapshots(epochs: Epochs, snapshots: list[int | None], site: Site | None) -> None:
    """Read the table snapshots that a state names, if the pipeline reads the latest snapshots."""
    current, options = epochs.job.binding.root, epochs.parts.options
    root = at_snapshots(current, snapshots)
    if root is not current and not epochs.used and options.plan is None:
        planner = None if options.plan_for is None else options.plan_for(root)
        epochs.compile(root, replace(options, planner=planner))
    check_snapshots(epochs.job.binding.root, snapshots, site)


class ByRank:
    """Saves the state of each rank under a separate name, as a JSON string; see ``Loader.stateful``.

    Args:
        loader: the loader of this rank.
        world: number of ranks of the run that saved the states; None means this loader's number.
    """

    def __init__(self, loader: Any, world: int | None = None) -> None:
        self._loader = loader
        rank, ranks = loader.rank.rank, loader.rank.world
        self._ranks = [rank] if world in (None, ranks) else list(range(world or 0))
        self._world = world or ranks

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state by name; with another world's ``world``, a placeholder for each of its ranks."""
        text = json.dumps(self._loader.state_dict())
        return {self._name(rank): text for rank in self._ranks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the saved states; raises the same errors as ``Loader.load_state_dict``."""
        if missing := [name for name in map(self._name, self._ranks) if name not in state]:
            raise ResumeError(
                f"the checkpoint has no state of {', '.join(missing)}",
                site=user_site(),
                done="nothing was loaded",
                fix="give stateful(world=) the number of ranks that saved it",
            )
        self._loader.load_state_dict([json.loads(state[self._name(rank)]) for rank in self._ranks])

    def _name(self, rank: int) -> str:
        return f"rank {rank} of {self._world}"
