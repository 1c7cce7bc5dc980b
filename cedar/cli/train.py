"""``cedar train`` and ``cedar simulate``: read a configuration, train or predict how a model trains, print results."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cedar.cli.arguments import command, count
from cedar.cli.tables import table
from cedar.core.errors import CedarError
from cedar.core.packages import library
from cedar.core.process import cores, find_rank
from cedar.simulate import forecast
from cedar.trainers.common import config, launch
from cedar.trainers.common.files import PLOT, read_lines

if TYPE_CHECKING:
    from cedar.cli.arguments import Adder


TRAINERS = {
    "dlrm": "a recommendation model on deduplicated features",
    "moe": "a mixture of experts with adaptive replicas",
    "resilient": "a pipeline-parallel model that survives worker failures",
}
REPORT, THROUGHPUT = "report.json", "throughput.png"
_OPTIONS = "cedar.trainers.{}.options"


def add(adder: Adder) -> None:
    """Register the commands."""
    trainers = adder.add_parser("train", help="train a model: " + ", ".join(TRAINERS), description="Train a model.")
    kinds = trainers.add_subparsers(title="trainers", metavar="TRAINER", required=True)
    for name, summary in TRAINERS.items():
        made = command(kinds, name, summary, partial(train, name))
        made.add_argument(
            "config", metavar="CONFIG", help=f"a TOML file; python -m pydoc {_OPTIONS.format(name)} lists settings"
        )
        made.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="overrides of the file: run.steps=50")
        made.add_argument("--resume", action="store_true", help="continue from the newest checkpoint in run.folder")
        if name == "resilient":
            _add_grid(made)
        else:
            made.epilog = f"on several ranks: torchrun --nproc-per-node N -m cedar train {name} CONFIG"

    summary = "simulate a model on a cluster: steps, throughput under failures"
    about = "Simulate a pipeline-parallel model on a cluster. All figures are simulated."
    made = command(adder, "simulate", summary, simulate, about=about)
    made.add_argument("config", metavar="FILE", help="a TOML file; python -m pydoc cedar.simulate.job lists settings")
    made.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="overrides of settings in the file: run.hours=2")
    made.add_argument("--against", metavar="REPORT", help="report.json of a run, to compare the simulation with")
    made.add_argument("--json", action="store_true", help="print JSON")


def _add_grid(made: argparse.ArgumentParser) -> None:
    made.add_argument("--stages", type=count, default=2, metavar="N", help="number of pipeline stages (default: 2)")
    made.add_argument("--replicas", type=count, default=2, metavar="N", help="workers of each stage (default: 2)")
    made.add_argument("--machines", type=count, default=None, metavar="N", help="supervisors to wait for (default: 1)")
    listen = "address of this machine at which others join, not 0.0.0.0 or :: (default: any port)"
    made.add_argument("--listen", default=None, metavar="HOST:PORT", help=listen)
    made.add_argument("--join", default=None, metavar="HOST:PORT", help="join the run at this address")
    made.add_argument("--chaos", default="", metavar="WHAT", help="inject failures: kill=2@step40, rejoin@step80")


def train(name: str, chosen: argparse.Namespace) -> int:
    """Train the model of a configuration."""
    library("torch", "torch", "cedar train")
    options = config.load(chosen.config, import_module(_OPTIONS.format(name)).Options, chosen.changes)
    if getattr(options.data, "pipeline", "") and os.getcwd() not in sys.path:  # as `python -m` does
        sys.path.insert(0, os.getcwd())
    return _supervise(chosen, options) if name == "resilient" else _rank(name, chosen, options)


def _rank(name: str, chosen: argparse.Namespace, options: Any) -> int:
    """Train as the only rank, or as one of the ranks that torchrun started."""
    import torch

    from cedar.trainers.common.compute import device_of
    from cedar.trainers.common.run import run

    trainer, metrics = (import_module(f"cedar.trainers.{name}.{part}") for part in ("trainer", "metrics"))
    with launch.connected(device_of(options.run.device).type) as here:
        torch.set_num_threads(options.run.threads or max(1, cores() // here))
        path = run(trainer.Trainer, options, resume=chosen.resume)
        if find_rank(None, None, False, None).rank == 0:
            from rich.console import Console

            console = Console()
            if lines := read_lines(path):
                console.print(metrics.table(lines))
            for wrote in (path, os.path.join(options.run.folder, PLOT)):
                if os.path.exists(wrote):
                    console.print(f"wrote {wrote}", highlight=False, soft_wrap=True)
    return 0


def _supervise(chosen: argparse.Namespace, options: Any) -> int:
    """Supervise this machine's workers until the run is over. With torchrun, each rank is a machine's supervisor."""
    from cedar.trainers.resilient import text
    from cedar.trainers.resilient.pipeline import Workers

    machines, listen, joins = chosen.machines or 1, chosen.listen, chosen.join
    found = find_rank(None, None, False, None)
    if found.world > 1 and (not (listen or joins) or "MASTER_ADDR" in os.environ):  # each rank is a supervisor
        machines = chosen.machines or found.world
        host, port = launch.meeting_place()
        address = f"{host}:{port + 1}"
        listen, joins = (listen or address, joins) if found.rank == 0 else (None, joins or address)
    group = Workers(chosen.replicas, machines, _address(listen) if listen else ("127.0.0.1", 0))
    pipeline = text.text_pipeline(options, chosen.stages, group)
    if joins:
        pipeline.join(*_address(joins))
        return 0
    record = pipeline.train(resume=chosen.resume, chaos=chosen.chaos)
    path = os.path.join(options.run.folder, REPORT)
    record.save(path)
    text.show(record)
    try:
        text.plot(record, os.path.join(options.run.folder, THROUGHPUT))
    except CedarError as error:
        sys.stderr.write(f"{error}\n")
    sys.stdout.write(f"{path}\n")
    return 0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise CedarError(f"{text!r} is not an address", fix="write HOST:PORT")
    return host, int(port)


def simulate(chosen: argparse.Namespace) -> int:
    """``cedar simulate``."""
    found = forecast(chosen.config, chosen.changes, chosen.against)
    if chosen.json:
        print(json.dumps(asdict(found), indent=1, default=sorted))
        return 0
    from rich.console import Console

    console = Console()
    for title, header, rows in found.tables():
        console.print(table(header, rows, title=title))
    return 0
