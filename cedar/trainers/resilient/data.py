"""Provide micro-batches by (step, replica, micro-batch). The source can read each step again until it is committed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

import cedar
from cedar.core.errors import CedarError
from cedar.core.jagged import Container

_ENDLESS = 1 << 40  # steps in the loader's only epoch, in which it repeats the data
_RECENT = 4  # number of recent steps to cache
Pair: TypeAlias = tuple[Any, Any]
Split: TypeAlias = Callable[[Mapping[str, Any]], Pair]


class FinalError(CedarError):
    """An error of the model or its data. The run ends, since a retry would not help."""


class WrongRows(FinalError):
    """The data has an unexpected number of rows."""


class Source:
    """The rows of each step. Every worker gets the same rows for a step, and can read a step repeatedly.

    Args:
        read: function of a step that returns a pair: inputs of the first stage, and targets of the loss. Each is a
            tensor or a structure of tensors with one entry per row. If the function has a parameter ``rows``, a
            ``range``, it returns only these rows of the step's batch; otherwise it returns the whole batch.
    """

    def __init__(self, read: Callable[..., Pair]) -> None:
        self._function = read
        self.by_rows = "rows" in inspect.signature(read).parameters

    def read(self, step: int, rows: range) -> Pair:
        """Read these rows of a step; if ``by_rows`` is False, ``rows`` must cover the whole batch."""
        return self._function(step, rows=rows) if self.by_rows else self._function(step)

    def commit(self, step: int) -> None:
        """Declare that steps up to this one will not be read again."""

    def state_dict(self) -> dict[str, Any]:
        """Return a JSON state that identifies the data; resuming fails if the checkpoint's data differ."""
        return {}

    def close(self) -> None:
        """Release open resources."""


class LoaderSource(Source):
    """Batches of a cedar pipeline whose rows are repeated forever. ``split``: function from a batch to (inputs of the
    first stage, targets of the loss). ``lanes``: number of loader ranks; each reads an equal part of a step's rows.
    """

    def __init__(self, rows: cedar.Pipeline, batch: int, split: Split, seed: int, lanes: int = 1) -> None:
        super().__init__(self._read)
        self.split, self.lane = split, batch // lanes
        self.loader = rows.batch(self.lane, last="drop").loader(
            plan="off", executor="inline", seed=seed, rank=0, world=lanes, subgroup=True, format="torch", steps=_ENDLESS
        )

    def _read(self, step: int, rows: range) -> Pair:
        first, last = rows.start // self.lane, (rows.stop - 1) // self.lane
        read = [self.split(self.loader.read(step, rank=lane)) for lane in range(first, last + 1)]
        for pair in read:
            _check_rows(
                pair, self.lane, f"at step {step} for a batch of {self.lane}", "let columns return one entry per row"
            )
        skip = rows.start - first * self.lane
        cut: Pair = pytree.tree_map(lambda *parts: _concatenate(parts)[skip : skip + len(rows)], *read)
        return cut

    def commit(self, step: int) -> None:
        self.loader.commit(step)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def close(self) -> None:
        self.loader.close()


def _concatenate(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _check_rows(pair: Pair, rows: int, asked: str, fix: str) -> None:
    """Raise WrongRows unless all inputs and targets have this many rows. ``asked``: end of the error message."""
    for name, side in zip(("inputs", "targets"), pair, strict=False):
        for values in pytree.tree_leaves(side, is_leaf=lambda value: isinstance(value, Container)):
            shape = getattr(values, "shape", ())
            if isinstance(values, Container) or not shape:  # a container's arrays do not have one entry per row
                kind = "tensor without dimensions" if isinstance(values, torch.Tensor) else type(values).__name__
                raise WrongRows(
                    f"data gave {name} of type {kind}",
                    fix="give tensors with one entry per row; for columns of lists, call to_padded()",
                )
            if shape[0] != rows:
                raise WrongRows(f"data gave {shape[0]} rows of {name} {asked}", fix=fix)


class MicroBatches:
    """Cuts the batches of a source into micro-batches. ``micro_batches``: number per pipeline and step. ``rows``: rows
    per micro-batch. ``batch``: rows per step. If the source supports it, a worker reads only the rows of its own
    pipelines, with one read for all micro-batches of a replica.
    """

    def __init__(self, source: Source, micro_batches: int, rows: int, batch: int) -> None:
        self.source, self.micro_batches, self.rows, self.batch = source, micro_batches, rows, batch
        self._recent: dict[tuple[int, int], Pair] = {}  # cached pairs, by step and first row

    def inputs(self, step: int, key: tuple[int, int]) -> Any:
        """Return a micro-batch's inputs of the first stage."""
        return self._get(step, key, 0)

    def targets(self, step: int, key: tuple[int, int]) -> Any:
        """Return a micro-batch's targets of the loss."""
        return self._get(step, key, 1)

    def commit(self, step: int) -> None:
        """Declare that steps up to this one will not be read again."""
        self._recent = {at: pair for at, pair in self._recent.items() if at[0] > step}
        self.source.commit(step)

    def close(self) -> None:
        """Release open resources."""
        self.source.close()

    def _get(self, step: int, key: tuple[int, int], side: int) -> Any:
        share, wanted = self.micro_batches * self.rows, range(self.batch)
        if self.source.by_rows:
            wanted = range(key[0] * share, (key[0] + 1) * share)
        if (step, wanted.start) not in self._recent:
            self._recent = {at: pair for at, pair in self._recent.items() if at[0] > step - _RECENT}
            self._recent[step, wanted.start] = self._read(step, wanted)
        first = key[0] * share + key[1] * self.rows - wanted.start
        pair = self._recent[step, wanted.start]
        return pytree.tree_map(lambda values: values[first : first + self.rows], pair[side])

    def _read(self, step: int, wanted: range) -> Pair:
        pair = self.source.read(step, wanted)
        whole = f"the batch is {self.batch}"
        asked = f"rows {wanted.start} to {wanted.stop} were asked for" if self.source.by_rows else whole
        fix = f"give {len(wanted)} at every step, or set batch to what data gives"
        _check_rows(pair, len(wanted), f"at step {step}, and {asked}", fix)
        return pair
