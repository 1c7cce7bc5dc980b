"""One crew of four ranks for all tests of trainers."""

import pytest

from tests.toy_crew import Crew


@pytest.fixture(scope="session")
def crews(tmp_path_factory):
    """The crew that is alive: one that a failing test has brought down is replaced."""
    made = []

    def alive():
        if not made or not made[-1].alive:
            made.append(Crew(4, tmp_path_factory.mktemp("crew")))
        return made[-1]

    yield alive
    for crew in made:
        crew.stop()


@pytest.fixture
def crew(crews):
    return crews()
