"""What a synthetic log looks like."""

from __future__ import annotations

from dataclasses import dataclass

from cedar.core.errors import PipelineError, user_site

ITEM_LISTS = "hist_items"  # the list of items that the click model looks at


@dataclass(frozen=True)
class ListFeature:
    """A list of ids of the user: the same in most rows of a session.

    Args:
        name: its column, a list of int64.
        length: mean length; lengths are drawn again with the values (Poisson).
        repeats: d, the chance that the list of a row is that of the row before it in its session.
        shift: where it changes, this many ids go at the front and as many come at the end (a history that slides, of a
            length that stays within a session); 0: a new list takes its place.
        ids: ids are 0 .. ids - 1.
        group: features of one group change in the same rows; "" is its own group.
    """

    name: str
    length: float = 30.0
    repeats: float = 0.95
    shift: int = 0
    ids: int = 100_000
    group: str = ""


@dataclass(frozen=True)
class ClickLog:
    """What is drawn, and how much of it repeats.

    Args:
        samples: S, rows of a session: exactly so many, or with ``vary`` so many on average (geometric).
        vary: sessions differ in length.
        repeats: d of the scalars of the user, and of lists that do not say their own.
        lists: the lists of ids; "hist_items" is the one that the click model looks at.
        scalars: ids of the user, columns u0, u1, ...
        item_scalars: ids that are new in every row, columns i0, i1, ...
        dense: numbers, columns d0, d1, ..., float32, new in every row.
        items: how many items there are.
        skew: popularity of ids falls as 1 / rank ** skew; 0: all alike.
        users: how many users there are.
        minutes: how long a session lasts at most; sessions begin all over a file's hour, so the shorter, the less they
            interleave.

    Raises:
        PipelineError: a number out of range, or a name twice.

    Examples:
        >>> ClickLog(samples=4).columns()[:6]
        ['session_id', 'user_id', 'ts', 'item_id', 'category', 'hist_items']
    """

    samples: int = 16
    vary: bool = False
    repeats: float = 0.95
    lists: tuple[ListFeature, ...] = (
        ListFeature(ITEM_LISTS, 20.0, ids=5_000),
        ListFeature("tags", 5.0, ids=300),
    )
    scalars: int = 4
    item_scalars: int = 0
    dense: int = 13
    items: int = 5_000
    skew: float = 0.8
    users: int = 50_000
    minutes: float = 50.0

    def __post_init__(self) -> None:
        whole = {
            "samples": (self.samples, 1), "scalars": (self.scalars, 0), "item_scalars": (self.item_scalars, 0),
            "dense": (self.dense, 0), "items": (self.items, 1), "users": (self.users, 1),
        }  # fmt: skip
        for name, (value, least) in whole.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise _bad(f"{name}={value!r}", f"an integer, at least {least}")
        if not 0 <= self.repeats <= 1:
            raise _bad(f"repeats={self.repeats!r}", "a share, 0 to 1")
        if self.skew < 0 or not 0 < self.minutes < 60:
            raise _bad(f"skew={self.skew!r}, minutes={self.minutes!r}", "skew not negative, minutes between 0 and 60")
        for feature in self.lists:
            _check(feature)
            if feature.name == ITEM_LISTS and feature.ids > self.items:
                raise _bad(f"{ITEM_LISTS} has ids up to {feature.ids}", f"at most items={self.items}")
        names = self.columns()
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise _bad(f"two columns {twice!r}", "other names")

    def columns(self) -> list[str]:
        """The names of the columns, in order."""
        return [
            "session_id", "user_id", "ts", "item_id", "category",
            *(feature.name for feature in self.lists),
            *(f"u{i}" for i in range(self.scalars)),
            *(f"i{i}" for i in range(self.item_scalars)),
            *(f"d{i}" for i in range(self.dense)),
            "label",
        ]  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A log that was written.

    Args:
        urls: its files.
        rows: how many rows.
        clicks: the share of rows with label 1.
        bayes_auc: the AUC of the model that drew the labels, over these very rows: what no other model exceeds, but for
            chance.
    """

    urls: tuple[str, ...]
    rows: int
    clicks: float
    bayes_auc: float


def _check(feature: ListFeature) -> None:
    if feature.length < 0 or feature.shift < 0 or feature.ids < 1 or not 0 <= feature.repeats <= 1:
        raise _bad(f"{feature}", "length and shift not negative, ids at least 1, repeats from 0 to 1")


def _bad(problem: str, wanted: str) -> PipelineError:
    return PipelineError(f"ClickLog: {problem}", site=user_site(), fix=wanted)
