"""StatefulDataLoader of torchdata, in the place of a DataLoader."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.peers.entries.dataloader import loader_of
from benchmarks.peers.entry import Entry


def _make(*arguments: Any, **options: Any) -> Any:
    return importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader(*arguments, **options)


ENTRY = Entry(
    name="StatefulDataLoader",
    module="torchdata",
    environment="torch",
    requirements=("torch==2.13.0", "torchdata==0.11.0"),
    distributions=("torchdata",),
    settings=lambda _: ("2 workers", "tuned"),
    run=loader_of(_make),
)
