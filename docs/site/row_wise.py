"""Prints the table of docs/row_wise.md: python docs/site/row_wise.py."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from cedar.operators.expression_kinds import ANY, INSIDE, INT, KINDS, NESTED, NUMBER, SCALAR, TIMES, VALUES


def markdown() -> str:
    """Return the table of docs/row_wise.md."""
    rows: dict[tuple[str, str], list[str]] = {}
    for kind in KINDS:
        rows.setdefault((_named(kind.on), _named(kind.never) or "-"), []).append(kind.forms[0])
    lines = ["| expression | row-wise on | never fails on |", "|---|---|---|"]
    for (on, never), forms in rows.items():
        lines.append(
            f"| {', '.join('`' + form.replace('|', chr(92) + '|') + '`' for form in forms)} | {on} | {never} |"
        )
    inside = ", ".join(f"`{form}`" for forms in INSIDE.values() for form in forms.split(" ; "))
    heading = (
        "Inside `list.eval` and `list.agg`, where `e` stands for the items of one row's list, these are row-wise too"
    )
    return "\n".join([*lines, "", f"{heading}: {inside}."])


def _named(groups: Iterable[str]) -> str:
    """Describe a set of types in words."""
    left, words = set(groups), []
    for word, some in (
        ("all", ANY), ("all but categories", VALUES), ("all that is not nested", SCALAR), ("numbers", NUMBER),
        ("integers", INT), ("times", TIMES), ("nested", NESTED),
    ):  # fmt: skip
        if some <= left:
            words.append(word)
            left -= some
    return ", ".join([*words, *sorted(left)])


if __name__ == "__main__":
    sys.stdout.write(markdown())
