"""Budget: sizes as users write them, and what is refused."""

import os

import pytest

from cedar.core.errors import PipelineError
from cedar.optimizer.budget import Budget


def test_sizes_are_text_or_bytes():
    budget = Budget(cpus=2, memory="2GiB", cache=1000)
    assert (budget.memory_bytes, budget.cache_bytes) == (2 << 30, 1000)
    assert Budget(cache=0).cache_bytes == 0
    empty = Budget()
    assert (empty.cpus, empty.memory_bytes, empty.cache_bytes, empty.cluster) == (None, None, None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpus": 0}, {"cpus": 1.5}, {"cpus": True}, {"cpus": "2"}, {"memory": "lots"}, {"memory": 0}, {"memory": -1},
        {"memory": 1.5}, {"cache": "2 parsecs"}, {"cache": -1}, {"cache": True}, {"memory": "0GiB"},
    ],
)  # fmt: skip
def test_what_is_no_figure_is_refused_at_the_users_line(wrong):
    with pytest.raises(PipelineError) as caught:
        Budget(**wrong)
    (name,) = wrong
    assert name in caught.value.what
    assert repr(wrong[name]) in caught.value.what
    assert os.path.basename(caught.value.site.file) == "test_budget.py"
