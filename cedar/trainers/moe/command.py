"""``cedar train moe``."""

from __future__ import annotations

import argparse

from cedar.trainers.common import command, config
from cedar.trainers.moe.options import Options

PLOT = "replicas.png"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    command.configure(parser, "docs/moe.md")


def main(chosen: argparse.Namespace) -> int:
    """Train; under torchrun, or started by ``--ranks``, this process is one of the ranks.

    Raises:
        CedarError: the configuration is wrong, or the training could not go on.
    """
    return command.train("moe", chosen, config.load(chosen.config, Options, chosen.changes), files=[PLOT])
