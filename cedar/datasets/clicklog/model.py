"""The click model that draws every label; its AUC is the upper limit for trained models."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cedar.datasets.clicklog.spec import ITEM_LISTS, ClickLog, ListFeature

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_CATEGORIES = 40
_TASTES = 4  # dimensions of the vectors that describe items
_BINS = 20_000  # number of probability bins


@dataclass(frozen=True)
class World:
    """The parameters of a log's click model, shared by all of its files.

    The logit of a click is -1 + dense . weights + effect[item] + (mean of taste over hist_items) . taste[item].

    Args:
        popularity: float64[items], cumulative probabilities of items.
        effect: float64[items].
        taste: float64[items, 4].
        weights: float64[dense].
        category: int64[items].
    """

    popularity: Floats
    effect: Floats
    taste: Floats
    weights: Floats
    category: Ints
    skew: float

    def items(self, rng: np.random.Generator, n: int) -> Ints:
        return _drawn(self.popularity, rng, n)

    def ids(self, feature: ListFeature, rng: np.random.Generator, n: int) -> Ints:
        """Draw ``n`` ids for a list: items by their popularity, others from a distribution with the same skew."""
        if feature.name == ITEM_LISTS and feature.ids == len(self.popularity):
            return self.items(rng, n)
        return rng.integers(0, feature.ids, n) if not self.skew else _drawn(_popularity(feature.ids, self.skew), rng, n)

    def logit(self, dense: npt.NDArray[np.float32], item: Ints, liking: Floats) -> Floats:
        logits: Floats = self.weights @ dense.astype(np.float64) + self.effect[item] + liking - 1.0
        return logits


def world_of(log: ClickLog, seed: int) -> World:
    """Draw the parameters of a log, which are the same for all of its files."""
    rng = np.random.default_rng([seed, 0])
    ranks = _popularity(log.items, log.skew)
    shares = rng.permutation(np.diff(ranks, prepend=0.0))
    return World(
        np.cumsum(shares),
        rng.normal(0.0, 0.7, log.items),
        rng.normal(0.0, 1.0, (log.items, _TASTES)),
        rng.normal(0.0, 0.4, log.dense),
        rng.integers(0, _CATEGORIES, log.items),
        log.skew,
    )


def _popularity(ids: int, skew: float) -> Floats:
    weights = np.arange(1, ids + 1, dtype=np.float64) ** -skew
    total = np.cumsum(weights)
    shares: Floats = total / total[-1]
    return shares


def _drawn(popularity: Floats, rng: np.random.Generator, n: int) -> Ints:
    ranks = np.searchsorted(popularity, rng.random(n), side="right")
    return np.minimum(ranks, len(popularity) - 1).astype(np.int64)


def affinity(world: World, values: Ints, starts: Ints, lengths: Ints, item: Ints) -> Floats:
    """Return the similarity of each row's item to the row's history; 0 for an empty history."""
    if not len(values):
        return np.zeros(len(item))
    affinities = np.zeros(len(item))
    shares = np.maximum(lengths, 1)
    for k in range(_TASTES):
        sums = np.concatenate([[0.0], np.cumsum(world.taste[values, k])])
        affinities += (sums[starts + lengths] - sums[starts]) / shares * world.taste[item, k]
    return affinities


@dataclass
class BayesAuc:
    """The AUC of the true probabilities, accumulated over files; rows in the same of 20,000 bins count as ties."""

    clicks: Floats = field(default_factory=lambda: np.zeros(_BINS))
    others: Floats = field(default_factory=lambda: np.zeros(_BINS))

    def add(self, probability: Floats, label: npt.NDArray[np.int8]) -> None:
        """Add the rows of another file."""
        bins = np.minimum((probability * _BINS).astype(np.int64), _BINS - 1)
        self.clicks += np.bincount(bins[label == 1], minlength=_BINS)
        self.others += np.bincount(bins[label == 0], minlength=_BINS)

    @property
    def rate(self) -> float:
        """Return the share of clicks."""
        return float(self.clicks.sum() / max(self.clicks.sum() + self.others.sum(), 1))

    @property
    def value(self) -> float:
        """Return the AUC; 0.5 if there are only clicks or no clicks."""
        pairs = self.clicks.sum() * self.others.sum()
        if not pairs:
            return 0.5
        below = np.cumsum(self.others) - self.others
        return float((self.clicks * (below + self.others / 2)).sum() / pairs)
