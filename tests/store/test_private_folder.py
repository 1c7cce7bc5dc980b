"""The folder of this user: made for this user alone, and not used where others could have written to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cedar.store.private_folder import private_folder


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_made_for_this_user_alone(base: Path) -> None:
    assert private_folder() == str(base / "cedar")
    assert private_folder("keys") == private_folder("keys") == str(base / "cedar" / "keys")
    assert {path.stat().st_mode & 0o777 for path in (base / "cedar", base / "cedar" / "keys")} == {0o700}


def test_a_relative_base_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for base in ("", "here"):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        assert private_folder() == str(tmp_path / ".cache" / "cedar")


@pytest.mark.parametrize("at", ["cedar", "cedar/keys"])
@pytest.mark.parametrize("why", ["group", "others", "link", "file", "owner"])
def test_what_others_could_have_written_to_is_not_used(
    why: str, at: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / at).parent.mkdir(parents=True, mode=0o700)
    if why == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (base / at).symlink_to(tmp_path / "elsewhere")
    elif why == "file":
        (base / at).write_text("")
    else:
        (base / at).mkdir(mode=0o700)
        (base / at).chmod({"group": 0o770, "others": 0o707}.get(why, 0o700))
    if why == "owner":
        monkeypatch.setattr(os, "geteuid", lambda: (base / at).stat().st_uid + 1)
    assert private_folder("keys") is None
