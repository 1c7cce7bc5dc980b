"""Packages: what is installed is told from the user's own code, and by its version."""

from __future__ import annotations

import numpy as np

from cedar.core.packages import is_library, version_of


def test_what_is_installed_is_told_from_the_users_own() -> None:
    assert is_library("numpy.linalg")
    assert is_library("json")
    assert is_library("cedar.core.block")
    assert not is_library(__name__)
    assert not is_library("__main__")


def test_a_module_has_the_version_of_its_package() -> None:
    assert version_of("numpy.linalg") == np.__version__
