"""The state of a loader: a few KiB of JSON, whose positions refer to the pipeline as written.

A state has an entry for each data epoch in progress: the numbers of units that ranks of earlier worlds received, and
this rank's position. The states of N ranks can be merged into one state, from which M ranks continue.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from cedar.core.errors import ResumeError, Site, warn_user
from cedar.core.stream import is_count
from cedar.datasets.as_saved import listing_text
from cedar.datasets.base import Read, Versioned
from cedar.datasets.files_io import BUCKETS, changed_runs, marks_of, run_of
from cedar.datasets.filesource import FileSource
from cedar.engine.binding import Binding
from cedar.engine.delivery.options import Options
from cedar.engine.delivery.state_fields import PACKED, fault_of, packed, unpacked
from cedar.engine.streams.deal import EVERYTHING
from cedar.engine.streams.lanes import LaneState, merged, past_of, reassign_lanes
from cedar.plan import graph
from cedar.plan.graph import Node

Derive: TypeAlias = Callable[[dict[str, Any], int], dict[str, Any]]  # returns a state for another rank

VERSION = 3  # version of states that are not packed; in versions 1 and 2, the shuffle order depended on file numbers
_SETTLED = "splits by folders"
_COUNTED = "counts of filters"
_MAX_OPERATORS = 32  # maximum number of operators that a state lists, so that errors can name the one that differs
_MAX_LISTING_CHARS = 2048  # maximum characters of all listings in a state


def snapshots_of(root: Node) -> list[int | None]:
    """Return each source's table snapshot number, or None if it has no snapshots; [] if no source has snapshots."""
    sources = [node.operator.source for node in _reads(root)]
    if len(sources) > BUCKETS or not any(isinstance(source, Versioned) for source in sources):
        return []
    return [source.snapshot if isinstance(source, Versioned) else None for source in sources]


def at_snapshots(root: Node, snapshots: Sequence[int | None]) -> Node:
    """Return the graph with sources that read these snapshots, unless the user chose a snapshot.

    Raises:
        SourceError: a table no longer has the snapshot.
    """
    numbers = {id(node): number for node, number in zip(_reads(root), snapshots, strict=False)}

    def moved(node: Node) -> Node | None:
        number = numbers.get(id(node))
        source = node.operator.source if number is not None and isinstance(node.operator, Read) else None
        if number is None or not isinstance(source, Versioned) or source.snapshot == number or not source.reopen:
            return None
        return replace(node, operator=Read(source.at(number)))

    return graph.replace(root, moved) if snapshots and len(snapshots) == len(snapshots_of(root)) else root


def check_snapshots(root: Node, snapshots: Sequence[int | None], site: Site | None) -> None:
    """Raise ResumeError if a source reads a different snapshot than in the state."""
    for number, (own, other) in enumerate(zip(snapshots_of(root), snapshots, strict=False)):
        if own != other:
            raise ResumeError(
                f"the state was saved with snapshot {other} of source {number}, but this loader reads {own}",
                site=site,
                done="nothing was loaded",
                fix=f"give version={other} or snapshot_id={other} to the reader, or neither, and load the state "
                "before the first batch and without plan=",
            )


def _reads(root: Node) -> list[Any]:
    return [node for node in graph.sources(root) if isinstance(node.operator, Read)]


