"""Text layout for plans: wraps lines to the width of a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from cedar.profile.text import WIDTH

_INDENT = 7  # characters: a heading of five letters and two spaces


def with_heading(head: str, items: Iterable[str], room: int | None = None, more: str = "") -> list[str]:
    """Wrap items into at most ``room`` lines after a heading. The last line may state how many items were omitted.

    Examples:
        >>> with_heading("NOTE", ["one", "two", "three"], room=2)
        ['NOTE   one', '       ... 2 more']
    """
    width = WIDTH - max(_INDENT, len(head) + 2)
    wrapped = [textwrap.wrap(item, width, break_on_hyphens=False) for item in dict.fromkeys(items)]
    shown: list[str] = []
    for number, lines in enumerate(wrapped):
        left = len(wrapped) - number
        if room is not None and shown and len(shown) + len(lines) + (left > 1) > room:
            shown.append(f"... {left} more{more}")
            break
        shown += lines
    return [f"{head if not i else '':<{_INDENT - 2}}  {line}" for i, line in enumerate(shown)]


def join_parts(first: str, parts: Sequence[str], detail: str) -> list[str]:
    """Return ``first`` and the parts joined by arrows, then a detail in brackets, on as many lines as needed.

    Examples:
        >>> join_parts("  1. read  ", ["a", "b"], "2 splits")
        ['  1. read  a -> b   [2 splits]']
    """
    indent = " " * len(first)
    lines = [first]
    for i, part in enumerate(parts):
        arrow = " -> " if i else ""
        whole = textwrap.wrap(
            part, WIDTH - len(indent) - len(arrow), subsequent_indent=" " * len(arrow), break_on_hyphens=False
        )
        if i and len(lines[-1]) + len(arrow) + len(part) > WIDTH:
            lines.append(indent + arrow + whole[0])
        else:
            lines[-1] += arrow + whole[0]
        lines += [indent + line for line in whole[1:]]
    if detail and len(lines[-1]) + len(detail) + 5 <= WIDTH:
        lines[-1] += f"   [{detail}]"
    elif detail:
        lines += textwrap.wrap(
            f"[{detail}]", WIDTH, initial_indent=indent, subsequent_indent=indent + " ", break_on_hyphens=False
        )
    return lines
