"""``cedar train dlrm``."""

from __future__ import annotations

import argparse

from cedar.trainers.common import command, config
from cedar.trainers.dlrm.options import Options


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    command.configure(parser, "docs/dlrm.md")


def main(chosen: argparse.Namespace) -> int:
    """Train; under torchrun, or started by ``--ranks``, this process is one of the ranks.

    Raises:
        CedarError: the configuration is wrong, or the training could not go on.
    """
    return command.train("dlrm", chosen, config.load(chosen.config, Options, chosen.changes))
