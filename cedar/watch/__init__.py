"""Reports, pages, metrics and traces: an extension, whose functions below the core asks for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cedar.core.block import Block
    from cedar.core.errors import Site
    from cedar.plan.graph import Node
    from cedar.watch.contact_sheet import Sheet
    from cedar.watch.describe import Description
    from cedar.watch.observers import Observers
    from cedar.watch.progress import Progress
    from cedar.watch.report import Report


def report_of(*counters: Any, **facts: Any) -> Report:
    """What a loader did so far: see ``make_report``."""
    from cedar.watch.report import make_report

    return make_report(*counters, **facts)


def observers_of(progress: bool, trace: Any, serve: str | None, on_metrics: Any, site: Site | None) -> Observers:
    """All that watch one loader; the arguments are those of ``Pipeline.loader``."""
    from cedar.watch.observers import Observers

    return Observers(progress, trace, serve, on_metrics, site)


def progress_line(title: str, plain: bool = False) -> Progress:
    """A line of progress."""
    from cedar.watch.progress import Progress

    return Progress(title, plain=plain)


def inspect_rows(root: Node, rows: int, seed: int, epoch: int) -> Sheet:
    """The first rows before and after each operator."""
    from cedar.watch.inspect import inspect

    return inspect(root, rows, seed, epoch)


def describe_rows(blocks: Iterable[Block]) -> Description:
    """Figures of each column."""
    from cedar.watch.describe import describe

    return describe(blocks)


def draw(root: Node, text: str | None) -> str:
    """A pipeline as HTML with a text about it; without one, its operators as text that Mermaid draws."""
    from cedar.watch import picture

    return picture.chart(root) if text is None else picture.html(root, text)
