"""Thousands of ranks in one process: the real dealing, agreement and states over a modeled store, without decoding.

    python -m benchmarks.scale [--form] [--ranks 4096] [--splits 1000000] [--rows 10000000000] [--only deal read ...]

What is real: loaders, the permutation of splits, windows, runs, lanes, the end of an epoch, how ranks meet, states. Of
every rank it runs what fixes its share; a drawn few deliver all their batches. What is modeled: seconds of the object
store (``scale_reads.Storage``), of the store of torch.distributed (``scale_clock.Board``) and of a step.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice, pairwise
from typing import Any

import numpy as np

import cedar
from benchmarks.harness import Figure, add_form, at_least, at_most, reported, show, write
from benchmarks.scale_data import Numbered, Size, counted, uncounted
from benchmarks.scale_reads import Dealt, Storage, assigned, lanes, took
from benchmarks.scale_service import Service
from benchmarks.scale_talk import agreed, folder_look, met
from cedar.engine.delivery.state import seal

PARTS = ("deal", "read", "talk", "resume")
QUICK = Size(ranks=64, splits=6_000, rows=3_000_000, batch=64)
SLOW = 3.0
AHEAD = 16  # splits that one rank has begun more than another, where a state is saved


@dataclass(frozen=True)
class Job:
    """One simulated job: its size, and its loaders and splits, which several parts use."""

    size: Size
    known: cedar.Pipeline
    unknown: cedar.Pipeline
    source: Numbered
    parts: Dealt

    @staticmethod
    def of(size: Size) -> tuple[Job, float]:
        """With the CPU seconds of one rank from the loader to where it begins to read."""
        known, unknown, source = counted(size), uncounted(size), Numbered(size)
        _ = source.rows
        began = time.process_time()
        loader = loader_of(known, 0, size.ranks)
        with loader:
            next(iter(loader))
        seconds = time.process_time() - began
        return Job(size, known, unknown, source, assigned(loader, size)), seconds

    @property
    def sizes(self) -> Any:
        """Bytes of each split."""
        return self.source.rows * self.size.row_bytes

    def reads(self) -> tuple[list[Any], list[int]]:
        """The splits that each rank reads, in order, and how many its first window has."""
        found: list[list[Any]] = [[] for _ in range(self.size.ranks)]
        windows = [0] * self.size.ranks
        for run in self.parts.runs:
            windows[run.rank] = windows[run.rank] or run.window
            found[run.rank].append(self.parts.order[run.places[0] : run.places[1]])
        return [np.concatenate(each) if each else np.array([], np.int64) for each in found], windows


def loader_of(pipeline: cedar.Pipeline, rank: int, world: int) -> cedar.Loader:
    """As a rank makes it."""
    return pipeline.loader(rank=rank, world=world, subgroup=True, executor="inline")


def amplification(job: Job) -> float:
    """Bytes that all ranks read over those of the rows that they deliver."""
    reads, _ = job.reads()
    read = sum(float(job.sizes[each].sum()) for each in reads)
    return read / float(job.parts.steps.sum() * job.size.batch * job.size.row_bytes)


# ---- the parts -------------------------------------------------------------------------------------------------------


def deal(job: Job, start: float, drawn: int) -> list[Figure]:
    """Who gets what: counts, and CPU seconds of a rank."""
    size, steps = job.size, job.parts.steps
    began = time.process_time()
    assigned(loader_of(job.known, 0, size.ranks), size)
    every = time.process_time() - began
    batches = sorted(run.batches for run in job.parts.runs)
    twice = sum(max(0, a[1] - b[0]) for a, b in pairwise(batches))
    dropped = size.rows - int(steps.sum()) * size.batch
    lane = lanes(loader_of(job.unknown, 0, size.ranks), size)
    began = time.process_time()
    lanes(loader_of(job.unknown, 0, size.ranks), size)
    laned = time.process_time() - began
    there = np.bincount(np.concatenate(lane), minlength=size.splits)
    loads = np.array([job.sizes[each].sum() for each in lane], dtype=np.float64)
    ranks = np.random.default_rng(0).choice(size.ranks, min(drawn, size.ranks), replace=False)
    return [
        reported("CPU of a rank, loader to first batch", [start], "s"),
        reported("CPU of the shares of all ranks, counts known", [every], "s", note="one process, one permutation"),
        reported("CPU of the lanes of all ranks, counts unknown", [laned], "s", note="each rank takes all of it"),
        at_most("batches assigned twice", 0, [twice], "batches"),
        at_most("ranks' steps, most less least", 0, [int(steps.max() - steps.min())], "steps"),
        at_most("rows left out, in batches of all ranks", 1, [dropped / (size.batch * size.ranks)], "steps"),
        at_most("splits in no lane, or in two", 0, [int((there != 1).sum())], "splits"),
        reported("bytes of the largest lane over the mean", [float(loads.max() / loads.mean())], "x"),
        *_delivered(job, ranks.tolist()),
    ]


def _delivered(job: Job, ranks: Sequence[int]) -> list[Figure]:
    """Ranks that deliver their whole share: what they read, and that the rows are those that were assigned."""
    reads, _ = job.reads()
    wrong, over, cpu = 0, [], []
    seen: list[Any] = []
    for rank in ranks:
        began, mine = time.process_time(), []
        with loader_of(job.known, rank, job.size.ranks) as loader:
            mine = [batch["row"] for batch in loader]
        cpu.append(time.process_time() - began)
        rows = np.concatenate(mine)
        planned = int(job.source.rows[reads[rank]].sum())
        over.append(loader.report().rows_read / planned)
        wrong += int(len(rows) != job.parts.steps[rank] * job.size.batch)
        splits = np.searchsorted(job.source.firsts, rows, side="right") - 1
        wrong += int((~np.isin(splits, reads[rank])).sum())
        seen.append(rows)
    every = np.concatenate(seen)
    note = f"{len(ranks)} drawn ranks, all their batches"
    return [
        at_most("rows of drawn ranks that two had, or of splits not theirs", 0,
                [len(every) - len(np.unique(every)) + wrong], "rows", note=note),
        at_most("rows read by drawn ranks over what their runs say", 1.0, over, "x", note=note),
        reported("CPU of a rank's epoch without decoding", cpu, "s", note=note),
    ]  # fmt: skip


def read(job: Job, model: Storage) -> list[Figure]:
    """What the object store sees."""
    (reads, window), sizes = job.reads(), job.sizes
    plain = took(reads, window, sizes, model)
    slow = took(reads, window, sizes, model, SLOW)
    requests = sum(int(model.requests(sizes[each]).sum()) for each in reads)
    loads = np.array([sizes[each].sum() for each in reads], dtype=np.float64)

    def modeled(what: str, value: float, unit: str, note: str = "") -> Figure:
        return reported(what, [float(value)], unit, how="simulated", note=note)

    return [
        at_least("bytes read over bytes needed", 1.0, [amplification(job)], "x", note="of all ranks"),
        modeled("bytes of the busiest rank over the mean", loads.max() / loads.mean(), "x"),
        modeled("requests of an epoch", requests, "requests"),
        modeled("requests per second, mean", requests / max(1.0, plain.end.max()), "1/s"),
        modeled("requests begun in a second, most", int(plain.per_second.max()), "1/s",
                 f"the store answers {model.rate:,.0f}"),
        modeled("bytes per second of all ranks", float(loads.sum()) / plain.end.max() / 1e9, "GB/s"),
        modeled("first window there, mean rank", float(plain.first.mean()), "s"),
        modeled("first window there, last rank", float(plain.first.max()), "s"),
        modeled("epoch, read and decoded, last rank", float(plain.end.max()), "s"),
        modeled("slowest rank over the mean", float(plain.end.max() / plain.end.mean()), "x"),
        modeled(f"the same with a rank {SLOW:g} times slower", float(slow.end.max() / slow.end.mean()), "x"),
    ]  # fmt: skip


def talk(job: Job, steps: int, step: float) -> list[Figure]:
    """The end of an epoch and the change of ranks, as the ranks tell each other."""
    size = job.size
    lane = lanes(loader_of(job.unknown, 0, size.ranks), size)
    units = np.array([job.source.rows[each].sum() for each in lane]) // size.batch
    units -= max(int(units.min()) - steps, 0)  # the last steps of the epoch
    found, slow = (agreed(units.tolist(), step, factor) for factor in (1.0, SLOW))
    served = agreed(units.tolist(), step, model=Service())
    ends = [max(each.steps) - min(each.steps) for each in (found, slow, served)]
    lost = [int(units.sum()) - sum(each.steps) - sum(each.left) for each in (found, served)]
    note = f"the last {found.steps[0]} steps of {step:g} s"
    seconds, requests = met(size.ranks)
    seconds_served, requests_served = met(size.ranks, Service())
    return [
        at_most("steps of ranks, most less least", 0, ends, "steps", how="simulated", note=note),
        at_most("batches neither delivered nor left over", 0, lost, "batches", how="simulated", note=note),
        reported("batches left over of an epoch, a rank", [float(np.mean(found.left))], "batches", how="simulated"),
        reported("requests to the store, a rank and step", [found.requests / size.ranks / found.steps[0]], "requests",
                 how="simulated"),
        reported("requests to the store, all ranks", [found.requests / found.seconds], "1/s", how="simulated"),
        reported("seconds of a step beyond its slowest rank's", [found.beyond], "s", how="simulated", note=note),
        reported(f"the same with a rank {SLOW:g} times slower", [slow.beyond], "s", how="simulated", note=note),
        reported("CPU of a look into a folder, agree=FOLDER", [folder_look(size.ranks)], "s", note="a real folder"),
        reported("reshard: seconds until all have met", [seconds], "s", how="simulated"),
        reported("reshard: requests to the store", [requests], "requests", how="simulated"),
        reported("service: messages to it, a rank and step", [served.requests / size.ranks / served.steps[0]],
                 "messages", how="simulated"),
        reported("service: its CPU, of a message and what it answers", [served.cpu / served.requests * 1e6], "us",
                 note="its own hub"),
        reported("service: seconds of a step beyond its slowest rank's", [served.beyond], "s", how="simulated",
                 note=note),
        reported("service: reshard, seconds until all have met", [seconds_served], "s", how="simulated"),
        reported("service: reshard, messages to it", [requests_served], "messages", how="simulated"),
    ]  # fmt: skip


def resume(job: Job) -> list[Figure]:
    """States of all ranks in the middle of an epoch, and one rank's way back into it."""
    figures = []
    for name, pipeline in (("counts known", job.known), ("counts unknown", job.unknown)):
        states = states_of(pipeline, job.size)
        lengths = [len(json.dumps(each)) for each in states]
        figures.append(reported(f"{name}: state of a rank", [float(np.mean(lengths))], "B"))
        for what, world, given in (
            ("as many ranks", job.size.ranks, states[0]),
            ("half the ranks", job.size.ranks // 2, states),
        ):
            began = time.process_time()
            loader = loader_of(pipeline, 0, world)
            loader.load_state_dict(given)
            loaded = time.process_time() - began
            first = _first(loader)
            again = len(json.dumps(loader.state_dict()))
            figures += [
                reported(f"{name}: CPU to load, {what}", [loaded], "s"),
                reported(f"{name}: CPU to load and open, {what}", [loaded + first], "s"),
                reported(f"{name}: state then, {what}", [again], "B"),
            ]
    return figures


def _first(loader: cedar.Loader) -> float:
    """CPU seconds until the first batch is there."""
    began = time.process_time()
    with loader:
        next(iter(loader))
    return time.process_time() - began


def states_of(pipeline: cedar.Pipeline, size: Size) -> list[dict[str, Any]]:
    """What all ranks save after a few batches: rank 0's state, and that of the others, of which some are further."""
    with loader_of(pipeline, 0, size.ranks) as loader:
        for _ in islice(loader, 3):
            pass
        mine = loader.state_dict()
    states = [mine]
    further = np.random.default_rng(0).integers(0, AHEAD, size.ranks).tolist()
    for rank in range(1, size.ranks):
        other = json.loads(json.dumps(mine)) | {"rank": rank}
        del other["check"]
        for lane in other["open"]["0"]["lanes"] or ():
            lane[0], lane[8] = rank, lane[8] + further[rank]
        states.append(seal(other))
    return states


def main(arguments: Sequence[str] | None = None) -> list[Figure]:
    """Runs the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_form(parser, "64 ranks, 6,000 splits, 3 million rows")
    for name in ("ranks", "splits", "rows", "batch", "row-bytes"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--drawn", type=int, default=8, help="ranks that deliver all of their batches")
    parser.add_argument("--steps", type=int, default=16, help="of the end of the epoch that ranks agree on")
    parser.add_argument("--step", type=float, default=0.5, help="seconds of one")
    for each in fields(Storage):
        parser.add_argument(f"--store-{each.name}", type=type(each.default), default=each.default)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    chosen = parser.parse_args(arguments)
    size = chosen.form.pick(Size(), QUICK)
    given = {each.name: getattr(chosen, each.name) for each in fields(Size)}
    size = replace(size, **{name: value for name, value in given.items() if value is not None})
    model = Storage(**{each.name: getattr(chosen, f"store_{each.name}") for each in fields(Storage)})
    job, start = Job.of(size)
    parts: dict[str, Callable[[], list[Figure]]] = {
        "deal": lambda: deal(job, start, chosen.drawn),
        "read": lambda: read(job, model),
        "talk": lambda: talk(job, chosen.steps, chosen.step),
        "resume": lambda: resume(job),
    }
    figures = []
    for name in chosen.only:
        figures += (found := parts[name]())
        show(f"{name}: {size.ranks:,} ranks, {size.splits:,} splits, {size.rows:,} rows", found)
    write("scale", figures)
    return figures


if __name__ == "__main__":
    main()
