"""What a function refers to: modules of the user's own are looked into, libraries stand for themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cedar.core.digests import digest_of


def test_the_user_s_own_modules_are_looked_into(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    digests = set()
    for number in (1, 2):
        (tmp_path / f"own{number}.py").write_text(f"SIZE = [{number}]\ndef work(x):\n    return x + SIZE[0]\n")
        for text in ("m.work", "lambda x: m.work(x)", "Late()"):
            names: dict[str, Any] = {}
            late = f"def Late():\n    def f(x):\n        import own{number}\n    return f\n"
            exec(compile(f"import own{number} as m\n{late}fn = {text}", "own", "exec"), names)
            digests.add(digest_of(names["fn"]))
        monkeypatch.delitem(sys.modules, f"own{number}")
    assert len(digests) == 6
