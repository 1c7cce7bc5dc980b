"""``cedar train``: hands over to the trainer of that name."""

from __future__ import annotations

import argparse
import importlib
import importlib.util

TRAINERS = {
    "dlrm": "a recommendation model on deduplicated features",
    "moe": "a mixture of experts whose replicas follow popularity",
    "resilient": "a pipeline-parallel model that outlives its workers",
}


def add(adder: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command; a trainer brings ``configure(parser)`` and ``main(chosen)`` in its ``command`` module."""
    train = adder.add_parser("train", help="train a model: " + ", ".join(TRAINERS), description="Train a model.")
    kinds = train.add_subparsers(title="trainers", metavar="TRAINER", required=True)
    for name, what in TRAINERS.items():
        module = f"cedar.trainers.{name}.command"
        try:
            there = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            there = False
        if there:
            kind = kinds.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
            command = importlib.import_module(module)
            command.configure(kind)
            kind.set_defaults(call=command.main)
