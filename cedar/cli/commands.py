"""What each command does."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import cedar
from cedar import PipelineError
from cedar.cli import tables
from cedar.cli.target import load_name, load_pipeline

if TYPE_CHECKING:
    from cedar import Loader, Pipeline

_REDRAW_SECONDS = 0.2


def explain(chosen: argparse.Namespace) -> None:
    """``cedar explain``."""
    print(load_pipeline(chosen.pipeline).explain())


def profile(chosen: argparse.Namespace) -> None:
    """``cedar profile``."""
    pipeline = load_pipeline(chosen.pipeline)
    with tables.status(f"measuring {chosen.pipeline} for {chosen.seconds:g} s"):
        found = pipeline.profile(seconds=chosen.seconds)
    tables.show(found, tables.profile_table)
    if chosen.save is not None:
        found.save(chosen.save)
        print(f"wrote {chosen.save}")


def inspect(chosen: argparse.Namespace) -> None:
    """``cedar inspect``."""
    pipeline = load_pipeline(chosen.pipeline)
    with tables.status(f"taking {chosen.rows} row(s) through {chosen.pipeline}"):
        sheet = pipeline.inspect(chosen.rows, seed=chosen.seed, epoch=chosen.epoch)
    if chosen.out is None:
        print(sheet)
        return
    try:
        sheet.html(chosen.out)
    except OSError as error:
        raise PipelineError(f"{chosen.out} cannot be written: {error}") from error
    print(f"wrote {chosen.out}")


def locate(chosen: argparse.Namespace) -> None:
    """``cedar locate``."""
    with _of_state(chosen) as loader:
        print(loader.locate(chosen.step, chosen.row))


def where(chosen: argparse.Namespace) -> int:
    """``cedar where``; the exit status is 1 where the row is in no batch."""
    with _of_state(chosen) as loader:
        found = loader.where(chosen.file, chosen.row)
        print("\n".join(map(str, found)) or f"row {chosen.row} of {chosen.file} is in no batch of epoch {loader.epoch}")
    return 0 if found else 1


@contextlib.contextmanager
def _of_state(chosen: argparse.Namespace) -> Iterator[Loader]:
    """The loader that a state is of: what it says of its run is taken from it."""
    pipeline = load_pipeline(chosen.pipeline)
    try:
        with open(chosen.state, encoding="utf-8") as file:
            state = json.load(file)
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"{chosen.state} cannot be read: {error}", fix="save loader.state_dict() as JSON"
        ) from error
    names = ("seed", "rank", "world", "split_batches", "steps")
    given = {name: state[name] for name in names if name in state} if isinstance(state, dict) else {}
    with pipeline.loader(**given, subgroup=True) as loader:
        loader.load_state_dict(state)
        yield loader


def run(chosen: argparse.Namespace) -> int:
    """``cedar run``: until the end, the limit, the time, or Ctrl-C; the report comes in any case."""
    pipeline = load_pipeline(chosen.pipeline)
    if chosen.write is not None:
        return _written(pipeline, chosen)
    stop = time.perf_counter() + chosen.seconds if chosen.seconds is not None else None
    options: dict[str, Any] = {"executor": chosen.executor, "workers": chosen.workers}
    options |= {
        "rules": [load_name(each) for each in _listed(chosen.rules)],
        "without": _listed(chosen.without),
        "budget": budget_of(chosen.budget),
    }
    interrupted = False
    with pipeline.loader(plan=_plan(chosen.plan, pipeline, chosen.executor), **options) as loader:
        try:
            with tables.status(chosen.pipeline) as say:
                for epoch in range(chosen.epochs):
                    loader.set_epoch(epoch)
                    for _ in _until(loader, chosen.limit_batches, stop, lambda text: say(f"{chosen.pipeline}: {text}")):
                        pass
                    if stop is not None and time.perf_counter() >= stop:
                        break
        except KeyboardInterrupt:
            interrupted = True
        tables.show(loader.report(), tables.report_table)
    return 130 if interrupted else 0


def warm(chosen: argparse.Namespace) -> None:
    """``cedar warm``: what a first run on a machine does for all later ones."""
    os.environ["CEDAR_KERNELS"] = "wait"  # those of other processes are compiled by then, too
    pipeline = load_pipeline(chosen.pipeline)
    began = time.perf_counter()
    with (
        tables.status(f"taking {chosen.batches} batch(es) of {chosen.pipeline}"),
        pipeline.loader(executor=chosen.executor, workers=chosen.workers) as loader,
    ):
        taken = sum(1 for _ in itertools.islice(loader, chosen.batches))
        plan = loader.plan
    if not taken:
        raise PipelineError(f"{chosen.pipeline} has no batch", fix="give it data on which its kernels run")
    print(
        f"{taken} batch(es) in {time.perf_counter() - began:.1f} s; compiled kernels and the machine's figures are kept"
    )
    if chosen.save_plan is not None:
        plan.save(chosen.save_plan)
        print(f"wrote {chosen.save_plan}")


def _written(pipeline: Pipeline, chosen: argparse.Namespace) -> int:
    """``cedar run --write``: a job, which Ctrl-C ends and the same command goes on with."""
    others = {
        "--epochs": chosen.epochs != 1, "--limit-batches": chosen.limit_batches, "--seconds": chosen.seconds,
        "--plan": chosen.plan != "auto", "--rules": chosen.rules, "--without": chosen.without,
        "--budget": chosen.budget,
    }  # fmt: skip
    if given := [name for name, value in others.items() if value]:
        raise PipelineError(f"--write writes one epoch, whole, by the plan that it finds: leave {given[0]} out")
    try:
        written = pipeline.write(
            chosen.write, format=chosen.format, partition_by=_listed(chosen.partition_by),
            rows_per_file=chosen.rows_per_file, executor=chosen.executor, workers=chosen.workers, layout=chosen.layout,
        )  # fmt: skip
    except KeyboardInterrupt:
        print("stopped; the same command goes on where this was")
        return 130
    print(written)
    return 0


def _until(loader: Loader, limit: int | None, stop: float | None, say: Any) -> Iterator[Any]:
    """An epoch's batches, as far as they are asked for, with a line that says how it goes."""
    drawn, began = 0.0, time.perf_counter()
    with contextlib.closing(iter(loader)) as batches:  # type: ignore[type-var]
        for batch in itertools.islice(batches, limit):
            yield batch
            now = time.perf_counter()
            if now - drawn > _REDRAW_SECONDS:
                drawn = now
                report, (done, total) = loader.report(), loader.position()
                share = (
                    f"{done / total:.0%}, {(now - began) / done * (total - done):,.0f} s left, "
                    if total and done
                    else ""
                )
                say(
                    f"epoch {report.epoch}: {report.rows:,} rows, {share}{report.rows_per_second:,.0f} rows/s, "
                    f"bottleneck: {report.bottleneck}"
                )
            if stop is not None and now >= stop:
                return


def _listed(text: str) -> list[str]:
    return [each for each in text.split(",") if each]


def budget_of(text: str) -> cedar.Budget | None:
    """The budget that ``cpus=4,memory=2GiB`` names; None where nothing is named.

    Raises:
        PipelineError: a name or a figure that is none.
    """
    pairs = dict(each.partition("=")[::2] for each in _listed(text))
    unknown = sorted(set(pairs) - {"cpus", "memory", "cache", "cluster", "layout"})
    if unknown or not all(pairs.values()):
        raise PipelineError(f"--budget {text}: {', '.join(unknown) or 'a figure is missing'}", fix="such as cpus=4")
    cpus = pairs.pop("cpus", "")
    return cedar.Budget(cpus=int(cpus) if cpus.isdecimal() else cpus or None, **pairs) if text else None  # type: ignore[arg-type]


def _plan(text: str, pipeline: Pipeline, executor: str) -> Any:
    """What the loader takes: auto, off, or the plan in a file, whose cluster is the one that is run on."""
    cluster = executor if "://" in executor else None
    return text if text in ("auto", "off") else cedar.Plan.load(text, pipeline, cluster=cluster)
