"""How far a training run is: a line that changes in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LINES = 20  # of a whole run, where nobody watches a bar


@contextmanager
def progress(what: str, steps: int, done: int = 0, *, quiet: bool = False) -> Iterator[Callable[[int, str], None]]:
    """Gives a function to call after each step with the number of steps done and a few words.

    Args:
        what: is done.
        steps: altogether.
        done: before.
        quiet: say nothing.
    """
    if quiet:
        yield lambda _done, _text: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[said]}"),
        )  # fmt: skip
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=steps, completed=done, said="")
            yield lambda now, text: bar.update(task, completed=now, said=text)
    else:
        every = max(1, steps // _LINES)

        def say(now: int, text: str) -> None:
            if now % every == 0 or now == steps:
                sys.stderr.write(f"{what}: {now}/{steps} {text}\n")
                sys.stderr.flush()

        yield say


def say_choices(lines: list[str]) -> None:
    """What was chosen, before the first step; what happened, between steps."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
