"""Write docs/quickstart.ipynb from docs/quickstart.md: ``python docs/site/notebook.py``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]


def cell(kind: str, text: str) -> dict[str, Any]:
    made: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": text.strip("\n").splitlines(keepends=True)}
    return made | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def notebook(page: str) -> str:
    """The notebook of a page: prose as Markdown, blocks of Python and of a shell as code."""
    page = re.sub(
        r"^\[The same page.*\n", "", re.sub(r" \[The same page as a notebook\].*\n", "\n", page), flags=re.MULTILINE
    )
    page = re.sub(r"\[([^\]]+)\]\(\w+\.md\)", r"\1", page)
    cells = []
    for n, part in enumerate(re.split(r"^```(\w*)\n(.*?)^```\n", page, flags=re.MULTILINE | re.DOTALL)):
        if n % 3 == 0 and part.strip():
            cells.append(cell("markdown", part))
        elif n % 3 == 1:
            language = part
        elif n % 3 == 2:
            lines = [f"!{line}" for line in part.splitlines()] if language == "sh" else [part]
            cells.append(cell("code", "\n".join(lines)))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (DOCS / "quickstart.ipynb").write_text(notebook((DOCS / "quickstart.md").read_text()))
