"""A rank's position in its epoch, which is always after the last unit that the caller received."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cedar.engine.delivery.device_prefetch import AheadEpoch
from cedar.engine.delivery.state import copied
from cedar.engine.epoch import DataEpoch
from cedar.engine.streams.lane_states import LaneState

_MAX_EPOCHS_AHEAD = 8  # maximum number of data epochs by which ranks may differ when their states are merged


@dataclass
class Position:
    """A position in an epoch, and how the next ``for`` begins there.

    It is replaced as a whole when the rank moves to another epoch or loads a state, or the ranks or weights change.

    Examples:
        >>> Position(3, 3).begun
        {'step': 0, 'data': 3, 'open': {}}
    """

    epoch: int
    data: int  # the data epoch of the next unit; differs from ``epoch`` only with ``steps=``
    open: dict[str, Any] = field(default_factory=dict)  # state entries of the data epochs in progress, by number
    step: int = 0  # number of units received in this epoch
    begun: dict[str, Any] = field(default_factory=dict)  # the position from which steps count; {} means here
    earlier_steps: int = 0  # number of steps in earlier epochs
    placed: bool = False  # whether ``data`` and ``open`` are known; see ``Epochs.place``
    started: bool = False  # whether the epoch was iterated, so the next ``for`` starts it again
    resumed: bool = False  # the next ``for`` continues here instead, because a state was loaded or weights changed
    ended: dict[str, Any] | None = None  # the loaded state, if it was saved after the previous epoch's last batch
    continue_if_over: bool = False  # whether to run the next epoch if this one proves to have no more batches
    live: DataEpoch | AheadEpoch | None = None  # data epoch in progress, newer than its entry in ``open``

    def __post_init__(self) -> None:
        self.begun = self.begun or self._here()

    def _here(self) -> dict[str, Any]:
        return {"step": self.step, "data": self.data, "open": self.opened()}

    def opened(self) -> dict[str, Any]:
        """Return the state entries of the data epochs in progress, up to the last unit that the caller received."""
        if self.live is not None and self.live.moved:
            self.open[str(self.live.epoch)] = self.live.entry()
        return copied(self.open)  # type: ignore[no-any-return]

    def place(self, data: int, opened: dict[str, Any]) -> None:
        """Set the position in the data at which the epoch begins."""
        self.data, self.open, self.placed = data, opened, True
        self.begun = self._here()

    def close(self, data: DataEpoch | AheadEpoch) -> None:
        """Record that this rank finished a data epoch. States keep this entry, since other ranks may still be in it."""
        self.open = {e: entry for e, entry in self.open.items() if int(e) > data.epoch - _MAX_EPOCHS_AHEAD}
        self.open[str(data.epoch)] = data.closed()
        self.live = None

    def next(self, steps: bool) -> Position:
        """Return the beginning of the next epoch; with ``steps``, the data continue where they are."""
        opened, earlier = self.opened(), self.earlier_steps + self.step
        if steps:
            return Position(self.epoch + 1, self.data, opened, earlier_steps=earlier, placed=True)
        position = Position(self.epoch + 1, self.epoch + 1, earlier_steps=earlier)
        position.open = {e: entry for e, entry in opened.items() if int(e) == self.data}  # others may be in that epoch
        return position

    @property
    def has_lanes(self) -> bool:
        """Whether the epoch began in lanes, in which only this rank knows its position."""
        return any(entry["lanes"] is not None for entry in self.begun["open"].values())

    @property
    def has_leftovers(self) -> bool:
        """Whether the epoch began with batches left over from the previous epoch."""
        return any(entry.get("before") for entry in self.begun["open"].values())


def is_unfinished(entry: dict[str, Any]) -> bool:
    """Whether a closed data epoch has undelivered units, because the ranks agreed on an earlier end."""
    return bool(entry.get("before")) or any(not LaneState(*lane).ended for lane in entry["lanes"] or ())
