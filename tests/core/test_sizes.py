"""Sizes and integers, as users write them and as they are shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cedar.core.errors import PipelineError
from cedar.core.sizes import as_int, parse_bytes, size_text


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_whole_numbers_of_libraries_are_ints(value: Any) -> None:
    assert type(as_int(value)) is int
    assert as_int(value) == 3


@pytest.mark.parametrize("value", [True, np.bool_(True), torch.tensor(True), 3.0, np.float32(3), "3", None])
def test_whatever_else_stays_as_it_is(value: Any) -> None:
    assert as_int(value) is value


@pytest.mark.parametrize(
    ("text", "size"),
    [("256MiB", 256 << 20), (" 1.5 GiB ", 3 << 29), ("2gb", 2 * 10**9), ("1B", 1), ("3 KB", 3000), ("1tib", 1 << 40)],
)
def test_sizes_are_numbers_of_bytes(text: str, size: int) -> None:
    assert parse_bytes(text, "memory") == size


@pytest.mark.parametrize("text", ["", "12", "MiB", "-1MiB", "0GiB", "1 parsec", "1e3MB", "1MiB 2MiB", "NaN B"])
def test_what_is_no_size_is_refused_by_its_argument(text: str) -> None:
    with pytest.raises(PipelineError, match="memory=.* is not a size") as caught:
        parse_bytes(text, "memory")
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_sizes_are_shown_in_three_digits() -> None:
    shown = [size_text(size) for size in (0, 1023, 1024, 1500 << 10, (1 << 30) - 1, 5000 << 40)]
    assert shown == ["0B", "1023B", "1KiB", "1.46MiB", "1,024MiB", "5,000TiB"]
