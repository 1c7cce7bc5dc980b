"""``cedar train``: hands over to the trainers."""

from __future__ import annotations

import argparse
from functools import partial

from cedar.trainers import command

TRAINERS = {
    "dlrm": "a recommendation model on deduplicated features",
    "moe": "a mixture of experts whose replicas follow popularity",
    "resilient": "a pipeline-parallel model that outlives its workers",
}


def add(adder: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    train = adder.add_parser("train", help="train a model: " + ", ".join(TRAINERS), description="Train a model.")
    kinds = train.add_subparsers(title="trainers", metavar="TRAINER", required=True)
    for name, what in TRAINERS.items():
        kind = kinds.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        command.configure(kind, name)
        kind.set_defaults(call=partial(command.main, name))
