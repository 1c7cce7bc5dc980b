"""Schedules as torch writes them."""

from __future__ import annotations

from torch.distributed.pipelining.schedules import _Action, _ComputationType


def written(path, ranks) -> str:
    """As torch writes what its schedules compute."""
    lines = []
    for rank in ranks:
        cells = ["" if action is None else str(_Action(*action)) for action in rank]
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


F, B, BI, W = (_ComputationType[name] for name in ("FORWARD", "FULL_BACKWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT"))
FUSED = [
    [(0, F, 0), (0, F, 1), None, (0, B, 0), (0, F, 2), (0, B, 1), None, (0, B, 2)],
    [None, (1, F, 0), (1, B, 0), (1, F, 1), (1, B, 1), (1, F, 2), (1, B, 2)],
]
