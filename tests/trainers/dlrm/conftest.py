"""A log, and one crew of four ranks, for all tests of this folder."""

import pytest
import torch

from tests.trainers.dlrm.toy_clicks import write_log
from tests.trainers.moe.toy_crew import Crew


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Small sums gain nothing by more, and other tests run beside them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def log(tmp_path_factory):
    """1,024 rows in sessions of 16."""
    return write_log(tmp_path_factory.mktemp("log") / "log.parquet")


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
