"""For the examples in docstrings, which live beside the code; what the tests share is in tests/conftest.py."""

import pytest


@pytest.fixture(autouse=True)
def elsewhere(request: pytest.FixtureRequest) -> None:
    """Docstring examples run in an empty folder of their own."""
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