@dataclass(frozen=True)
class Identity:
    """Identifies the pipeline, data and seed that a state belongs to. A difference in code only causes a warning."""

    pipeline: str
    sources: list[str]
    code: str
    seed: int
    split_batches: bool
    steps: int | None
    operators: list[str]  # for each of the first operators: its name and the start of its parameters' digest
    marks: list[Any]  # for each source: [stamps, content hashes] of runs of its files; None if it has no files
    counts: str | None = None  # digest of the number of rows of each split that pass the filters, if counted
    any_order: bool = False  # whether rows are delivered as they finish
    snapshots: list[int | None] = field(default_factory=list)  # table snapshot of each source; empty if none has one
    count: int = field(default=0, compare=False)  # number of sources
    files: list[Sequence[Any]] = field(default_factory=list, compare=False, repr=False)  # files that ``marks`` covers
    listings: list[str | None] = field(default_factory=list, compare=False, repr=False)  # see ``listing_text``

    @staticmethod
    def of(binding: Binding, options: Options) -> Identity:
        """Return the identity of a pipeline and the options that its states depend on."""
        root, listed = binding.root, binding.splits
        settled = any(map(listed.filters, binding.sources))  # filters determine which splits exist
        counted = [rows for source in binding.sources if (rows := listed.rows(source)) is not None]
        counts = graph.digest([each.rows.tolist() for each in counted]) if counted else None
        reads = [n.operator for n in graph.sources(root) if isinstance(n.operator, Read)]
        digests = [graph.digest(operator.parameters()) for operator in reads]
        sources = [operator.source for operator in reads]
        files: list[Sequence[Any]] = [s.listing.files if isinstance(s, FileSource) else () for s in sources]
        if len(reads) <= BUCKETS:
            marks = [
                list(source.marks) if isinstance(source, FileSource) and source.listing.files else None
                for source in sources
            ]
            listings = list(map(listing_text, sources))
        else:  # with many sources, each digest is of a group of sources, so that the state stays small
            digests = [graph.digest(run_of(digests, number)) for number in range(BUCKETS)]
            files = [[file for each in files for file in each]]
            marks = [list(marks_of(files[0])) if files[0] else None]
            listings = []
        made = graph.topology(root)
        made = graph.digest([made, _SETTLED]) if settled else made
        made = graph.digest([made, _COUNTED]) if counts is not None else made
        listings = listings if sum(len(each or "") for each in listings) <= _MAX_LISTING_CHARS else []
        some = [node.operator for node in itertools.islice(graph.walk(root), _MAX_OPERATORS)]
        operators = [f"{each.name} {graph.digest(each.parameters() if each.inputs != 0 else {})[:4]}" for each in some]
        return Identity(
            made, digests, graph.code_digest(root), options.seed, options.split_batches, options.steps,
            operators, marks, counts, binding.any_order, snapshots_of(root), len(reads), files, listings,
        )  # fmt: skip

    def check(self, state: dict[str, Any], site: Site | None) -> None:
        """Raise ResumeError if a state does not match; warn if only code changed."""
        saved = state.get("counts")
        if (self.counts is None) != (saved is None):
            mine, theirs = ("auto" if each is None else "exact" for each in (self.counts, saved))
            raise ResumeError(
                f'the state is of a loader with counts="{theirs}", and this one has counts="{mine}"',
                site=site,
                done="nothing was loaded",
                fix=f'give counts="{theirs}" to the loader',
            )
        if self.any_order != (state.get("order") == "any"):
            theirs, mine = ('"exact"', '"any"') if self.any_order else ('"any"', '"exact"')
            raise ResumeError(
                f"the state was saved with order={theirs}, but this loader has order={mine}",
                site=site,
                done="nothing was loaded",
                fix=f"give order={theirs} to the loader, or begin a new epoch without the state",
            )
        if self.pipeline != state["pipeline"]:
            raise ResumeError(
                f"the state is of another pipeline: {_difference(self.operators, state.get('operators') or [])}",
                site=site,
                done="nothing was loaded",
                fix="resume with the pipeline that was saved: same operators, connections and their parameters",
            )
        for setting, own, other in (
            ("number of sources", len(self.sources), len(state["sources"])), ("seed", self.seed, state["seed"]),
            ("split_batches", self.split_batches, state["split_batches"]), ("steps", self.steps, state["steps"]),
        ):  # fmt: skip
            if own != other:
                problem = f"the state is of another {setting}: it has {other!r}, this has {own!r}"
                fix = f"give {setting}={other!r} to the loader"
                fix = "resume with the sources that were saved" if setting == "number of sources" else fix
                raise ResumeError(problem, site=site, done="nothing was loaded", fix=fix)
        self._check_sources(state, site)
        if self.counts != saved:
            raise ResumeError(
                "filters keep different rows than when the state was saved, so its row counts do not apply",
                site=site,
                done="nothing was loaded",
                fix="resume with the filters that were saved, or begin a new epoch without the state",
            )
        if self.code != state["code"]:
            warn_user(
                "the code of a function or an expression of the pipeline changed since the state was saved; the "
                "position stays the same, and the rest of the epoch uses the new code",
                site,
            )

    def _check_sources(self, state: dict[str, Any], site: Site | None) -> None:
        changed = [i for i, (a, b) in enumerate(zip(self.sources, state["sources"], strict=True)) if a != b]
        if changed:
            run = run_of(range(self.count), changed[0]) if self.count > BUCKETS else [changed[0]]
            which = f"source {run[0]}" if len(run) == 1 else f"one of the sources {run[0]} to {run[-1]}"
            raise ResumeError(
                f"the data of {which} changed since the state was saved: other files, sizes or row counts",
                site=site,
                done="nothing was loaded",
                fix="restore the files, or begin the next epoch without the state: "
                f"loader.set_epoch({state['epoch'] + 1})",
            )
        for files, marks, then in zip(self.files, self.marks, state.get("files") or (), strict=False):
            if not marks or not then:
                continue
            if [len(each) for each in marks] != [len(each) for each in then]:
                raise ResumeError("the state is damaged: 'files'", site=site, fix="use an earlier checkpoint")
            if overwritten := changed_runs(len(files), then, marks):
                among = run_of(files, overwritten[0])
                more = f"one of the {len(among)} files from {among[0].url} to {among[-1].url}"
                raise ResumeError(
                    f"{among[0].url if len(among) == 1 else more} is not what it was when the state was saved: it has "
                    "the same size, but was written since",
                    site=site,
                    done="nothing was loaded",
                    fix="restore the file, or begin a new epoch without the state",
                )


