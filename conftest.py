"""For the examples in docstrings too, which live beside the code; what only tests share is in tests/conftest.py."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes what the user who runs it keeps in a cache directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("CEDAR_KERNELS", "wait")  # tests are of kernels, those of what stands in for them say so
        yield


@pytest.fixture(autouse=True)
def elsewhere(request: pytest.FixtureRequest) -> None:
    """Docstring examples run in an empty folder of their own."""
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
