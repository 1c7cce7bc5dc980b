"""Frequent rows in memory (RecShard) and on every rank (FlexShard) against whole tables, ids being drawn by Zipf's law
of exponent 1.2: ``python -m benchmarks.recommendation_hot [--form]``.

Two ranks on this machine, whose links and slow tier are emulated. A step of a rank takes its CPU seconds, and as long
as the bytes that it sends or receives (the more of both) take at ``LINK``, and those that it reads from and writes to
its file at ``SLOW``; the step is that of the slowest rank. Nothing sleeps: wall time of processes that share cores says
nothing of links. All contenders step in turns, in the same processes. A step is lookup, a loss, gradients, update.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count as count_from
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.harness import (
    Figure,
    Form,
    add_form,
    at_least,
    at_most,
    environment,
    finish,
    interleaved,
    ratios,
    reported,
    timed,
)  # fmt: skip
from cedar import JaggedTensor
from cedar.nn import DedupEmbeddings, Feature, Frequency
from cedar.trainers.common.group import Group
from cedar.trainers.common.launch import connected
from cedar.trainers.dlrm.inputs import Inputs, read_batch
from cedar.trainers.dlrm.options import Sharding
from cedar.trainers.dlrm.sharding import FeatureStatistics
from cedar.trainers.dlrm.tiers import TieredTables

RANKS, SKEW, SAMPLE = 2, 1.2, 32
LINK, SLOW = 125e6, 20e6  # bytes a second: 1 Gbit/s; an SSD that reads 150,000 rows of 128 bytes, each from a page
HOW: Literal["emulated"] = "emulated"
BUDGETS = {"2%": 0.02, "10%": 0.1, "30%": 0.3, "all": 1.0}


class Linked(Group):
    """Counts the bytes of each message on the busier way of this rank's link."""

    bytes = 0

    def gather(self, row: torch.Tensor, phase: str) -> torch.Tensor:
        self.bytes += (self.size - 1) * row.nbytes
        return super().gather(row, phase)

    def exchange(self, rows: torch.Tensor, send: Sequence[int], receive: Sequence[int], phase: str) -> torch.Tensor:
        away = max(sum(send) - send[self.rank], sum(receive) - receive[self.rank])
        self.bytes += away * rows[:1].numel() * rows.element_size()
        return super().exchange(rows, send, receive, phase)


class SlowFile:
    """Counts the rows that tables look up in their file, and all bytes that they read and write there."""

    def __init__(self) -> None:
        self.rows = self.bytes = 0
        read, written = TieredTables._from_slow, TieredTables._to_slow

        def reading(tables: TieredTables, kind: str, rows: torch.Tensor) -> torch.Tensor:
            found = read(tables, kind, rows)
            self.rows, self.bytes = self.rows + len(rows) * (kind == "weight"), self.bytes + found.nbytes
            return found

        def writing(tables: TieredTables, kind: str, rows: torch.Tensor, values: torch.Tensor) -> None:
            written(tables, kind, rows, values)
            self.bytes += values.nbytes

        setattr(TieredTables, "_from_slow", reading)  # noqa: B010 - a method of all tables
        setattr(TieredTables, "_to_slow", writing)  # noqa: B010


def draws(features: Sequence[Feature], lengths: Sequence[int], rows: int, seed: int) -> dict[str, JaggedTensor]:
    """A rank's rows: lists of ids whose frequencies follow Zipf's law, frequent ones anywhere in their tables."""
    rng, found = np.random.default_rng(seed), {}
    for at, (feature, length) in enumerate(zip(features, lengths, strict=True)):
        chance = np.cumsum(np.arange(1, feature.rows + 1) ** -SKEW)
        order = np.random.default_rng(at).permutation(feature.rows)
        ids = order[np.searchsorted(chance / chance[-1], rng.random(rows * length))]
        found[feature.column] = JaggedTensor(torch.from_numpy(ids), torch.arange(rows + 1) * length)
    return found


def step(made: DedupEmbeddings, inputs: Inputs) -> None:
    """One step of a model that is a sum of squares."""
    torch.autograd.backward(torch.stack([rows.square().mean() for rows in made.rows(inputs)]).sum())
    made.step()


