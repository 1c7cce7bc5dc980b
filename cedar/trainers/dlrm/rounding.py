"""Stochastic rounding to float16: random, yet the same wherever and whenever a row is updated.

The bits follow from seed, step, table, row and column alone, by the finaliser of SplitMix64 (Steele et al., 2014): so
a run that goes on from a checkpoint, or on other ranks, rounds alike.
"""

from __future__ import annotations

import hashlib

import torch

_GOLDEN = -7046029254386353131  # 2**64 / golden ratio, odd, as a signed number


def table_key(seed: int, step: int, table: str) -> int:
    """A number for a table at a step, -2**63 to 2**63 - 1.

    Example:
        >>> table_key(0, 1, "items") == table_key(0, 1, "items") != table_key(0, 2, "items")
        True
    """
    digest = hashlib.blake2b(f"{seed} {step} {table}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def uniform(keys: torch.Tensor, width: int) -> torch.Tensor:
    """float32 ``[rows, width]`` in [0, 1): 24 random bits each.

    Args:
        keys: int64 ``[rows]``: a number for each row of each table, see ``row_keys``.
        width: numbers in a row.
    """
    columns = torch.arange(1, width + 1, device=keys.device) * _GOLDEN
    bits = _mix(keys[:, None] + columns)
    return ((bits >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def row_keys(table_keys: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """int64 ``[n]`` from the number of each row's table, and its place in it."""
    return _mix(table_keys ^ _mix(rows * _GOLDEN))


def to_half(values: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """float16 nearest above or below, so that the mean over ``chance`` in [0, 1) is the value.

    Args:
        values: float32; what is beyond the largest float16 becomes an infinity, as by ``.half()``.
        chance: float32 of the same shape.

    Example:
        >>> one = torch.tensor([1.0 + 2**-12])  # a quarter of the way from 1 to the next float16
        >>> to_half(one, torch.tensor([0.2])).item() > 1, to_half(one, torch.tensor([0.3])).item() == 1
        (True, True)
    """
    near = values.half()
    back = near.float()
    gap = values - back
    bits = near.view(torch.int16)
    # The next float16 in the direction of the value: a step of the bits, up where both point away from zero.
    away = (gap > 0) == (back >= 0)
    crossing = (back == 0) & (gap != 0)  # at zero the sign is that of the value, the magnitude the least there is
    least = torch.where(gap > 0, 1, -32767).to(torch.int16)
    other = torch.where(crossing, least, torch.where(away, bits + 1, bits - 1).to(torch.int16)).view(torch.float16)
    share = (gap / (other.float() - back)).nan_to_num(0.0, 0.0, 0.0)
    return torch.where(chance < share, other, near)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)
