"""What tests and examples in docstrings share; fixtures of tests alone are in tests/conftest.py."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

import cedar


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Examples in docstrings of operators on images and sound are heavy: numba compiles their kernels."""
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.path.parts[-2:-1] in (("image",), ("audio",)):
            item.add_marker(pytest.mark.heavy)
        if isinstance(item, pytest.DoctestItem) and item.path.parts[-2:-1] == ("video",) and not find_spec("av"):
            item.add_marker(pytest.mark.skip(reason="the extra video is not installed"))


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes what the user who runs it keeps in a cache directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("CEDAR_KERNELS", "wait")  # tests are of kernels, those of what stands in for them say so
        yield


@pytest.fixture(autouse=True)
def names_in_examples(doctest_namespace: dict[str, object]) -> None:
    """Docstring examples know ``cedar`` without importing it."""
    doctest_namespace["cedar"] = cedar


@pytest.fixture(autouse=True)
def elsewhere(request: pytest.FixtureRequest) -> None:
    """Docstring examples run in an empty folder of their own."""
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
