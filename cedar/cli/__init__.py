"""The command ``cedar``: look at pipelines, measure them, run them, make data."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence

import cedar
from cedar.cli import bench, commands, data, service, simulate, top, traces, train
from cedar.cli.target import TARGET, load_pipeline
from cedar.core.errors import CedarError

__all__ = ["load_pipeline", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. What is wrong is said on stderr, without a traceback."""
    parser = _parser()
    chosen, rest = parser.parse_known_args(arguments)
    if "changes" in chosen:  # KEY=VALUE may stand on both sides of an option; argparse takes only the first run of them
        chosen.changes += [each for each in rest if "=" in each and not each.startswith("-")]
        rest = [each for each in rest if each not in chosen.changes]
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if "call" not in chosen:
        parser.print_help()
        return 0
    try:
        return int(chosen.call(chosen) or 0)
    except CedarError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `cedar explain ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("cedar", description="Input pipelines for training jobs.")
    parser.add_argument("--version", action="version", version=f"cedar {cedar.__version__}")
    adder = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_explain(adder)
    _add_inspect(adder)
    _add_profile(adder)
    _add_run(adder)
    _add_warm(adder)
    _add_locate(adder)
    _add_where(adder)
    top.add(adder)
    traces.add(adder)
    data.add(adder)
    train.add(adder)
    simulate.add(adder)
    service.add(adder)
    bench.add(adder)
    return parser


def _command(
    adder: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    what: str,
    call: Callable[[argparse.Namespace], int | None],
    examples: Sequence[str],
) -> argparse.ArgumentParser:
    """A command on a pipeline, with examples below its help."""
    command = adder.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog="examples:\n" + "\n".join(f"  cedar {name} {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("pipeline", metavar="PIPELINE", help=TARGET)
    command.set_defaults(call=call)
    return command


def _add_explain(adder: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _command(
        adder,
        "explain",
        "print what a pipeline does, without running it",
        commands.explain,
        ["my_project.data:train", "pipelines.py:train", "pipelines.py:make_train   # a function of no arguments"],
    )


def _add_inspect(adder: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    inspect = _command(
        adder,
        "inspect",
        "show rows before and after each operator",
        commands.inspect,
        ["my_project.data:train", "pipelines.py:train --rows 8 --out page.html   # images and sound, too"],
    )
    inspect.add_argument("--rows", type=_count, default=4, metavar="N", help="how many rows (default: 4)")
    inspect.add_argument("--out", metavar="FILE", help="write a page, in place of text")
    inspect.add_argument("--seed", type=int, default=0, metavar="S", help="of the run (default: 0)")
    inspect.add_argument("--epoch", type=_index, default=0, metavar="E", help="of the run (default: 0)")


def _add_profile(adder: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    profile = _command(
        adder,
        "profile",
        "measure a pipeline, operator by operator",
        commands.profile,
        ["my_project.data:train", "pipelines.py:train --seconds 10 --save train.profile.json"],
    )
    profile.add_argument("--seconds", type=_seconds, default=2.0, help="how long to measure (default: 2)")
    profile.add_argument("--save", metavar="FILE", help="write the figures as JSON, too")


def _add_locate(adder: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    locate = _command(
        adder,
        "locate",
        "say which row of which file a trainer got at a step",
        commands.locate,
        ["my_project.data:train state.json 1200 5   # row 5 of batch 1200 of the epoch of that state"],
    )
    locate.add_argument("state", metavar="STATE", help="a file with loader.state_dict() as JSON, of the rank at issue")
    locate.add_argument("step", type=_index, metavar="STEP", help="batch of the epoch, from 0")
    locate.add_argument("row", type=_index, nargs="?", default=0, metavar="ROW", help="row of the batch (default: 0)")


def _add_where(adder: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    where = _command(
        adder,
        "where",
        "say at which step a row of a file is delivered",
        commands.where,
        ["my_project.data:train state.json clicks/part-3.parquet 1742   # in the epoch of that state"],
    )
    where.add_argument("state", metavar="STATE", help="a file with loader.state_dict() as JSON")
    where.add_argument("file", metavar="FILE", help="a file of the pipeline, or how its path ends")
    where.add_argument("row", type=_index, metavar="ROW", help="row of the file, from 0")


def _index(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _add_run(adder: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = _command(
        adder,
        "run",
        "run a pipeline and report what it did",
        commands.run,
        [
            "my_project.data:train",
            "pipelines.py:train --seconds 30 --workers 8",
            "pipelines.py:train --epochs 2 --plan off   # as written, to compare",
            "pipelines.py:train --plan train.plan.json --limit-batches 1000",
            "pipelines.py:train --without late,order --budget cache=1GiB",
            "pipelines.py:clean --write s3://bucket/clean --partition-by day   # again, and it goes on where it was",
        ],
    )
    run.add_argument("--epochs", type=_count, default=1, metavar="N", help="how many epochs (default: 1)")
    run.add_argument("--limit-batches", type=_count, metavar="N", help="end each epoch after N batches (or rows)")
    run.add_argument("--seconds", type=_seconds, metavar="S", help="end after S seconds")
    run.add_argument("--executor", default="auto", metavar="NAME", help="auto, inline, threads, ... (default: auto)")
    run.add_argument("--workers", type=_count, metavar="N", help="tasks at once (default: the cores of the machine)")
    run.add_argument("--plan", default="auto", metavar="PLAN", help="auto, off, or a file of plan.save (default: auto)")
    run.add_argument("--rules", default="", metavar="A,B", help="more rewrites: module:function, or file.py:function")
    run.add_argument("--without", default="", metavar="A,B", help="rewrites to leave out, such as late, order, place")
    run.add_argument("--budget", default="", metavar="A=B,...", help="such as cpus=4,memory=2GiB,cache=1GiB")
    run.add_argument("--write", metavar="URL", help="write one epoch below URL; what was written before stays")
    run.add_argument(
        "--format", default="parquet", metavar="NAME", help="parquet, arrow, vortex, jsonl or tar (parquet)"
    )
    run.add_argument("--partition-by", default="", metavar="A,B", help="columns that become folders")
    run.add_argument("--rows-per-file", type=_count, metavar="N", help="at most (default: files of 512 MiB)")
    run.add_argument(
        "--layout", default="fast", metavar="NAME", help="of --write: fast to read, small, or pyarrow (fast)"
    )


def _add_warm(adder: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    warm = _command(
        adder,
        "warm",
        "do what a first run on a machine does: compile kernels, measure the machine, find a plan",
        commands.warm,
        [
            "my_project.data:train   # while an image of the machine is built",
            "pipelines.py:train --save-plan plan.json",
        ],
    )
    warm.add_argument("--batches", type=_count, default=1, metavar="N", help="how many to take (default: 1)")
    warm.add_argument("--executor", default="auto", metavar="NAME", help="auto, inline, threads, ... (default: auto)")
    warm.add_argument("--workers", type=_count, metavar="N", help="tasks at once (default: the cores of the machine)")
    warm.add_argument("--save-plan", metavar="FILE", help="write the plan, for loader(plan=cedar.Plan.load(...))")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return number
