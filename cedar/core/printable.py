"""Escape control characters in names and values from files before they are shown in a terminal or on a page."""

from __future__ import annotations

import html
import re

# C0 and C1 control characters, characters that reverse or hide text, and line separators.
_ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_ODD_IN_LINE = re.compile(f"[\t\n]|{_ODD.pattern}")


def printable(text: str) -> str:
    r"""Replace control characters by escapes such as ``\x1b``. They could move a terminal's cursor, set its title, or
    disguise a line as another one. Newlines and tabs stay.

    Examples:
        >>> print(printable("a\x1b[2Jb"))
        a\x1b[2Jb
    """
    return _ODD.sub(_escaped, text)


def one_line(text: str) -> str:
    r"""Escape like ``printable``, and also escape newlines and tabs, so that a name cannot begin a new line.

    Examples:
        >>> print(one_line("a\nb"))
        a\nb
    """
    return _ODD_IN_LINE.sub(_escaped, text)


def escape(text: str) -> str:
    """Escape a text for HTML."""
    return html.escape(printable(text))


def _escaped(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]