def _difference(mine: Sequence[str], saved: Sequence[str]) -> str:
    """Describe the first operator that differs. Operators are numbered from 1, with inputs before their consumers."""
    if not saved:
        return "its operators, their connections or their parameters differ"
    for number, (now, before) in enumerate(itertools.zip_longest(mine, saved, fillvalue=""), 1):
        name, other = now.partition(" ")[0], before.partition(" ")[0]
        if now and now != before and name == other:
            return f"operator {number}, {name}, had different parameters"
        if now != before:
            return f"operator {number} was {other or 'missing'}, and is {name or 'missing'}"
    return "operators are connected differently"


def seal(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state with a checksum that detects edits; large states are packed."""
    state = packed(state)
    return state | {"check": graph.digest(state)}


def validated(state: Any, site: Site | None) -> dict[str, Any]:
    """Return a copy of a state after checking that it is complete and of a known version.

    Raises:
        ResumeError: the state is damaged, edited or of another version.
    """
    if isinstance(state, (str, bytes)):
        try:
            state = json.loads(state)
        except (ValueError, RecursionError) as error:
            raise ResumeError(
                "the state is not valid JSON", site=site, fix="pass the value that loader.state_dict() returned"
            ) from error
    if not isinstance(state, dict) or "cedar" not in state:
        raise ResumeError(
            f"expected a state from loader.state_dict(), got {type(state).__name__}",
            site=site,
            fix="pass the value that loader.state_dict() returned",
        )
    if is_count(state["cedar"]) and state["cedar"] > PACKED:
        raise ResumeError(
            f"the state has version {state['cedar']}, this cedar reads up to {PACKED}", site=site, fix="update cedar"
        )
    if is_count(state["cedar"]) and state["cedar"] < VERSION:
        raise ResumeError(
            f"the state has version {state['cedar']}, of an earlier cedar, which shuffled in another order",
            site=site,
            fix="begin a new epoch without the state, or end this one with the earlier version",
        )
    try:
        whole: dict[str, Any] = unpacked(state)
        why = fault_of(whole)
    except ValueError as error:
        why = str(error)
    if why is not None:
        raise ResumeError(f"the state is damaged: {why}", site=site, fix="use an earlier checkpoint")
    sealed = {name: value for name, value in state.items() if name != "check"}
    if graph.digest(json.loads(json.dumps(sealed))) != state["check"]:
        raise ResumeError(
            "the state was edited or damaged: its checksum differs",
            site=site,
            fix="use the state as it was saved; with torch.distributed.checkpoint, give loader.stateful()",
        )
    return copy.deepcopy({name: value for name, value in whole.items() if name != "check"})


def choose(
    states: Sequence[dict[str, Any]], rank: int, world: int, chunk: Callable[[], int], derive: Derive, site: Site | None
) -> dict[str, Any]:
    """Return the state of this rank among ``states``, or else this rank's part of the merged states of all ranks.

    If only one state is given, the others are derived from it.

    Raises:
        ResumeError: these states are not sufficient.
    """
    ranks = [(state["rank"], state["world"]) for state in states]
    twice = next((each for each in ranks if ranks.count(each) > 1), None)
    if twice is not None:
        raise ResumeError(
            f"rank {twice[0]} of {twice[1]} appears twice among the given states",
            site=site,
            fix="give one state of each rank, all of the same step",
        )
    for state in states:
        if (state["rank"], state["world"]) == (rank, world):
            return state
    before = states[0]["world"]
    if len(states) == 1 and before > 1:
        states = [derive(states[0], each) for each in ([rank] if before == world else range(before))]
        if before == world:
            return states[0]
    if before == world or len(states) != before:
        raise ResumeError(
            f"the states are of rank(s) {[s['rank'] for s in states]} of {before}; this is rank {rank} of {world}",
            site=site,
            fix="give this rank's own state, or the list of all ranks' states after a change of world size",
        )
    return part_of(merge(states, chunk(), site), rank, world)


def for_rank(state: dict[str, Any], rank: int, drifts: bool, site: Site | None) -> dict[str, Any]:
    """Return the state of another rank after the same number of steps. With ``drifts``, that is possible only between
    epochs.

    Raises:
        ResumeError: the other rank's state cannot be derived from this one.
    """
    if state["rank"] == rank:
        return state
    entries = [*state["open"].values(), *state["begun"]["open"].values()]
    if state["split_batches"]:  # each rank has a slice of the same batches
        return state | {"rank": rank}
    if state.get("order") == "any" or (entries and drifts) or any(entry["lanes"] is not None for entry in entries):
        why = "row counts are unknown, or ranks have different numbers of rows"
        if state.get("order") == "any":
            why = "rows are delivered as they finish"
        raise ResumeError(
            f"the state is of rank {state['rank']} of {state['world']}, and the position of rank {rank} does not "
            f"follow from it: {why}",
            site=site,
            done="nothing was loaded",
            fix="save every rank's state and load the list of them: torch.distributed.all_gather_object(states, "
            "loader.state_dict()), or torch.distributed.checkpoint with loader.stateful()",
        )

    def moved_entries(opened: dict[str, Any]) -> dict[str, Any]:
        """Return the entries at a position after the same number of units that is valid for every rank."""
        moved = dict(opened)
        for epoch, entry in opened.items():
            if entry["deal"] is not None:
                (taken, below, number), skip = entry["deal"]
                moved[epoch] = entry | {"deal": [[taken + skip, None if number is None else below, number], 0]}
        return moved

    begun = state["begun"] | {"open": moved_entries(state["begun"]["open"])}
    return copied(state | {"rank": rank, "open": moved_entries(state["open"]), "begun": begun})  # type: ignore[no-any-return]


def part_of(state: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    """Return a rank's part of a merged state."""
    opened = {number: _part_of(entry, rank, world) for number, entry in state["open"].items()}
    return copied(state | {"open": opened})  # type: ignore[no-any-return]


def _part_of(entry: dict[str, Any] | None, rank: int, world: int) -> dict[str, Any] | None:
    if entry is None or entry["lanes"] is None:
        return entry
    lanes, past = reassign_lanes(entry["lanes"], entry["past"], rank, world)
    part = entry | {"lanes": lanes, "past": past}
    if "before" in entry:
        part["before"] = entry["before"] | {"entry": _part_of(entry["before"]["entry"], rank, world)}
    return part


def merge(states: Sequence[dict[str, Any]], chunk: int, site: Site | None) -> dict[str, Any]:
    """Merge the states of all ranks into one, from which ``part_of`` redistributes the rest of each data epoch.

    Raises:
        ResumeError: ranks are missing, duplicate or from different runs; or rows were delivered as they finished.
    """
    if any(state.get("order") == "any" for state in states):
        raise ResumeError(
            'with order="any" an epoch in progress cannot continue on another number of ranks: they received '
            "rows out of order",
            site=site,
            done="nothing was loaded",
            fix=f"continue with {states[0]['world']} ranks to the epoch's end, or begin without the state: "
            f"loader.set_epoch({states[0]['epoch'] + (states[0]['step'] > 0)})",
        )
    world = states[0]["world"]
    ranks = sorted(s["rank"] for s in states)
    if ranks != list(range(world)):
        raise ResumeError(
            f"the states are of ranks {ranks}, but that run had ranks 0 to {world - 1}",
            site=site,
            fix="give the list of the states of all ranks, saved together",
        )
    states = sorted(states, key=lambda s: int(s["rank"]))
    epoch = min(s["epoch"] for s in states)
    for name, differ in (
        ("world", any(s["world"] != world for s in states)),
        # A rank that ran out of batches before the others is at the beginning of the next epoch.
        ("epoch", any(s["epoch"] > epoch + (s["step"] == 0) for s in states)),
    ):
        if differ:
            raise ResumeError(
                f"the states differ in {name!r}: {[s[name] for s in states]}",
                site=site,
                fix="give states saved together",
            )
    if _assigned_in_two_ways(states):
        raise ResumeError(
            "the states differ in how the epoch was assigned: some by batches, others by lanes",
            site=site,
            fix="give states saved together",
        )
    whole = copy.deepcopy(next(s for s in states if s["epoch"] == epoch))
    whole["data"] = min(s["data"] for s in states)
    epochs = sorted({int(e) for s in states for e in s["open"]} | {s["data"] for s in states})
    whole["open"] = {}
    for number in epochs:
        entries = [s["open"].get(str(number)) for s in states]
        ahead = [s["data"] > number for s in states]
        if any(e is not None for e in entries) and not all(ahead):
            whole["open"][str(number)] = _merge_entries(
                number, entries, ahead, world, chunk, states[0]["split_batches"]
            )
    for number in epochs:
        if number > whole["data"] and "before" in (ahead_of := whole["open"].get(str(number), {})):
            del ahead_of["before"]  # some rank is still in that epoch, so the state has an entry for it
    whole["step"] = min(s["step"] for s in states if s["epoch"] == epoch)
    whole["begun"] = None
    whole["seen"] = sum(s["seen"] for s in states) // world
    for key in {k for s in states for k in s["skipped"]}:
        whole["skipped"][key] = max(s["skipped"].get(key, 0) for s in states)
    return whole


def _assigned_in_two_ways(states: Sequence[dict[str, Any]]) -> bool:
    """Whether some states assign an epoch by lanes, and others by batches."""
    for number in {number for s in states for number in s["open"]}:
        entries = [s["open"][number] for s in states if number in s["open"]]
        while entries:
            if len({entry["lanes"] is None for entry in entries}) > 1:
                return True
            entries = [entry["before"]["entry"] for entry in entries if entry.get("before")]
    return False


def _merge_entries(
    number: int, entries: list[dict[str, Any] | None], ahead: list[bool], world: int, chunk: int, sliced: bool
) -> dict[str, Any]:
    """Merge the entries of several ranks for one data epoch; ``ahead``: which ranks have finished that epoch."""
    some = next(e for e in entries if e is not None)
    if some.get("lanes") is not None or any(e and e.get("lanes") is not None for e in entries):
        lanes: list[Sequence[Any]] = []
        for rank, (entry, done) in enumerate(zip(entries, ahead, strict=True)):
            if entry is not None:
                lanes += entry["lanes"]
            elif not done:
                lanes.append(LaneState.first(rank, world, number))
        entry = {"history": [], "deal": None, "lanes": merged(lanes), "past": past_of(entries)}
        return entry | _merge_leftovers([e.get("before") if e else None for e in entries], world, chunk, sliced)
    taken = []
    hint = None
    for entry, done in zip(entries, ahead, strict=True):
        if entry is None or entry["deal"] is None:
            taken.append(EVERYTHING if done else 0)
            if not done:
                hint = [None, 0]  # this rank has not begun, so reading restarts at the first unit
            continue
        (units, below, at), skip = entry["deal"]
        taken.append(units + skip)
        if at is not None and (hint is None or at < hint[1]):
            hint = [below, at]
        elif at is None and units + skip == 0 and not done:
            hint = [None, 0]
    turn = [1, chunk, [max(taken)]] if sliced else [world, chunk, taken]
    history = [*some["history"], *([turn] if any(taken) else [])]
    below, at = hint if hint is not None else (None, None)
    mixed = {name: some[name] for name in ("left", "since", "drawn") if name in some}
    return {"history": history, "deal": [[0, below, at], 0], "lanes": None} | mixed


def _merge_leftovers(left: list[dict[str, Any] | None], world: int, chunk: int, sliced: bool) -> dict[str, Any]:
    """Merge the undelivered parts of the previous epoch; ranks without such an entry have finished that epoch."""
    if not (present := [each for each in left if each]):
        return {}
    number = max(each["epoch"] for each in present)
    entries = [each["entry"] if each else None for each in left]
    return {"before": {"epoch": number, "entry": _merge_entries(number, entries, [True] * world, world, chunk, sliced)}}


def copied(value: Any) -> Any:
    """Return a deep copy of plain JSON."""
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}
    return [copied(v) for v in value] if isinstance(value, list) else value
