"""One crew of four ranks for all tests of trainers; a store of their own for those that ask one."""

import pytest

from cedar.trainers.resilient.control import store
from tests.toy_crew import Crew
from tests.trainers.toy_store import KEY


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


@pytest.fixture
def served():
    """The port of a store in its own process."""
    process, port = store.start("127.0.0.1", 0, KEY)
    yield port
    process.kill()
    process.join()
