"""What the commands of those trainers share whose ranks all do the same."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from cedar.trainers.common import launch
from cedar.trainers.common.metrics import read_lines


def configure(parser: argparse.ArgumentParser, page: str) -> None:
    """Add the arguments; ``page`` is where the configuration is told of."""
    parser.add_argument("config", metavar="CONFIG", help=f"a TOML file; see {page}")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings in place of the file's: run.steps=50")
    parser.add_argument("--ranks", type=_count, default=1, metavar="N", help="processes on this machine (default: 1)")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in run.folder")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def train(name: str, chosen: argparse.Namespace, options: Any, files: Sequence[str] = ()) -> int:
    """Train; under torchrun, or started by ``--ranks``, this process is one of the ranks.

    Args:
        name: of the trainer: its modules ``run`` and ``report`` have a ``run`` and a ``table``.
        chosen: arguments.
        options: with ``run.device``, ``run.threads`` and ``run.folder``.
        files: in that folder, to be named in the end where they are.

    Raises:
        CedarError: the training could not go on.
    """
    if chosen.ranks > 1 and "RANK" not in os.environ:
        again = ["--resume"] if chosen.resume else []
        launch.run_ranks(launch.this_command("train", name, chosen.config, *chosen.changes, *again), chosen.ranks)
        return 0
    launch.end_with_launcher()
    import torch

    from cedar.trainers.common.devices import device_of

    run, report = (import_module(f"cedar.trainers.{name}.{part}") for part in ("run", "report"))
    with launch.connected(device_of(options.run.device).type) as here:
        torch.set_num_threads(options.run.threads or max(1, (os.cpu_count() or 1) // here))
        path = run.run(options, resume=chosen.resume)
        if int(os.environ.get("RANK", "0")) == 0:
            from rich.console import Console

            console = Console()
            if lines := read_lines(path):
                console.print(report.table(lines))
            for wrote in (path, *(os.path.join(options.run.folder, file) for file in files)):
                if os.path.exists(wrote):
                    console.print(f"wrote {wrote}", highlight=False, soft_wrap=True)
    return 0
