"""The commands on a pipeline or data files, such as ``head``, ``explain``, ``profile``, ``run`` and ``locate``."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import shutil
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import cedar
from cedar import PipelineError
from cedar.cli import tables
from cedar.cli.arguments import count, index, load_data, load_name, load_pipeline, names, on_data, on_pipeline, seconds
from cedar.core.errors import writing
from cedar.core.printable import one_line, printable
from cedar.profile.figures import cut

if TYPE_CHECKING:
    from cedar import Loader, Pipeline
    from cedar.cli.arguments import Adder


_GRACE_SECONDS = 1.0  # seconds after the time limit, in which a loop that gets batches ends by itself
_MAX_TABLE_COLUMNS = 8  # max columns in a table; if there are more, each column is printed as a line


def add(adder: Adder) -> None:
    """Register the commands."""
    examples = ["my_project.data:train", "pipelines.py:train", "pipelines.py:make_train   # a function of no arguments"]
    on_pipeline(adder, "explain", "print what a pipeline does, without running it", explain, examples)

    examples = ["my_project.data:train", "pipelines.py:train --seconds 10 --save train.profile.json"]
    made = on_pipeline(adder, "profile", "measure a pipeline, operator by operator", profile, examples)
    made.add_argument("--seconds", type=seconds, default=2.0, help="how long to measure (default: 2)")
    made.add_argument("--save", metavar="FILE", help="also write the measurements as JSON")

    _add_run(adder)

    examples = [
        "my_project.data:train   # while an image of the machine is built", "pipelines.py:train --save-plan plan.json"
    ]  # fmt: skip
    summary = "warm up a machine: compile kernels, measure it, find a plan"
    made = on_pipeline(adder, "warm", summary, warm, examples)
    made.add_argument("--batches", type=count, default=1, metavar="N", help="how many batches to run (default: 1)")
    _add_executor(made)
    made.add_argument("--save-plan", metavar="FILE", help="write the plan, for loader(plan=cedar.Plan.load(...))")

    examples = ["my_project.data:train state.json 1200 5   # row 5 of batch 1200 of the epoch of that state"]
    made = on_pipeline(adder, "locate", "find which row of which file a trainer got at a step", locate, examples)
    made.add_argument("state", metavar="STATE", help="a file with that rank's loader.state_dict() as JSON")
    made.add_argument("step", type=index, metavar="STEP", help="batch of the epoch, from 0")
    made.add_argument("row", type=index, nargs="?", default=0, metavar="ROW", help="row of the batch (default: 0)")

    examples = ["my_project.data:train state.json clicks/part-3.parquet 1742   # in the epoch of that state"]
    made = on_pipeline(adder, "where", "find the step at which a row of a file is delivered", where, examples)
    made.add_argument("state", metavar="STATE", help="a file with loader.state_dict() as JSON")
    made.add_argument("file", metavar="FILE", help="a file of the pipeline, or the end of its path")
    made.add_argument("row", type=index, metavar="ROW", help="row of the file, from 0")

    made = on_data(adder, "head", "print the first rows", head, " --rows 5")
    made.add_argument("--rows", type=count, default=10, metavar="N", help="how many rows (default: 10)")

    on_data(adder, "schema", "print the names and types of the columns", schema)
    on_data(adder, "count", "print the number of rows, or of batches", lambda it: print(load_data(it.data).count()))
    summary = "print statistics of each column: nulls, range, mean, quantiles"
    on_data(adder, "describe", summary, lambda it: print(load_data(it.data).describe()))

    made = on_data(adder, "inspect", "show rows before and after each operator", inspect, " --rows 8 --out page.html")
    made.add_argument("--rows", type=count, default=4, metavar="N", help="how many rows (default: 4)")
    made.add_argument("--out", metavar="FILE", help="write a page that shows images and sound, instead of text")
    made.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the run (default: 0)")
    made.add_argument("--epoch", type=index, default=0, metavar="E", help="epoch of the run (default: 0)")


def _add_run(adder: Adder) -> None:
    examples = [
        "my_project.data:train",
        "pipelines.py:train --seconds 30 --workers 8",
        "pipelines.py:train --epochs 2 --plan off   # as written, to compare",
        "pipelines.py:train --plan train.plan.json --limit-batches 1000",
        "pipelines.py:train --without late,order --budget cache=1GiB",
        "pipelines.py:clean --write s3://bucket/clean --partition-by day   # run again to continue after a stop",
    ]
    made = on_pipeline(adder, "run", "run a pipeline and report what it did", run, examples)
    made.add_argument("--epochs", type=count, default=1, metavar="N", help="how many epochs (default: 1)")
    made.add_argument("--limit-batches", type=count, metavar="N", help="end each epoch after N batches (or rows)")
    made.add_argument("--seconds", type=seconds, metavar="S", help="end after S seconds")
    _add_executor(made)
    made.add_argument("--plan", default="auto", metavar="PLAN", help="auto, off or a file of plan.save (default: auto)")
    made.add_argument("--rules", default="", metavar="A,B", help="more rewrites: module:function, or file.py:function")
    made.add_argument("--without", default="", metavar="A,B", help="rewrites to leave out, such as late, order, place")
    made.add_argument("--budget", default="", metavar="A=B,...", help="such as cpus=4,memory=2GiB,cache=1GiB")
    made.add_argument("--write", metavar="URL", help="write one epoch to URL; files already written are kept")
    formats = "parquet, arrow, vortex, lance, jsonl or tar (parquet)"
    made.add_argument("--format", metavar="NAME", help=formats)
    made.add_argument("--partition-by", default="", metavar="A,B", help="columns to partition into folders by")
    made.add_argument("--rows-per-file", type=count, metavar="N", help="maximum rows (default: files of 512 MiB)")
    layouts = "of --write: fast to read, small, or pyarrow (fast)"
    made.add_argument("--layout", metavar="NAME", help=layouts)


def _add_executor(made: argparse.ArgumentParser) -> None:
    made.add_argument("--executor", default="auto", metavar="NAME", help="auto, inline, threads, ... (default: auto)")
    made.add_argument("--workers", type=count, metavar="N", help="tasks at once (default: the cores of the machine)")


def explain(chosen: argparse.Namespace) -> None:
    """``cedar explain``."""
    print(load_pipeline(chosen.pipeline).explain())


def profile(chosen: argparse.Namespace) -> None:
    """``cedar profile``."""
    pipeline = load_pipeline(chosen.pipeline)
    with tables.status(f"measuring {chosen.pipeline} for {chosen.seconds:g} s"):
        measured = pipeline.profile(seconds=chosen.seconds)
    tables.show(measured, tables.profile_table)
    if chosen.save is not None:
        measured.save(chosen.save)
        print(f"wrote {chosen.save}")


def locate(chosen: argparse.Namespace) -> None:
    """``cedar locate``."""
    with _loader_of_state(chosen) as loader:
        print(loader.locate(chosen.step, chosen.row))


def where(chosen: argparse.Namespace) -> int:
    """``cedar where``. Exit status 1: the row is in no batch."""
    with _loader_of_state(chosen) as loader:
        steps = loader.where(chosen.file, chosen.row)
        print("\n".join(map(str, steps)) or f"row {chosen.row} of {chosen.file} is in no batch of epoch {loader.epoch}")
    return 0 if steps else 1


@contextlib.contextmanager
def _loader_of_state(chosen: argparse.Namespace) -> Iterator[Loader]:
    """Yield a loader restored from a state file, with the run settings that the state contains."""
    pipeline = load_pipeline(chosen.pipeline)
    try:
        with open(chosen.state, encoding="utf-8") as file:
            state = json.load(file)
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"{chosen.state} cannot be read: {error}", fix="save loader.state_dict() as JSON"
        ) from error
    if isinstance(state, list):
        raise PipelineError(f"{chosen.state} holds a list of states", fix="save the state of one rank")
    own = ("seed", "rank", "world", "split_batches", "steps")
    given = {name: state[name] for name in own if name in state} if isinstance(state, dict) else {}
    if given and state.get("counts"):
        given["counts"] = "exact"
    with pipeline.loader(**given, subgroup=True) as loader:
        loader.load_state_dict(state)
        if isinstance(state, dict) and any(state["skipped"].values()) and not loader.skips:
            raise PipelineError(
                f"{chosen.state} is of a run that skipped rows, but no operator of {chosen.pipeline} skips any",
                fix="give the operators of the pipeline the on_error= of that run",
            )
        if isinstance(state, dict):  # a state saved after an epoch's last batch still refers to this epoch's steps
            loader.set_epoch(state["epoch"])
        yield loader


def run(chosen: argparse.Namespace) -> int:
    """``cedar run``: run until the end, a limit, or Ctrl-C, and always print the report."""
    pipeline = load_pipeline(chosen.pipeline)
    if chosen.write is not None:
        return _write(pipeline, chosen)
    of_files = {
        "--format": chosen.format, "--partition-by": chosen.partition_by, "--rows-per-file": chosen.rows_per_file,
        "--layout": chosen.layout,
    }  # fmt: skip
    if given := [name for name, value in of_files.items() if value]:
        raise PipelineError(f"{given[0]} needs --write", fix="add --write URL")
    options: dict[str, Any] = {
        "executor": chosen.executor, "workers": chosen.workers, "without": names(chosen.without),
        "rules": [load_name(each) for each in names(chosen.rules)], "budget": budget_of(chosen.budget),
    }  # fmt: skip
    plan, interrupted, stop = chosen.plan, False, math.inf
    if plan not in ("auto", "off"):
        plan = cedar.Plan.load(plan, pipeline, cluster=chosen.executor if "://" in chosen.executor else None)
    with pipeline.loader(plan=plan, progress=True, **options) as loader:
        try:
            stop = time.perf_counter() + (chosen.seconds or math.inf)
            with _interrupted_after(chosen.seconds):
                for epoch in range(chosen.epochs):
                    loader.set_epoch(epoch)
                    _take_batches(loader, chosen.limit_batches, stop)
                    if time.perf_counter() >= stop:
                        break
        except KeyboardInterrupt:
            interrupted = time.perf_counter() < stop
        tables.show(loader.report(), tables.report_table)
    return 130 if interrupted else 0


def warm(chosen: argparse.Namespace) -> None:
    """``cedar warm``: compile kernels and measure operators, so that the first run on a machine starts fast."""
    os.environ["CEDAR_KERNELS"] = "wait"  # also wait for kernels that other processes compile
    pipeline = load_pipeline(chosen.pipeline)
    began = time.perf_counter()
    with (
        tables.status(f"taking {chosen.batches} batch(es) of {chosen.pipeline}"),
        pipeline.loader(executor=chosen.executor, workers=chosen.workers) as loader,
    ):
        taken = sum(1 for _ in itertools.islice(loader, chosen.batches))
        plan = loader.plan
    if not taken:
        raise PipelineError(f"{chosen.pipeline} has no batch", fix="use data with at least one batch")
    print(f"{taken} batch(es) in {time.perf_counter() - began:.1f} s; saved compiled kernels and measurements")
    if chosen.save_plan is not None:
        plan.save(chosen.save_plan)
        print(f"wrote {chosen.save_plan}")


def _write(pipeline: Pipeline, chosen: argparse.Namespace) -> int:
    """``cedar run --write``: write the rows. After Ctrl-C, the same command continues the write."""
    others = {
        "--epochs": chosen.epochs != 1, "--limit-batches": chosen.limit_batches, "--seconds": chosen.seconds,
        "--plan": chosen.plan != "auto", "--rules": chosen.rules, "--without": chosen.without,
        "--budget": chosen.budget,
    }  # fmt: skip
    if given := [name for name, value in others.items() if value]:
        raise PipelineError(f"--write always writes one whole epoch with its own plan: omit {given[0]}")
    try:
        written = pipeline.write(
            chosen.write, format=chosen.format or "parquet", partition_by=names(chosen.partition_by),
            rows_per_file=chosen.rows_per_file, executor=chosen.executor, workers=chosen.workers,
            layout=chosen.layout or "fast",
        )  # fmt: skip
    except KeyboardInterrupt:
        print("stopped; run the same command to continue")
        return 130
    print(written)
    return 0


@contextlib.contextmanager
def _interrupted_after(seconds: float | None) -> Iterator[None]:
    """Raise KeyboardInterrupt one second after the time limit, in case a pipeline delivers no batch."""
    if seconds is None:
        yield
        return
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def _take_batches(loader: Loader, limit: int | None, stop: float) -> None:
    """Iterate over the batches of an epoch, up to a number of batches or until the time ``stop``."""
    with contextlib.closing(iter(loader)) as batches:  # type: ignore[type-var]
        for _ in itertools.islice(batches, limit):
            if time.perf_counter() >= stop:
                return


def budget_of(text: str) -> cedar.Budget | None:
    """Parse a budget such as ``cpus=4,memory=2GiB``; return None for an empty string."""
    pairs = dict(each.partition("=")[::2] for each in names(text))
    unknown = sorted(set(pairs) - {"cpus", "memory", "cache", "cluster", "layout"})
    if unknown or not all(pairs.values()):
        raise PipelineError(f"--budget {text}: {', '.join(unknown) or 'a value is missing'}", fix="such as cpus=4")
    cpus = pairs.pop("cpus", "")
    return cedar.Budget(cpus=int(cpus) if cpus.isdecimal() else cpus or None, **pairs) if text else None  # type: ignore[arg-type]


def head(chosen: argparse.Namespace) -> None:
    """``cedar head``: print a table, or one line per column if there are many."""
    import polars as pl

    frame = load_data(chosen.data).head(chosen.rows)
    width = shutil.get_terminal_size((120, 0)).columns
    if frame.width > _MAX_TABLE_COLUMNS:
        lines = frame.glimpse(max_items_per_column=chosen.rows, return_type="string").splitlines()
        print(printable("\n".join(cut(line, width) for line in lines)))
        return
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=width, tbl_hide_dataframe_shape=True):
        print(printable(str(frame)) if frame.width else "no rows")


def schema(chosen: argparse.Namespace) -> None:
    """``cedar schema``: print one column per line."""
    kinds = {one_line(name): str(kind) for name, kind in load_data(chosen.data).schema.items()}
    width = max(map(len, kinds), default=0)
    print(printable("\n".join(f"{name:<{width}}  {kind}" for name, kind in kinds.items())))


def inspect(chosen: argparse.Namespace) -> None:
    """``cedar inspect``."""
    pipeline = load_data(chosen.data)
    with tables.status(f"taking {chosen.rows} row(s) through {chosen.data}"):
        sheet = pipeline.inspect(chosen.rows, seed=chosen.seed, epoch=chosen.epoch)
    if chosen.out is None:
        print(sheet)
        return
    with writing(chosen.out):
        sheet.html(chosen.out)
    print(f"wrote {chosen.out}")
