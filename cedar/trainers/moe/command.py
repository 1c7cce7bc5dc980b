"""``cedar train moe``."""

from __future__ import annotations

import argparse
import os

from cedar.trainers import config, launch
from cedar.trainers.moe.options import Options


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("config", metavar="CONFIG", help="a TOML file; see docs/moe.md")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings in place of the file's: run.steps=50")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="processes on this machine (default: 1)")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in run.folder")


def main(chosen: argparse.Namespace) -> int:
    """Train; under torchrun, or started by ``--ranks``, this process is one of the ranks.

    Raises:
        CedarError: the configuration is wrong, or the training could not go on.
    """
    options = config.load(chosen.config, Options, chosen.changes)
    if chosen.ranks > 1 and "RANK" not in os.environ:
        again = ["--resume"] if chosen.resume else []
        launch.run_ranks(launch.this_command("train", "moe", chosen.config, *chosen.changes, *again), chosen.ranks)
        return 0
    import torch

    from cedar.trainers.moe.metrics import read_lines
    from cedar.trainers.moe.report import table
    from cedar.trainers.moe.run import PLOT, run

    device = ("cuda" if torch.cuda.is_available() else "cpu") if options.run.device == "auto" else options.run.device
    with launch.connected(device) as here:
        torch.set_num_threads(options.run.threads or max(1, (os.cpu_count() or 1) // here))
        path = run(options, resume=chosen.resume)
        if int(os.environ.get("RANK", "0")) == 0:
            from rich.console import Console

            lines = read_lines(path)
            console = Console()
            console.print(table(lines))
            console.print(f"wrote {path}", highlight=False, soft_wrap=True)
            if os.path.exists(picture := os.path.join(options.run.folder, PLOT)):
                console.print(f"wrote {picture}", highlight=False, soft_wrap=True)
    return 0