def steps(
    contenders: Mapping[str, DedupEmbeddings], batches: Sequence[Inputs], group: Linked, count: int
) -> dict[str, list[dict[str, float]]]:
    """Of each step of this rank: seconds of CPU, link and file, megabytes sent, and rows looked up in the file."""
    file = SlowFile()

    def one(made: DedupEmbeddings, number: Iterator[int]) -> dict[str, float]:
        inputs = batches[next(number) % len(batches)]
        group.meter.take()
        group.bytes = file.rows = file.bytes = 0
        cpu = timed(partial(step, made, inputs)).cpu
        found = {"cpu": cpu, "link": group.bytes / LINK, "file": file.bytes / SLOW}
        sent = sum(group.meter.take()[0].values()) / 1e6
        # rows are read once to be looked up, and once to be updated
        return found | {"seconds": sum(found.values()), "sent": sent, "rows": file.rows / 2}

    return interleaved({name: partial(one, made, count_from()) for name, made in contenders.items()}, count)


def looked_at(features: Sequence[Feature], lengths: Sequence[int], rows: int, group: Group) -> dict[str, Frequency]:
    """What the planner would see of some batches, which are not those that are trained on."""
    seen = [[draws(features, lengths, rows, at * group.size + r) for r in range(group.size)] for at in range(SAMPLE)]
    return {f.home: Frequency.of([[one[f.column].values for one in ranks] for ranks in seen]) for f in features}


def trained_on(features: Sequence[Feature], lengths: Sequence[int], rows: int, group: Group) -> list[Inputs]:
    """Batches of this rank."""
    seeds = [(SAMPLE + at) * group.size + group.rank for at in range(3)]
    return [read_batch(draws(features, lengths, rows, seed), features, [], None) for seed in seeds]


def tiers(group: Linked, form: Form, folder: str) -> dict[str, Any]:
    """Memory that holds tables whole, or the frequent rows of all."""
    sizes = [rows // form.pick(1, 5, 50) for rows in (200_000, 100_000, 50_000, 20_000) * 2]
    features = [Feature(f"t{at}", rows) for at, rows in enumerate(sizes)]
    lengths, width, rows = (20, 10, 5, 2, 2, 5, 10, 20), 32, 512
    found = looked_at(features, lengths, rows, group)
    flat = {}  # each row of a table is as frequent as the next: tables are in memory whole, but for the last
    for feature in features:
        touched = found[feature.home].cold(0, feature.rows)
        mean = torch.full((feature.rows,), touched / feature.rows, dtype=torch.float64)
        flat[feature.home] = Frequency(torch.arange(feature.rows), mean, mean, mean)
    costs = {
        f.home: FeatureStatistics(f.home, float(found[f.home].lookups.sum()), found[f.home].cold(0, f.rows)).cost(width)
        for f in features
    }
    total = sum(sizes) * (width * 4 + 4) // group.size
    contenders = {
        name: DedupEmbeddings(
            features, width, group, costs=costs, frequencies=known, fast=1 + int(total * share), slow=folder
        )
        for name, known, share in (("whole tables", flat, 0.1), *((n, found, part) for n, part in BUDGETS.items()))
    }
    measured = steps(contenders, trained_on(features, lengths, rows, group), group, form.pick(9, 3, 1))
    far = {name: made.plan.far[group.rank] for name, made in contenders.items()}
    return {"measured": measured, "far": far, "notes": contenders["10%"].notes}


def copies(group: Linked, form: Form) -> dict[str, Any]:
    """Histories that stay sequences: tables whole, by rows, by columns, and by rows with frequent ones on each rank."""
    features = [Feature(f"h{at}", form.pick(200_000, 40_000, 4000), pooling="attention") for at in range(4)]
    shape = (50,) * 4, form.pick(512, 128, 16)
    found = looked_at(features, *shape, group)
    hows: tuple[Sharding, ...] = ("tables", "rows", "columns", "hot")
    contenders: dict[str, DedupEmbeddings] = {
        how: DedupEmbeddings(features, 64, group, rule="sgd", sharding=how, frequencies=found) for how in hows
    }
    measured = steps(contenders, trained_on(features, *shape, group), group, form.pick(9, 3, 1))
    return {"measured": measured, "sent": contenders["hot"].plan.sent, "notes": contenders["hot"].notes}


def on_ranks(part: str, form: Form) -> list[dict[str, Any]]:
    """What each rank found."""
    with tempfile.TemporaryDirectory() as folder:
        job = json.dumps([part, form, folder])
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        command = [sys.executable, *ranks, "-m", "benchmarks.recommendation_hot", "--job", job]
        subprocess.run(command, env=environment(), check=True)
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)]


