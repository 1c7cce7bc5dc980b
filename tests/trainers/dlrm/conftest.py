"""A log for all tests of this folder."""

import pytest
import torch

from tests.trainers.dlrm.toy_clicks import write_log


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Small sums gain nothing by more, and other tests run next to them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def log(tmp_path_factory):
    """1,024 rows in sessions of 16."""
    return write_log(tmp_path_factory.mktemp("log") / "log.parquet")
