"""``cedar train``: which settings there are, and what they mean."""

from __future__ import annotations

import pytest

from cedar.cli import main


@pytest.mark.parametrize("command", [["train", "dlrm"], ["train", "moe"], ["train", "resilient"], ["simulate"]])
def test_all_settings_are_listed_with_what_they_mean(capsys, command):
    with pytest.raises(SystemExit) as ended:
        main([*command, "--settings"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    told = dict(zip(lines[::2], lines[1::2], strict=True))
    assert len(told) > 30
    assert all(what.startswith("    ") and what.strip() for what in told.values())
    assert any(name.startswith("run.seed = 0") for name in told)
