"""``cedar train resilient``."""

from __future__ import annotations

import argparse
import os
import sys

from cedar.errors import CedarError
from cedar.trainers.common import config
from cedar.trainers.resilient.options import Options

REPORT, PLOT = "report.json", "throughput.png"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("config", metavar="CONFIG", help="a TOML file; see docs/resilient.md")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings in place of the file's: run.steps=50")
    parser.add_argument("--stages", type=int, default=2, metavar="N", help="of the pipeline (default: 2)")
    parser.add_argument("--replicas", type=int, default=2, metavar="N", help="workers of each stage (default: 2)")
    parser.add_argument("--machines", type=int, default=None, metavar="N", help="supervisors to wait for (default: 1)")
    parser.add_argument("--listen", default=None, metavar="HOST:PORT", help="where the others join (default: any port)")
    parser.add_argument("--join", default=None, metavar="HOST:PORT", help="join a run that goes on there")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in run.folder")
    parser.add_argument("--chaos", default="", metavar="WHAT", help="fail on purpose: kill=2@step40, rejoin@step80")


def main(chosen: argparse.Namespace) -> int:
    """Supervise the workers of this machine until the run is over; under torchrun, one process on each machine.

    Raises:
        CedarError: the configuration is wrong, or the run could not go on.
    """
    options = config.load(chosen.config, Options, chosen.changes)
    from cedar.trainers.resilient import report
    from cedar.trainers.resilient.pipeline import Workers
    from cedar.trainers.resilient.text import text_pipeline

    machines, listen, joins = chosen.machines or 1, chosen.listen, chosen.join
    if "RANK" in os.environ and "MASTER_ADDR" in os.environ:  # torchrun starts supervisors; its store is not ours
        machines = chosen.machines or int(os.environ.get("WORLD_SIZE", "1"))
        address = f"{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT']) + 1}"
        listen, joins = (listen or address, joins) if os.environ["RANK"] == "0" else (None, joins or address)
    group = Workers(chosen.replicas, machines, _address(listen) if listen else ("127.0.0.1", 0))
    pipeline = text_pipeline(options, chosen.stages, group)
    if joins:
        pipeline.join(*_address(joins))
        return 0
    record = pipeline.train(resume=chosen.resume, chaos=chosen.chaos)
    path = os.path.join(options.run.folder, REPORT)
    record.save(path)
    report.show(record)
    try:
        report.plot(record, os.path.join(options.run.folder, PLOT))
    except CedarError as error:
        sys.stderr.write(f"{error}\n")
    sys.stdout.write(f"{path}\n")
    return 0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise CedarError(f"{text!r} is no address", fix="write HOST:PORT")
    return host, int(port)
