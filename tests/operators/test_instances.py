"""Constructing: instances of users' classes begin with their own generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from cedar.operators.instances import constructed, constructing


def test_constructors_get_the_same_generators_which_are_put_back():
    torch = pytest.importorskip("torch")

    def drawn() -> Any:
        return random.random(), np.random.normal(), torch.rand(()).item()  # noqa: NPY002 - as users do

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)

    seed()
    first = constructed(drawn, "Some", None)
    then = drawn()
    seed()
    assert drawn() == then
    assert constructed(drawn, "Some", None) == first
    assert constructed(drawn, "Other", None) != first


def fails() -> Any:
    raise OSError("no weights")


def test_a_thread_knows_that_it_is_in_a_constructor():
    assert not constructing()
    assert constructed(constructing, "Some", None) is True
    with pytest.raises(OSError, match="no weights"):
        constructed(fails, "Some", None)
    assert not constructing()
