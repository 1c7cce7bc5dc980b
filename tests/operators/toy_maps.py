"""A block for functions of rows, and how they fail on it."""

from __future__ import annotations

import pytest

from cedar.core.errors import RowError
from tests.toy_blocks import SITE, block, run

XS = block(x=[1, 2, 3], s=["a", "b", "c"])


def failing(operator, given=XS, **how):
    with pytest.raises(RowError) as caught:
        run(operator, given, **how)
    error = caught.value
    assert error.site == SITE
    assert error.fix
    return error
