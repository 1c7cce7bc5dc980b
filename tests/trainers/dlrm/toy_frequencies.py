"""Frequencies of rows that are given manually."""

import torch

from cedar.trainers.dlrm.hot import Frequency


def counted(lookups):
    """Rows that are touched with chances like these numbers of 64."""
    rows = sorted((row for row, count in enumerate(lookups) if count), key=lambda row: (-lookups[row], row))
    chance = torch.tensor([lookups[row] / 64 for row in rows], dtype=torch.float64)
    return Frequency(torch.tensor(rows, dtype=torch.int64), chance, chance, chance)
