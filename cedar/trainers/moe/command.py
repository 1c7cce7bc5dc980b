"""``cedar train moe``."""

from __future__ import annotations

import argparse

from cedar.trainers import config, ranked
from cedar.trainers.moe.options import Options

PLOT = "replicas.png"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    ranked.configure(parser, "docs/moe.md")


def main(chosen: argparse.Namespace) -> int:
    """Train; under torchrun, or started by ``--ranks``, this process is one of the ranks.

    Raises:
        CedarError: the configuration is wrong, or the training could not go on.
    """
    return ranked.train("moe", chosen, config.load(chosen.config, Options, chosen.changes), files=[PLOT])
