"""The specification of a synthetic log."""

from __future__ import annotations

from dataclasses import dataclass

from cedar.core.errors import PipelineError, invalid_call

ITEM_LISTS = "hist_items"  # the list of items that the click model uses


@dataclass(frozen=True)
class ListFeature:
    """A list column of a user's ids; the list stays the same in most rows of a session.

    Args:
        name: column name; the column holds lists of int64.
        length: mean length of a list; lengths follow a Poisson distribution and change only when the values do.
        repeats: the probability d that a row repeats the list of the previous row in its session.
        shift: at each change, drop this many ids from the front and append as many, like a sliding history whose length
            is constant within a session. With 0, each change draws a new list.
        ids: ids are 0 .. ids - 1.
        group: features in the same group change in the same rows; "" puts the feature in a group by itself.
    """

    name: str
    length: float = 30.0
    repeats: float = 0.95
    shift: int = 0
    ids: int = 100_000
    group: str = ""


@dataclass(frozen=True)
class ClickLog:
    """The specification of a synthetic click log: its columns, and how often values repeat within sessions.

    Args:
        samples: the number of rows per session, S; with ``vary`` it is the mean of a geometric distribution.
        vary: whether the number of rows differs between sessions.
        repeats: the probability d that a row repeats the previous row's values in the columns u0, u1, ...
        lists: the list features; the click model uses "hist_items".
        scalars: number of columns u0, u1, ..., which hold ids of the user.
        item_scalars: number of columns i0, i1, ..., which hold ids that are drawn independently for each row.
        dense: number of float32 columns d0, d1, ..., which are drawn independently for each row.
        items: number of items.
        skew: the popularity of ids falls as 1 / rank ** skew; 0 makes them equally popular.
        users: number of users.
        minutes: maximum duration of a session. Sessions start at random times within a file's hour, so shorter sessions
            interleave less.

    Raises:
        PipelineError: a number is out of range, or two columns have the same name.

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
                raise _bad(f"{name}={value!r}", f"give an integer of at least {least}")
        if not 0 <= self.repeats <= 1:
            raise _bad(f"repeats={self.repeats!r}", "give a number from 0 to 1")
        if self.skew < 0 or not 0 < self.minutes < 60:
            raise _bad(
                f"skew={self.skew!r}, minutes={self.minutes!r}",
                "skew must not be negative, and minutes must be between 0 and 60",
            )
        for feature in self.lists:
            _check(feature)
            if feature.name == ITEM_LISTS and feature.ids > self.items:
                raise _bad(f"{ITEM_LISTS} has ids up to {feature.ids}", f"use at most items={self.items}")
        names = self.columns()
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise _bad(f"two columns are named {twice!r}", "give each column its own name")

    def columns(self) -> list[str]:
        """Return the column names in order."""
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
    """The result of ``write_sessions``.

    Args:
        urls: the log's files.
        rows: number of rows.
        clicks: the share of rows with label 1.
        bayes_auc: the AUC of the true click probabilities on these rows; models can exceed it only by chance.
    """

    urls: tuple[str, ...]
    rows: int
    clicks: float
    bayes_auc: float


def _check(feature: ListFeature) -> None:
    if feature.length < 0 or feature.shift < 0 or feature.ids < 1 or not 0 <= feature.repeats <= 1:
        raise _bad(
            f"{feature}", "length and shift must not be negative, ids must be at least 1, and repeats from 0 to 1"
        )


def _bad(problem: str, wanted: str) -> PipelineError:
    return invalid_call(f"ClickLog: {problem}", fix=wanted)
