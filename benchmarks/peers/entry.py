"""Entry: a peer, how it is installed, and how it runs a workload in each of its settings.

A module of ``benchmarks/peers/entries`` defines ``ENTRY`` and nothing else has to know of it. It imports its library
inside of functions: the parent, which has none of them, reads what there is to run.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.workload import Work, Workload, modules


@dataclass(frozen=True)
class Entry:
    """A contender.

    Args:
        name: for tables.
        module: what must be importable where it runs.
        environment: of the virtual environment; entries may share one. "" for the environment that runs the benchmark.
        requirements: what is installed there, next to the libraries that the workloads' functions need.
        distributions: what the install size is the size of, with all that they require.
        settings: the settings that exist for a workload; none: the peer cannot do it.
        run: an iterable of batches for a work and a setting; each iteration is an epoch, and batches are mappings of
            columns, or the bare number of rows if nothing is delivered.
        variables: environment variables of its processes.
        convert: writes the input in the peer's own format into the work's folder, once and ahead: it is in no figure.
        limit: True for what bounds every worker, which is compared with nothing.
    """

    name: str
    module: str
    environment: str
    requirements: tuple[str, ...]
    distributions: tuple[str, ...]
    settings: Callable[[Workload], tuple[str, ...]]
    run: Callable[[Workload, Work, str], Iterable[Any]]
    variables: Mapping[str, str] = field(default_factory=dict)
    convert: Callable[[Work], None] | None = None
    limit: bool = False


def entries() -> dict[str, Entry]:
    """All of them, by the names of their modules."""
    return {name: module.ENTRY for name, module in modules("entries").items()}


def entry(name: str) -> Entry:
    found: Entry = importlib.import_module(f"benchmarks.peers.entries.{name}").ENTRY
    return found


class Epochs:
    """Epochs made by calling ``start``: for libraries whose iterators are used up."""

    def __init__(self, start: Callable[[], Iterable[Any]]) -> None:
        self.start = start

    def __iter__(self) -> Any:
        return iter(self.start())
