"""Work on unique rows that stands for work on all rows (RecD's O7): only where it gives the same."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from cedar.errors import CedarError


def check_repeatable(module: nn.Module, *, anyway: bool = False) -> None:
    """Refuse modules that do not give equal rows equal results, or whose results depend on how often a row is there.

    Functions of torch.nn.functional inside a module are not seen.

    Args:
        module: that is to run on unique rows.
        anyway: allow it: equal rows share the mask of dropout, statistics count each unique row once.

    Raises:
        CedarError: it holds dropout (of more than 0), or batch statistics.

    Example:
        >>> check_repeatable(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
        >>> check_repeatable(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
        Traceback (most recent call last):
        cedar.errors.CedarError: BatchNorm1d ('1') takes statistics of a batch...
    """
    if anyway:
        return
    for name, part in module.named_modules():
        kind = f"{type(part).__name__} ({name or 'itself'!r})"
        drops = (isinstance(part, (_DropoutNd, nn.RReLU)) and getattr(part, "p", 1.0) > 0) or (
            isinstance(part, nn.MultiheadAttention) and part.dropout > 0
        )
        if drops:
            raise _refused(f"{kind} draws random numbers for each row; rows that are equal would share them")
        if isinstance(part, _BatchNorm):
            raise _refused(f"{kind} takes statistics of a batch; rows that are equal would count once")


def _refused(what: str) -> CedarError:
    return CedarError(
        what,
        done="it was not run on unique rows",
        fix='take it out, ask for it (model.repeat_dropout = true), or train on all rows: data.dedup = "off"',
    )