def _slowest(found: Sequence[Any], name: str, key: str = "seconds") -> list[float]:
    """Of the ranks, round by round."""
    return [max(each) for each in zip(*([s[key] for s in one["measured"][name]] for one in found), strict=True)]


def _speed(found: Sequence[Any], slow: str, fast: str) -> tuple[list[float], str]:
    told = [
        " + ".join(f"{1000 * statistics.median(_slowest(found, name, key)):.0f}" for key in ("cpu", "link", "file"))
        for name in (slow, fast)
    ]
    sent = [sum(statistics.fmean(s["sent"] for s in one["measured"][name]) for one in found) for name in (slow, fast)]
    note = f"ms of CPU + link + file: {told[0]} to {told[1]}; {sent[0]:.1f} to {sent[1]:.1f} MB between ranks"
    return ratios(*(_slowest(found, name) for name in (slow, fast))), note


def figures(form: Form) -> list[Figure]:
    """All of them."""
    made, found = [], on_ranks("tiers", form)
    speed, note = _speed(found, "whole tables", "10%")
    made.append(
        at_least("step, 10% in memory: frequent rows against whole tables", 1.5, speed, "x", how=HOW, note=note)
    )
    for name in ("2%", "10%", "30%"):
        said = [one["far"][name] for one in found]
        rows = [statistics.fmean(s["rows"] for s in one["measured"][name]) for one in found]
        off = [100 * abs(a / b - 1) for a, b in zip(said, rows, strict=True)]
        note = f"{sum(said):,.0f} said, {sum(rows):,.0f} touched"
        made.append(
            at_most(f"rows of the file in a step, {name} in memory: the plan is off by", 20, off, "%", note=note)
        )
        # a row is read to be looked up; it and its number are read and written to be updated
        model = 1000 * max(said) * (3 * 32 * 4 + 2 * 4) / SLOW
        took = [1000 * (a - b) for a, b in zip(*(_slowest(found, each) for each in (name, "all")), strict=True)]
        note = f"{model:.0f} ms said"
        made.append(reported(f"what the file adds to a step, {name} in memory", took, "ms", how=HOW, note=note))
    found = on_ranks("copies", form)
    what = "step, sequences: frequent rows on every rank against"
    speed, note = _speed(found, "tables", "hot")
    made.append(at_least(f"{what} whole tables", 1.5, speed, "x", how=HOW, note=note))
    for other in ("rows", "columns"):
        speed, note = _speed(found, other, "hot")
        made.append(reported(f"{what} {other}", speed, "x", how=HOW, note=note))
    sent = sum(statistics.fmean(s["sent"] for s in one["measured"]["hot"]) for one in found)
    said = found[0]["sent"] / 1e6
    note = f"{said:.2f} MB said, {sent:.2f} MB sent"
    made.append(at_most("bytes between ranks: the plan is off by", 10, [100 * abs(said / sent - 1)], "%", note=note))
    return made


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/recommendation_hot.json; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_form(parser, "smaller tables and fewer rounds")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job:
        part, number, folder = json.loads(options.job)
        form = Form(number)
        torch.set_num_threads(1)
        with connected():
            group = Linked()
            told = tiers(group, form, folder) if part == "tiers" else copies(group, form)
            Path(folder, f"{group.rank}.json").write_text(json.dumps(told))
        return 0
    found = figures(options.form)
    return finish("frequent rows", "recommendation_hot", found, options.form)


if __name__ == "__main__":
    sys.exit(main())
